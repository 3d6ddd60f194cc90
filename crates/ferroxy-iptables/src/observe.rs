//! What the kernel has of ours, read back into a State with the host's save tools. What is not ours is passed over.

use std::ops::ControlFlow;

use crate::state::State;
use crate::text::Reader;
use crate::tool::{Error, Limits, Tools, save};

/// Our chains and jumps, as they are. One run of the tool for a family: all tables that exist, and none is made by looking.
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
