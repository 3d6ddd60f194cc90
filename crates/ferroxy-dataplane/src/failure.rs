//! Why an attempt could not be made. Every dataplane's own error becomes one of these.

use std::error::Error;
use std::fmt;

/// Nothing of the failing part is in force.
#[derive(Debug)]
pub struct Failure {
    pub kind: FailureKind,
    cause: Box<dyn Error + Send + Sync>,
}

/// What a caller can do about a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// Try again later.
    Other,
    /// The state in force differs from what the dataplane recorded: verify, then try again.
    Drift,
    /// The process lacks a privilege.
    NotPermitted,
    /// The host lacks something that the dataplane needs.
    Unsupported,
}

impl Failure {
    pub fn new(kind: FailureKind, cause: impl Into<Box<dyn Error + Send + Sync>>) -> Failure {
        Failure { kind, cause: cause.into() }
    }

    pub fn other(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Failure {
        Failure::new(FailureKind::Other, cause)
    }

    pub fn unsupported(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Failure {
        Failure::new(FailureKind::Unsupported, cause)
    }

    pub fn is_drift(&self) -> bool {
        self.kind == FailureKind::Drift
    }
}

/// The whole chain of causes, in one line.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.cause)?;
        let mut source = self.cause.source();
        while let Some(cause) = source {
            write!(f, ": {cause}")?;
            source = cause.source();
        }
        Ok(())
    }
}

/// Without `source`: the text already contains the causes.
impl Error for Failure {}
