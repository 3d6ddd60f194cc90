//! Errors of the lab itself. The answer to a *probe* (refused, timed out) is not an error: see `probe`.

use std::io;
use std::path::{Path, PathBuf};

use ipnet::IpNet;

pub type Result<T> = std::result::Result<T, LabError>;

#[derive(Debug, thiserror::Error)]
pub enum LabError {
    #[error("{action}: {source}")]
    System { action: String, source: io::Error },
    #[error(transparent)]
    Netlink(#[from] ferroxy_netlink::Error),
    #[error("the lab has no {kind} named {name:?}")]
    Unknown { kind: &'static str, name: String },
    #[error("the lab already has a namespace named {0:?}")]
    NameTaken(String),
    #[error("{via} has no address of the family of {to}")]
    NoGateway { via: String, to: IpNet },
    #[error("timed out waiting for {0}")]
    WaitedInVain(String),
    #[error("{0:?} is not an address with a prefix length")]
    NotAPrefix(String),
    #[error("{path}: {source}", path = path.display())]
    File { path: PathBuf, source: io::Error },
    /// A request of a test to its API server that is impossible.
    #[cfg(feature = "api")]
    #[error("{0}")]
    Api(String),
    #[cfg(feature = "api")]
    #[error("an object for the API server: {0}")]
    Object(#[from] crate::api::ObjectError),
    #[cfg(feature = "api")]
    #[error(transparent)]
    Certificate(#[from] crate::api::CertificateError),
    #[cfg(feature = "corpus")]
    #[error("the case {case} cannot be played: {why}")]
    Case { case: String, why: String },
    #[error("listed as a difference from the recording, and is none: {0}")]
    NoDifference(String),
    #[error("{path}: {source}", path = path.display())]
    Json { path: PathBuf, source: serde_json::Error },
}

impl LabError {
    pub(crate) fn system(action: impl Into<String>, source: impl Into<io::Error>) -> LabError {
        LabError::System { action: action.into(), source: source.into() }
    }

    pub(crate) fn unknown(kind: &'static str, name: &str) -> LabError {
        LabError::Unknown { kind, name: name.to_owned() }
    }

    pub(crate) fn file(path: &Path, source: io::Error) -> LabError {
        LabError::File { path: path.to_path_buf(), source }
    }
}
