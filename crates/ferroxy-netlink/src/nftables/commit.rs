//! The kernel's answers to a batch: which operations it refused, and why. Reads no socket.

use std::fmt;

use crate::ack::Ack;
use crate::codec::{Message, Messages};
use crate::error::Error;

use super::batch::Batch;
use super::decode::CompatRule;
use super::wire;

/// The cost of a successful commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipt {
    pub messages: usize,
    pub bytes: usize,
}

/// A failed commit: nothing of the batch took effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitError {
    /// The refused operations. The kernel checks the whole batch, but stops at the first bad element of each message.
    pub failures: Vec<Failure>,
    /// An error that concerns the whole batch, or the socket; `failures` may then be incomplete.
    pub cause: Option<Error>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The caller's tag, if the kernel's answer identifies it.
    pub tag: Option<u32>,
    pub error: Error,
}

/// The kernel's answers to one batch, as they come in.
#[derive(Default)]
pub(super) struct Answers {
    acknowledged: bool,
    /// The tags of rules that were to be echoed, and their handles.
    made: Vec<(u32, u64)>,
    failures: Vec<Failure>,
    cause: Option<Error>,
}

impl Answers {
    pub(super) fn read(&mut self, batch: &Batch, bytes: &[u8], size: impl Fn() -> String) {
        for message in Messages::new(bytes) {
            match message.map(|message| (Ack::from_message(&message), message)) {
                Ok((None, message)) => self.made.extend(read_made(batch, &message)),
                Ok((Some(Ok(ack)), _)) => self.judge(batch, &ack, &size),
                Ok((Some(Err(found)), _)) | Err(found) => {
                    self.trouble(Error::malformed("commit", size(), found))
                }
            }
        }
    }

    fn judge(&mut self, batch: &Batch, ack: &Ack, size: impl Fn() -> String) {
        let Some(errno) = ack.errno else {
            self.acknowledged |= ack.sequence == batch.last_sequence();
            return;
        };
        match batch.explain(ack, errno) {
            Some(failure) => self.failures.push(failure),
            // About the opening bracket: no permission, no memory, or the commit itself failed.
            None => self.trouble(Error::refused("commit", size(), errno).explained(ack.words.clone())),
        }
    }

    /// Keeps the first error: those that follow are mostly consequences.
    pub(super) fn trouble(&mut self, error: Error) {
        self.cause.get_or_insert(error);
    }

    /// The handles of the rules that were to be echoed.
    pub(super) fn conclude(mut self, size: impl Fn() -> String) -> Result<Vec<(u32, u64)>, CommitError> {
        if self.failures.is_empty() && self.cause.is_none() {
            if self.acknowledged {
                return Ok(self.made);
            }
            self.trouble(Error::unanswered("commit", size()));
        }
        Err(CommitError { failures: self.failures, cause: self.cause })
    }
}

/// With NLM_F_ECHO, the kernel sends a new rule back to the requesting socket, with the request's sequence number.
fn read_made(batch: &Batch, message: &Message<'_>) -> Option<(u32, u64)> {
    if message.kind != wire::message::NEWRULE {
        return None;
    }
    let tag = batch.tag_of(message.sequence)?;
    CompatRule::read(message).ok().map(|rule| (tag, rule.handle))
}

impl CommitError {
    pub(super) fn caused_by(error: Error) -> Self {
        Self { failures: Vec::new(), cause: Some(error) }
    }
}

impl fmt::Display for CommitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut errors = self.cause.iter().chain(self.failures.iter().map(|failure| &failure.error));
        if let Some(first) = errors.next() {
            write!(f, "{first}")?;
        }
        match errors.count() {
            0 => Ok(()),
            others => write!(f, " (and {others} more)"),
        }
    }
}

impl std::error::Error for CommitError {}
