//! Standard output and standard error, for writers that must not block other threads: no lock of the standard library
//! is held while the kernel makes a writer wait.

use std::io;

pub use crate::system::streams::Output;

/// A line of at most this many bytes does not block on a stream that [`Output::has_room`] (a pipe's `PIPE_BUF`).
pub const SHORT: usize = 4096;

pub fn stdout() -> io::Result<Output> {
    Output::stdout()
}

pub fn stderr() -> io::Result<Output> {
    Output::stderr()
}
