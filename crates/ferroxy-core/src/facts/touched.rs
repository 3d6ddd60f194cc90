//! What must be resolved again after an event.

use std::collections::BTreeSet;

use crate::name::ServiceName;

/// What an event may have changed; everything else resolves to the same result as before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Touched {
    /// Resolve these again.
    pub services: BTreeSet<ServiceName>,
    /// The members of `services` that lost a frontend, or may get it: they must be resolved together.
    pub handed_over: BTreeSet<ServiceName>,
    /// Resolve every Service again.
    pub everything: bool,
    /// Resolve the node again.
    pub node: bool,
}

impl Touched {
    pub fn all() -> Touched {
        Touched { everything: true, node: true, ..Touched::default() }
    }

    pub fn is_empty(&self) -> bool {
        self.services.is_empty() && !self.everything && !self.node
    }

    pub fn merge(&mut self, other: Touched) {
        self.services.extend(other.services);
        self.handed_over.extend(other.handed_over);
        self.everything |= other.everything;
        self.node |= other.node;
    }
}
