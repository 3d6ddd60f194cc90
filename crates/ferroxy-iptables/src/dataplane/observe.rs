//! Reads our part of the kernel's rules into a State.

use crate::door::Door;
use crate::program::owns;
use crate::state::State;
use crate::tool::{Error, Limits};

/// Our chains and jumps in all existing tables. Creates none.
pub fn observe(doors: &mut [Door], limits: &Limits) -> Result<State, Error> {
    let mut state = State::default();
    for door in doors {
        state.tables.extend(door.observe(owns, limits)?.tables);
    }
    Ok(state)
}
