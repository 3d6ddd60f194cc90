//! Commands of `ferroxy` with the arguments of `run`, for the tests that play the conformance corpus.

use std::ffi::OsString;

/// A command, with the arguments of `run`.
pub fn command(word: &str, arguments: &[OsString]) -> Vec<OsString> {
    std::iter::once(word.into()).chain(arguments.iter().cloned()).collect()
}
