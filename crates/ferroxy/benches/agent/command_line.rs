//! The common part of the command lines of bench-agent and bench-fleet. An error about wrong input is one line.

use std::path::Path;

use clap::{Parser, ValueEnum};
use ferroxy::flags::one_line;
use ferroxy_lab::api::Assets;

use super::Result;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    Text,
    Json,
}

/// The options that this process was started with. Help ends the process.
pub fn of_process<T: Parser>() -> Result<T> {
    match T::try_parse() {
        Ok(options) => Ok(options),
        Err(error) if error.use_stderr() => Err(one_line(&error).into()),
        Err(help) => help.exit(),
    }
}

/// The same from words, for tests.
#[allow(dead_code, reason = "main has a command line")]
pub fn of_words<T: Parser>(name: &str, words: &[&str]) -> Result<T> {
    let words = std::iter::once(&name).chain(words);
    T::try_parse_from(words).map_err(|error| one_line(&error).into())
}

/// Checks that the binaries to measure, and the API server, exist.
pub fn check(ours: &Path, peer: Option<&Path>, assets: Option<&Path>) -> Result<()> {
    if let Some(missing) = [Some(ours), peer].into_iter().flatten().find(|program| !program.is_file()) {
        return Err(format!("{}: no such program", missing.display()).into());
    }
    if let Some(folder) = assets {
        Assets::of(folder)?;
    }
    Ok(())
}

/// The binaries to measure, with their names.
pub fn binaries<'p>(ours: &'p Path, peer: Option<&'p Path>) -> Vec<(&'static str, &'p Path)> {
    std::iter::once(("ours", ours)).chain(peer.map(|peer| ("peer", peer))).collect()
}
