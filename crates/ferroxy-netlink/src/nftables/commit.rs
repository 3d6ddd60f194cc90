//! The kernel's answers to a batch: which operations it refused, and why. Reads no socket.

use std::fmt;

use crate::ack::Ack;
use crate::codec::Messages;
use crate::error::Error;

use super::batch::Batch;

/// What a successful commit cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipt {
    pub messages: usize,
    pub bytes: usize,
}

/// Nothing of the batch took effect.
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
    failures: Vec<Failure>,
    cause: Option<Error>,
}

impl Answers {
    pub(super) fn read(&mut self, batch: &Batch, bytes: &[u8], size: impl Fn() -> String) {
        for message in Messages::new(bytes) {
            match message.map(|message| Ack::from_message(&message)) {
                Ok(None) => {}
                Ok(Some(Ok(ack))) => self.judge(batch, &ack, &size),
                Ok(Some(Err(found))) | Err(found) => self.trouble(Error::malformed("commit", size(), found)),
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

    pub(super) fn conclude(mut self, size: impl Fn() -> String) -> Result<(), CommitError> {
        if self.failures.is_empty() && self.cause.is_none() {
            if self.acknowledged {
                return Ok(());
            }
            self.trouble(Error::unanswered("commit", size()));
        }
        Err(CommitError { failures: self.failures, cause: self.cause })
    }
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
