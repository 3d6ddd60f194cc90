//! The engine's error: what was attempted, on which object, and why it failed.

use std::io;

#[derive(Debug, thiserror::Error)]
#[error("{operation} {object}: {source}")]
pub struct ProxyError {
    /// "listen on", "start a thread".
    pub operation: &'static str,
    /// The address, path or key it is about.
    pub object: String,
    pub source: io::Error,
}

impl ProxyError {
    pub(crate) fn new(operation: &'static str, object: impl ToString, source: io::Error) -> ProxyError {
        ProxyError { operation, object: object.to_string(), source }
    }
}
