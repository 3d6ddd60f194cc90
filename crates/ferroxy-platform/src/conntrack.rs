//! The kernel's settings for connection tracking. Deleting or listing connections is not done here.

use std::fmt;
use std::io;
use std::time::Duration;

use crate::system;

/// Zero (or `false`) leaves a setting as the kernel has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Settings {
    /// Tracked connections for each CPU of the host.
    pub max_per_core: u32,
    /// The least number of tracked connections. Not used without `max_per_core`, or if `max_per_core` gives more than
    /// its cap.
    pub min: u32,
    pub tcp_established_timeout: Duration,
    pub tcp_close_wait_timeout: Duration,
    pub tcp_be_liberal: bool,
    pub udp_timeout: Duration,
    pub udp_stream_timeout: Duration,
}

/// The changes and failures of [`apply`].
#[derive(Debug, Default)]
pub struct Report {
    pub written: Vec<Written>,
    /// Settings that differ from the wanted ones and stay as they are.
    pub failed: Vec<Failed>,
}

/// Reads as `set /proc/sys/net/netfilter/nf_conntrack_max to 131072`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    pub name: String,
    pub value: u64,
}

/// Reads as `cannot set /proc/sys/net/netfilter/nf_conntrack_max to 131072: Permission denied (os error 13)`.
#[derive(Debug)]
pub struct Failed {
    pub name: String,
    pub value: u64,
    pub error: io::Error,
}

/// Applies `settings` to the kernel. Settings that are right already are not written.
pub fn apply(settings: &Settings) -> Report {
    system::conntrack::apply(settings)
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "set {} to {}", self.name, self.value)
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot set {} to {}: {}", self.name, self.value, self.error)
    }
}
