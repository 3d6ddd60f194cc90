//! CPU profiles of this process: where its threads spend CPU time. In which form they are published is not decided here.

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant, SystemTime};

use crate::system;

/// The CPU time between two samples.
pub const PERIOD: Duration = Duration::from_millis(10);

#[derive(Debug, Clone)]
pub struct Profile {
    pub began: SystemTime,
    pub took: Duration,
    /// Addresses, from the innermost frame to its callers.
    pub stacks: Vec<Vec<u64>>,
}

/// A part of a file that is mapped as code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    pub range: Range<u64>,
    pub offset: u64,
    pub file: String,
}

/// A profile being recorded. There is one at a time; dropping it stops the recording.
#[derive(Debug)]
pub struct Recording {
    sampling: system::profile::Sampling,
    began: SystemTime,
    start: Instant,
}

impl Recording {
    pub fn start() -> io::Result<Recording> {
        let sampling = system::profile::Sampling::start()?;
        #[allow(clippy::disallowed_methods, reason = "a profile states when it was taken")]
        let began = SystemTime::now();
        Ok(Recording { sampling, began, start: Instant::now() })
    }

    pub fn finish(self) -> io::Result<Profile> {
        let took = self.start.elapsed();
        Ok(Profile { began: self.began, took, stacks: self.sampling.finish()? })
    }
}

/// The code of this process.
pub fn mappings() -> Vec<Mapping> {
    system::profile::mappings()
}
