//! The body of an answer: all at once, or a stream of chunks that are created while it is sent.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};

use super::contents::Contents;

#[derive(Debug)]
pub enum Body {
    Whole(Contents),
    Stream(Stream),
}

/// The source of chunks; dropped with the connection.
pub trait Chunks: Send + 'static {
    /// The next chunk, and the source of the chunks after it; `None` at the end.
    fn next(self: Box<Self>) -> Making;
}

pub type Making = Pin<Box<dyn Future<Output = Option<(Bytes, Box<dyn Chunks>)>> + Send>>;

pub struct Stream {
    /// `None` at the end.
    making: Option<Making>,
}

impl Body {
    pub fn stream(chunks: Box<dyn Chunks>) -> Body {
        Body::Stream(Stream { making: Some(chunks.next()) })
    }
}

impl<T: Into<Bytes>> From<T> for Body {
    fn from(bytes: T) -> Body {
        Body::Whole(Contents::from(bytes.into()))
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.get_mut() {
            Body::Whole(whole) => Pin::new(whole).poll_frame(context),
            Body::Stream(stream) => stream.poll(context).map(|chunk| chunk.map(|it| Ok(Frame::data(it)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Body::Whole(whole) => whole.is_end_stream(),
            Body::Stream(stream) => stream.making.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Whole(whole) => whole.size_hint(),
            Body::Stream(_) => SizeHint::default(),
        }
    }
}

impl Stream {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let Some(making) = &mut self.making else { return Poll::Ready(None) };
        let made = ready!(making.as_mut().poll(context));
        let (chunk, next) = made.map(|(chunk, next)| (chunk, next.next())).unzip();
        self.making = next;
        Poll::Ready(chunk)
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stream")
    }
}
