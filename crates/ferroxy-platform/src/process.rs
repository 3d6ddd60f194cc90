//! Figures of this process: CPU time, memory, open files, threads. In which form they are published is not decided here.

use std::io;

use crate::system;

/// A figure is `None` where the platform does not have it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Figures {
    /// User and system time.
    pub cpu_seconds: Option<f64>,
    pub resident_bytes: Option<u64>,
    pub virtual_bytes: Option<u64>,
    /// `u64::MAX` when there is no limit.
    pub virtual_bytes_limit: Option<u64>,
    /// As Unix time.
    pub start_time_seconds: Option<f64>,
    pub threads: Option<u64>,
    /// File descriptors or handles.
    pub open_files: Option<u64>,
    pub open_files_limit: Option<u64>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Thread {
    pub id: u64,
    pub name: String,
    /// One letter, as `ps` prints it.
    pub state: char,
    pub user_seconds: f64,
    pub system_seconds: f64,
}

pub fn figures() -> Figures {
    system::process::figures()
}

/// The threads of this process; none where the platform does not list them.
pub fn threads() -> Vec<Thread> {
    system::process::threads()
}

/// Raises the limit of open files as far as the platform allows: each listening socket is one, and the usual limit of
/// 1024 exists only for programs that use `select`.
pub fn raise_open_files_limit() -> io::Result<()> {
    system::process::raise_open_files_limit()
}
