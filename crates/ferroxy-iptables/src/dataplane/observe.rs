//! Reads our part of the kernel's rules into a State, with the host's save tools.

use std::ops::ControlFlow;

use crate::state::State;
use crate::text::Reader;
use crate::tool::{Error, Limits, Tools, save};

/// Our chains and jumps. One run of the tool for a family reads all existing tables, and creates none.
pub fn observe(tools: &[Tools], limits: &Limits) -> Result<State, Error> {
    let mut state = State::default();
    for tools in tools {
        let mut reader = Reader::new(tools.family);
        save(tools, None, limits, &mut |line| {
            reader.line(line);
            ControlFlow::Continue(())
        })?;
        state.tables.extend(reader.finish().tables);
    }
    Ok(state)
}
