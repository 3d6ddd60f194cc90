//! The privileges that a mode needs.

/// A privilege, by what it allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Privilege {
    NetAdmin,
    NetRaw,
}

/// What to keep of the privileges that the process starts with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Privileges {
    pub own: &'static [Privilege],
    /// For the programs that it starts.
    pub programs: &'static [Privilege],
}
