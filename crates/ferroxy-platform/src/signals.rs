//! Requests to stop: SIGTERM and SIGINT on Linux, console events on Windows.

use std::io;

use crate::system;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// By a person at the terminal: SIGINT, Ctrl-C.
    Interrupted,
    /// By a service manager or another program: SIGTERM, console closed, shutdown.
    Terminated,
}

impl StopReason {
    pub const fn as_str(self) -> &'static str {
        match self {
            StopReason::Interrupted => "interrupted",
            StopReason::Terminated => "asked to terminate",
        }
    }
}

/// Calls `on_stop` on a thread of its own each time this process is asked to stop, which from now on does not end it.
/// Call this once, and before any other thread exists: on Linux threads inherit the blocked signals.
///
/// An error is the last call: from then on no request to stop is received.
///
/// On a platform without a way to catch such requests this does nothing: they end the process as usual.
pub fn watch(on_stop: impl FnMut(io::Result<StopReason>) + Send + 'static) -> io::Result<()> {
    system::signals::watch(Box::new(on_stop))
}
