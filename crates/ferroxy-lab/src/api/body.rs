//! The body of an answer: complete, or sent in pieces by a separate task, with the faults that affect bodies.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

use super::fault::{Fault, Faults};
use super::query::Request;

/// Few: a client that does not read must block its sender instead of filling memory.
const PIECES_UNDER_WAY: usize = 4;

#[derive(Debug)]
pub(super) enum AnswerBody {
    Whole(Option<Bytes>),
    Pieces(mpsc::Receiver<Result<Bytes, Cut>>),
}

/// Makes hyper drop the connection with the answer unfinished.
#[derive(Debug, thiserror::Error)]
#[error("the connection is cut here on purpose")]
pub(super) struct Cut;

/// The client has disconnected, or the connection was cut: sending ends.
#[derive(Debug)]
pub(super) struct Ended;

/// The sender of the pieces of a body.
#[derive(Debug)]
pub(super) struct Pieces {
    to: mpsc::Sender<Result<Bytes, Cut>>,
    until_cut: Option<usize>,
    trickle: Option<(usize, Duration)>,
}

/// A body in pieces for this request, with the faults in force.
pub(super) fn in_pieces(request: &Request, faults: &Faults) -> (Pieces, AnswerBody) {
    let (to, pieces) = mpsc::channel(PIECES_UNDER_WAY);
    let until_cut = faults.strike(request.kind, request.verb, |fault| match fault {
        Fault::CutAfter { bytes } => Some(*bytes),
        _ => None,
    });
    let trickle = faults.strike(request.kind, request.verb, |fault| match fault {
        Fault::Trickle { bytes, every } => Some(((*bytes).max(1), *every)),
        _ => None,
    });
    (Pieces { to, until_cut, trickle }, AnswerBody::Pieces(pieces))
}

impl Pieces {
    /// Waits if the client is slow.
    pub async fn send(&mut self, piece: Bytes) -> Result<(), Ended> {
        let Some(left) = self.until_cut else { return self.drip(piece).await };
        if piece.len() < left {
            self.until_cut = Some(left - piece.len());
            return self.drip(piece).await;
        }
        self.drip(piece.slice(..left)).await?;
        self.cut().await
    }

    /// Ends the connection, not only the body.
    pub async fn cut(&mut self) -> Result<(), Ended> {
        // hyper drops what it has not written yet when a body fails: let it write first.
        tokio::task::yield_now().await;
        match self.to.send(Err(Cut)).await {
            Ok(()) | Err(_) => Err(Ended),
        }
    }

    /// Returns when the client has disconnected.
    pub async fn closed(&self) {
        self.to.closed().await;
    }

    async fn drip(&mut self, mut piece: Bytes) -> Result<(), Ended> {
        while let Some((drop, every)) = self.trickle.filter(|(drop, _)| piece.len() > *drop) {
            self.pass_on(piece.split_to(drop)).await?;
            tokio::time::sleep(every).await;
        }
        self.pass_on(piece).await
    }

    async fn pass_on(&mut self, piece: Bytes) -> Result<(), Ended> {
        if piece.is_empty() {
            return Ok(());
        }
        self.to.send(Ok(piece)).await.map_err(|_| Ended)
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        match self.get_mut() {
            AnswerBody::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            AnswerBody::Pieces(pieces) => {
                pieces.poll_recv(context).map(|piece| Some(piece?.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, AnswerBody::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            AnswerBody::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            AnswerBody::Pieces(_) => SizeHint::default(),
        }
    }
}
