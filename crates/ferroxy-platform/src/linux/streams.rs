//! Duplicates of the standard streams. They stay in blocking mode: that mode belongs to the open file, which other
//! processes may share.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

#[derive(Debug)]
pub struct Output(File);

impl Output {
    pub fn stdout() -> io::Result<Output> {
        Output::of(&io::stdout())
    }

    pub fn stderr() -> io::Result<Output> {
        Output::of(&io::stderr())
    }

    fn of(stream: &impl AsFd) -> io::Result<Output> {
        Ok(Output(stream.as_fd().try_clone_to_owned()?.into()))
    }

    /// Whether the stream takes a short write without blocking, now or within `wait`. A stream whose reader is gone has
    /// room: writing to it fails at once.
    pub fn has_room(&self, wait: Duration) -> bool {
        let until = Instant::now() + wait;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(&self.0, PollFlags::OUT)], Some(&left)) {
                Err(Errno::INTR) => {}
                result => return result.is_ok_and(|ready| ready > 0),
            }
        }
    }

    /// Blocks while the stream takes nothing.
    pub fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        (&self.0).write_all(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::streams::SHORT;

    #[test]
    fn a_pipe_has_room_until_it_is_full_and_again_when_its_reader_is_gone() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let output = Output::of(&writer).unwrap();
        let mut written = 0;
        while output.has_room(Duration::ZERO) {
            output.write_all(&[b'x'; SHORT]).unwrap();
            written += SHORT;
        }
        assert!(written >= SHORT, "{written}");
        drop(reader);
        assert!(output.has_room(Duration::ZERO));
        assert_eq!(output.write_all(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
