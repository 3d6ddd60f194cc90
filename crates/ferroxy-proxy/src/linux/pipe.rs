//! Pipes for splice: bytes move from one socket to another inside the kernel. Pipes are pooled for each thread, and a
//! connection holds one only while bytes are in it.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll, ready};

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

use super::runtime::TcpStream;

/// The requested size. A process without privileges gets smaller pipes once it has many; bytes then take more calls.
const SIZE: usize = 1 << 20;

/// Further pipes are closed: a thread needs one at a time, unless receivers are slow.
const POOLED: usize = 64;

thread_local! {
    static POOL: RefCell<Vec<Pipe>> = const { RefCell::new(Vec::new()) };
}

#[derive(Debug)]
pub struct Pipe {
    input: OwnedFd,
    output: OwnedFd,
    length: usize,
}

impl Pipe {
    /// Returns an empty pipe; `None` if none can be created: then the caller copies bytes.
    pub fn take() -> Option<Pipe> {
        if let Some(pipe) = POOL.with_borrow_mut(Vec::pop) {
            return Some(pipe);
        }
        let (output, input) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).ok()?;
        // A pipe of the default size is enough to work.
        let _ = fcntl_setpipe_size(&input, SIZE);
        Some(Pipe { input, output, length: 0 })
    }

    /// Returns an empty pipe to the pool. A pipe with bytes in it is closed instead.
    pub fn give_back(self) {
        POOL.with_borrow_mut(|pool| {
            if self.length == 0 && pool.len() < POOLED {
                pool.push(self);
            }
        });
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Moves available bytes into the pipe. The pipe must be empty, so that "would block" can only come from the
    /// socket. Returns 0 at the end of the stream.
    pub fn poll_fill(&mut self, context: &mut Context<'_>, source: &TcpStream) -> Poll<io::Result<usize>> {
        let moved = ready!(source.poll_read_io(context, || {
            let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
            Ok(splice(source, None, &self.input, None, SIZE, flags)?)
        }))?;
        self.length += moved;
        Poll::Ready(Ok(moved))
    }

    /// Moves bytes out of the pipe until it is empty.
    pub fn poll_drain(&mut self, context: &mut Context<'_>, sink: &TcpStream) -> Poll<io::Result<()>> {
        while self.length > 0 {
            let moved = ready!(sink.poll_write_io(context, || {
                let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
                Ok(splice(&self.output, None, sink, None, self.length, flags)?)
            }))?;
            if moved == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.length -= moved.min(self.length);
        }
        Poll::Ready(Ok(()))
    }
}
