//! Pipes for splice: bytes move from one socket to another inside the kernel. Pipes are pooled for each thread, and a
//! connection holds one only while bytes are in it.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll, ready};

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

use super::runtime::TcpStream;

/// What to ask for. A process without privileges gets less once it has many pipes; then it takes more calls.
const SIZE: usize = 1 << 20;

/// More are closed: a thread needs one at a time, unless receivers are slow.
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
    /// An empty pipe; `None` if there is none to be had: then the caller copies.
    pub fn take() -> Option<Pipe> {
        if let Some(pipe) = POOL.with_borrow_mut(Vec::pop) {
            return Some(pipe);
        }
        let (output, input) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).ok()?;
        // The size that it has is enough to work.
        let _ = fcntl_setpipe_size(&input, SIZE);
        Some(Pipe { input, output, length: 0 })
    }

    /// Back to the pool. With bytes in it, it is closed instead.
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

    /// Moves what has arrived into the pipe, which must be empty: "would block" can then only mean the socket. 0 at its end.
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
