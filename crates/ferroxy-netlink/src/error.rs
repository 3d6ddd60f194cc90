//! The one error of this crate: the operation, the object, and the kernel's answer. Contains no protocol logic.

use std::fmt;

use crate::codec::Malformed;

/// An error number of the Linux kernel: rustix' type on Linux, and on other platforms a type with the same names.
#[cfg(not(target_os = "linux"))]
pub use crate::errno::Errno;
#[cfg(target_os = "linux")]
pub use rustix::io::Errno;

/// Reads as `cannot add set ferroxy/frontends: Operation not supported (kernel says: …)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// The verb and the kind of thing: `add set`, `list rules`.
    pub operation: &'static str,
    /// The name of the object: `ferroxy/frontends`. Empty if only one such object exists.
    pub object: String,
    pub kind: Kind,
    /// The kernel's number, or the closest one when the error is on our side.
    pub errno: Errno,
    /// The kernel's message (extended acknowledgement), or ours when the error is on our side.
    pub explanation: Option<String>,
}

/// The class of the error, so that callers need not guess from `errno`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The kernel (or a system call) refused.
    Refused,
    /// ENOBUFS while receiving: the receive queue overflowed and messages were dropped.
    Lost,
    /// The kernel's bytes do not follow the protocol as we know it.
    Malformed,
    /// A dump was interrupted by changes on every attempt.
    Unstable,
    /// No answer came.
    Unanswered,
}

impl Error {
    /// A system call or the kernel refused; ENOBUFS from `recv` should be [`Error::lost`] instead.
    pub fn refused(operation: &'static str, object: impl Into<String>, errno: Errno) -> Self {
        Self { operation, object: object.into(), kind: Kind::Refused, errno, explanation: None }
    }

    pub fn lost(operation: &'static str, object: impl Into<String>) -> Self {
        Self {
            operation,
            object: object.into(),
            kind: Kind::Lost,
            errno: Errno::NOBUFS,
            explanation: Some("notifications were lost".into()),
        }
    }

    pub fn malformed(operation: &'static str, object: impl Into<String>, found: Malformed) -> Self {
        Self {
            operation,
            object: object.into(),
            kind: Kind::Malformed,
            errno: Errno::BADMSG,
            explanation: Some(found.to_string()),
        }
    }

    pub fn unstable(operation: &'static str, object: impl Into<String>) -> Self {
        Self {
            operation,
            object: object.into(),
            kind: Kind::Unstable,
            errno: Errno::AGAIN,
            explanation: Some("it kept changing while being read".into()),
        }
    }

    pub fn unanswered(operation: &'static str, object: impl Into<String>) -> Self {
        Self {
            operation,
            object: object.into(),
            kind: Kind::Unanswered,
            errno: Errno::TIMEDOUT,
            explanation: Some("the kernel did not answer".into()),
        }
    }

    /// The reason without operation and object: `Operation not supported (kernel says: …)`.
    pub fn reason(&self) -> String {
        let errno = Words(self.errno);
        match (&self.explanation, self.kind) {
            (Some(words), Kind::Refused) => format!("{errno} (kernel says: {words})"),
            (Some(words), _) => format!("{errno} ({words})"),
            (None, _) => errno.to_string(),
        }
    }

    #[must_use]
    pub fn explained(mut self, words: Option<String>) -> Self {
        self.explanation = words;
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}", self.operation)?;
        if !self.object.is_empty() {
            write!(f, " {}", self.object)?;
        }
        write!(f, ": {}", self.reason())
    }
}

impl std::error::Error for Error {}

/// The text of an errno, without the "(os error 95)" that the standard library adds.
struct Words(Errno);

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        f.write_str(text.split(" (os error").next().unwrap_or(&text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_as_a_sentence() {
        let error = Error::refused("add set", "ferroxy/frontends", Errno::OPNOTSUPP);
        assert_eq!(error.to_string(), "cannot add set ferroxy/frontends: Operation not supported");
        let error = error.explained(Some("set type unknown".into()));
        assert_eq!(
            error.to_string(),
            "cannot add set ferroxy/frontends: Operation not supported (kernel says: set type unknown)"
        );
        assert_eq!(
            Error::lost("watch nftables", "").to_string(),
            "cannot watch nftables: No buffer space available (notifications were lost)"
        );
    }
}
