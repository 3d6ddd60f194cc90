//! The one error of the system calls: the operation, the object, and the kernel's answer.

use std::fmt;

use rustix::io::Errno;

/// Reads as `cannot create map frontends: Operation not permitted`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    pub operation: &'static str,
    pub object: String,
    pub errno: Errno,
    /// The last lines of the verifier's log.
    pub explanation: Option<String>,
}

impl Error {
    pub fn new(operation: &'static str, object: impl Into<String>, errno: Errno) -> Error {
        Error { operation, object: object.into(), errno, explanation: None }
    }

    /// The map has no room for another element.
    pub fn is_full(&self) -> bool {
        self.errno == Errno::TOOBIG
    }

    pub fn is_not_found(&self) -> bool {
        self.errno == Errno::NOENT
    }

    pub fn is_not_permitted(&self) -> bool {
        matches!(self.errno, Errno::PERM | Errno::ACCESS)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = self.errno.to_string();
        let words = words.split(" (os error").next().unwrap_or(&words);
        write!(f, "cannot {} {}: {words}", self.operation, self.object)?;
        match &self.explanation {
            Some(explanation) => write!(f, " (kernel says: {explanation})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_as_a_sentence() {
        let mut error = Error::new("load program", "connect4", Errno::INVAL);
        assert_eq!(error.to_string(), "cannot load program connect4: Invalid argument");
        error.explanation = Some("R1 !read_ok".into());
        assert!(error.to_string().ends_with("(kernel says: R1 !read_ok)"));
    }
}
