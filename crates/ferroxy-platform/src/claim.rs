//! The claim to program this host's network: two agents in one network namespace would undo each other's work.

use std::io;

use crate::system;

/// Held until it is dropped, or until the process ends.
#[derive(Debug)]
pub struct Claim {
    _held: system::claim::Held,
}

impl Claim {
    /// `None` while another agent has the claim. Never blocks: an agent that waits calls it again.
    pub fn take() -> io::Result<Option<Claim>> {
        Ok(system::claim::take()?.map(|held| Claim { _held: held }))
    }
}
