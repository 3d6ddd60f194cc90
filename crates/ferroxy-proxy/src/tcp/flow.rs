//! One direction of a connection: from a source to a sink, until the source ends or one of them fails.
//!
//! Bytes are read into a buffer that all connections of a thread share; only bytes that the sink does not take at once
//! are copied to the flow's own memory. Once a read fills the buffer, bytes are moved by splice where the platform has
//! it.

use std::cell::RefCell;
use std::io;
use std::task::{Context, Poll, ready};

use crate::system::Pipe;
use crate::system::runtime::TcpStream;

/// The size of the shared buffer.
const BUFFER: usize = 64 * 1024;
/// Reads before other connections get their turn.
const ROUNDS: usize = 16;
/// A splice that moves less costs more than a copy.
const SMALL: usize = 16 * 1024;
/// After this many small splices in a row, bytes are copied again.
const SMALL_IN_A_ROW: u8 = 4;

thread_local! {
    static SHARED: RefCell<Box<[u8]>> = RefCell::new(vec![0; BUFFER].into_boxed_slice());
}

#[derive(Debug, Default)]
pub struct Flow {
    /// Bytes that the sink did not take at once.
    waiting: Vec<u8>,
    /// How many bytes of `waiting` the sink has taken.
    taken: usize,
    /// In use while bytes are in it.
    pipe: Option<Pipe>,
    /// Bytes are spliced, not copied.
    is_bulk: bool,
    small: u8,
    may_splice: bool,
    pub state: State,
    /// Bytes moved since the caller last took this number.
    pub moved: u64,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum State {
    #[default]
    Open,
    /// The source has ended, and the sink has everything.
    Drained,
    /// The sink failed: the source's bytes have nowhere to go.
    SinkFailed,
    /// The source failed, so that neither direction can go on.
    SourceFailed,
}

impl Flow {
    /// `first` is sent to the sink before anything from the source.
    pub fn new(first: Vec<u8>, may_splice: bool) -> Flow {
        Flow { waiting: first, may_splice, ..Flow::default() }
    }

    /// Moves bytes until it would block, or until the state is no longer [`State::Open`].
    pub fn poll(
        &mut self,
        context: &mut Context<'_>,
        source: &mut TcpStream,
        sink: &mut TcpStream,
    ) -> Poll<()> {
        if self.state != State::Open {
            return Poll::Ready(());
        }
        for _ in 0..ROUNDS {
            if ready!(self.poll_flush(context, sink)).is_err() {
                self.state = State::SinkFailed;
                return Poll::Ready(());
            }
            let read = if self.is_bulk {
                self.poll_splice(context, source)
            } else {
                self.poll_copy(context, source, sink)
            };
            match ready!(read) {
                Ok(0) => self.state = State::Drained,
                Ok(moved) => self.moved += moved as u64,
                Err(Failed::Source) => self.state = State::SourceFailed,
                Err(Failed::Sink) => self.state = State::SinkFailed,
            }
            if self.state != State::Open {
                return Poll::Ready(());
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Writes until neither memory nor the pipe holds bytes.
    fn poll_flush(&mut self, context: &mut Context<'_>, sink: &mut TcpStream) -> Poll<io::Result<()>> {
        while self.taken < self.waiting.len() {
            let written = ready!(sink.poll_write(context, &self.waiting[self.taken..]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.taken += written;
        }
        if self.taken > 0 {
            (self.waiting, self.taken) = (Vec::new(), 0);
        }
        if let Some(pipe) = &mut self.pipe {
            ready!(pipe.poll_drain(context, sink))?;
        }
        if let Some(pipe) = self.pipe.take() {
            pipe.give_back();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_copy(
        &mut self,
        context: &mut Context<'_>,
        source: &mut TcpStream,
        sink: &mut TcpStream,
    ) -> Poll<Result<usize, Failed>> {
        SHARED.with_borrow_mut(|shared| {
            let length = ready!(source.poll_read(context, shared)).map_err(|_| Failed::Source)?;
            let bytes = &shared[..length];
            self.is_bulk = self.may_splice && bytes.len() == BUFFER;
            let mut written = 0;
            while written < bytes.len() {
                match sink.poll_write(context, &bytes[written..]) {
                    Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Err(Failed::Sink)),
                    Poll::Ready(Ok(more)) => written += more,
                    Poll::Pending => {
                        self.waiting = bytes[written..].to_vec();
                        break;
                    }
                }
            }
            Poll::Ready(Ok(bytes.len()))
        })
    }

    /// Fills a pipe; [`Flow::poll_flush`] drains it.
    fn poll_splice(
        &mut self,
        context: &mut Context<'_>,
        source: &mut TcpStream,
    ) -> Poll<Result<usize, Failed>> {
        let Some(mut pipe) = Pipe::take() else {
            // No pipe is available: the next round copies.
            (self.is_bulk, self.may_splice) = (false, false);
            context.waker().wake_by_ref();
            return Poll::Pending;
        };
        let filled = pipe.poll_fill(context, source);
        if pipe.is_empty() {
            pipe.give_back();
        } else {
            self.pipe = Some(pipe);
        }
        let moved = ready!(filled).map_err(|_| Failed::Source)?;
        self.small = if moved < SMALL { self.small + 1 } else { 0 };
        if self.small == SMALL_IN_A_ROW {
            (self.is_bulk, self.small) = (false, 0);
        }
        Poll::Ready(Ok(moved))
    }
}

/// The side that failed.
enum Failed {
    Source,
    Sink,
}
