//! Running as a service of the system's service manager, where a process must register for it (Windows).

use std::io;

use crate::system;

/// Runs `work`, and reports its start and its end to the service manager: the result of `work` is the exit code. A
/// request to stop reaches the [watcher of signals](crate::signals::watch).
///
/// Blocks until the work is done. Fails if the service manager did not start this process, and on systems without one of
/// this kind.
pub fn run(name: &'static str, work: impl FnOnce() -> u32 + Send + 'static) -> io::Result<()> {
    system::service::run(name, Box::new(work))
}

/// What a service does.
pub(crate) type Work = Box<dyn FnOnce() -> u32 + Send>;
