//! The claim to program this host's network: two agents in one network namespace would undo each other's work.

use std::io;

use crate::system;

/// Held until it is dropped, or until the process ends.
#[derive(Debug)]
pub struct Claim {
    held: system::claim::Held,
}

impl Claim {
    /// `None` while another agent has it.
    pub fn take() -> io::Result<Option<Claim>> {
        Ok(system::claim::take("ferroxy/agent")?.map(|held| Claim { held }))
    }

    /// False when a process that cannot be an agent occupies the name: then a second agent would not notice this one.
    pub fn is_exclusive(&self) -> bool {
        self.held.is_exclusive()
    }
}
