//! The errors of running the host's tools; each names the tool. Whether to try again is decided elsewhere.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use ferroxy_dataplane::{Failure, FailureKind};
use rustix::io::Errno;

use super::{Overrun, Variant};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{tool} is not installed: looked in {searched}")]
    Missing { tool: String, searched: String },

    #[error("{tool} --version prints {said:?}, which is not an iptables version")]
    UnknownVersion { tool: String, said: String },

    /// The two would work on different rules.
    #[error("{save} is of the {save_variant} variant but {restore} of the {restore_variant} variant")]
    MixedVariants { save: String, save_variant: Variant, restore: String, restore_variant: Variant },

    #[error("cannot run {tool}: {source}")]
    Run { tool: String, source: io::Error },

    #[error("{tool} {overrun} {limit:?} and was killed")]
    TimedOut { tool: String, limit: Duration, overrun: Overrun },

    #[error("{tool} printed more than {limit} bytes and was killed")]
    TooMuchOutput { tool: String, limit: usize },

    #[error("another program held the xtables lock during {runs} runs of {tool}, {waited:?} in all")]
    Locked { tool: String, runs: u32, waited: Duration },

    /// Legacy tools refuse to work without it.
    #[error("cannot open the xtables lock file {}: {source} (in a container, mount the host's file)", path.display())]
    LockFile { path: PathBuf, source: io::Error },

    #[error(transparent)]
    Refused(Box<Refusal>),

    #[error("{tool} failed with status {status}: {said}")]
    Failed { tool: String, status: i32, said: String },

    #[error("cannot read the setting {key}: {source}")]
    ReadSetting { key: &'static str, source: io::Error },

    #[error("cannot set {key} to {value}: {source}")]
    WriteSetting { key: &'static str, value: &'static str, source: io::Error },

    #[error(transparent)]
    Kernel(#[from] ferroxy_netlink::Error),
}

impl Error {
    /// The process lacks privileges.
    pub fn is_not_permitted(&self) -> bool {
        let said = match self {
            Error::Failed { said, .. } => said,
            Error::Refused(refusal) => &refusal.said,
            Error::Kernel(error) => return matches!(error.errno, Errno::PERM | Errno::ACCESS),
            _ => return false,
        };
        said.contains("ermission denied") || said.contains("not permitted")
    }
}

/// Drift is never suggested: after an error the next attempt reads the kernel anyway.
impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match &error {
            error if error.is_not_permitted() => Failure::new(
                FailureKind::NotPermitted,
                format!("{error}; run as root, or with CAP_NET_ADMIN and CAP_NET_RAW"),
            ),
            Error::Missing { .. } | Error::UnknownVersion { .. } | Error::MixedVariants { .. } => {
                Failure::unsupported(error)
            }
            _ => Failure::other(error),
        }
    }
}

/// A restore that the tool or the kernel did not accept. Commits before the refused line are in force, the rest is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub tool: String,
    pub status: i32,
    /// What the tool said, without its usage hints.
    pub said: String,
    /// The refused line of the input. `None` if it is unknown: legacy tools give a table to the kernel as a whole, and the
    /// kernel refuses all of it.
    pub line: Option<String>,
    /// The chain of that line, by which the caller finds the Service.
    pub chain: Option<String>,
}

impl Refusal {
    /// Whether these words are in the line that was refused.
    pub fn is_about(&self, words: &str) -> bool {
        self.line.as_ref().is_some_and(|line| line.contains(words))
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} refused (status {}): {}", self.tool, self.status, self.said)?;
        self.line.as_ref().map_or(Ok(()), |line| write!(f, ", about {line:?}"))
    }
}

impl std::error::Error for Refusal {}
