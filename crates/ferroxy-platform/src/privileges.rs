//! Privileges by name, and giving up those a process does not need. Which proxy mode needs which is not decided here.

use std::fmt;
use std::io;

use crate::system;

/// A privilege that can be kept or given up. On Linux each is a capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Privilege {
    /// Program the network: rules, addresses, tracked connections, settings of the network namespace.
    NetAdmin,
    /// Open raw sockets. Legacy iptables needs it.
    NetRaw,
    /// Listen on ports below 1024.
    NetBindService,
    /// Exceed resource limits; lower the OOM score.
    SysResource,
    /// Load BPF programs and change their maps.
    Bpf,
}

impl Privilege {
    pub const ALL: [Privilege; 5] = [
        Privilege::NetAdmin,
        Privilege::NetRaw,
        Privilege::NetBindService,
        Privilege::SysResource,
        Privilege::Bpf,
    ];

    /// The name as in a pod's `securityContext.capabilities`: without `CAP_`.
    pub const fn name(self) -> &'static str {
        match self {
            Privilege::NetAdmin => "NET_ADMIN",
            Privilege::NetRaw => "NET_RAW",
            Privilege::NetBindService => "NET_BIND_SERVICE",
            Privilege::SysResource => "SYS_RESOURCE",
            Privilege::Bpf => "BPF",
        }
    }
}

impl fmt::Display for Privilege {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The privileges that a process keeps while it works, as a value for a `const` or `static`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Privileges {
    /// For the process itself.
    pub own: &'static [Privilege],
    /// For the programs it starts, which have no privileges of their own.
    pub programs: &'static [Privilege],
}

impl Privileges {
    pub const NONE: Privileges = Privileges { own: &[], programs: &[] };
}

/// Gives up every privilege except `privileges` and, for the process itself, `extra`. There is no way back, neither for
/// this process nor for the programs it starts.
///
/// Privileges belong to a thread, and a new thread inherits them. So call this before the first thread is started; it
/// fails when there is more than one.
pub fn keep(privileges: &Privileges, extra: &[Privilege]) -> io::Result<()> {
    system::privileges::keep(privileges, extra)
}

/// Gives up every privilege of the calling thread and of the threads that it starts from now on; after [`keep`], also
/// of the programs that it starts, whatever their user.
pub fn give_up_in_this_thread() -> io::Result<()> {
    system::privileges::give_up_in_this_thread()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn privileges_are_constants_with_the_names_of_capabilities() {
        const BOTH: &[Privilege] = &[Privilege::NetAdmin, Privilege::NetRaw];
        static IPTABLES: Privileges = Privileges { own: BOTH, programs: BOTH };
        let names: Vec<String> = IPTABLES.own.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["NET_ADMIN", "NET_RAW"]);
        assert_eq!(IPTABLES.programs, BOTH);
    }

    #[test]
    fn a_process_with_threads_keeps_its_privileges() {
        // The test harness runs this in a thread of its own.
        let error = keep(&Privileges::NONE, &[]).unwrap_err();
        assert!(error.to_string().contains("threads are running already"), "{error}");
    }
}
