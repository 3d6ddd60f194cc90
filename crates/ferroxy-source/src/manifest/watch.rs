//! Follows the manifests: looks at them again when a file changes, and every few seconds in any case. How changes are noticed is
//! the platform's part (`ferroxy_platform::files`). A look costs one `stat` for each file.

use std::io;
use std::path::Path;

use ferroxy_platform::files::{Followed, Follower, Pace, Watched};
use tracing::warn;

use super::source::{Batch, ManifestSource};

/// A thread that follows the manifests. Dropping this ends it.
#[derive(Debug)]
pub struct ManifestWatch {
    _follower: Follower,
}

impl ManifestSource {
    /// Follows the manifests on a thread of its own, and passes on what changed since `open`, as it happens.
    pub fn watch(self, on_change: impl FnMut(Batch) + Send + 'static) -> io::Result<ManifestWatch> {
        self.watch_at(Pace::default(), on_change)
    }

    fn watch_at(
        self,
        pace: Pace,
        on_change: impl FnMut(Batch) + Send + 'static,
    ) -> io::Result<ManifestWatch> {
        let manifests = Manifests { source: self, pace, on_change };
        Ok(ManifestWatch { _follower: Follower::start("manifests", pace, manifests)? })
    }
}

struct Manifests<F> {
    source: ManifestSource,
    pace: Pace,
    on_change: F,
}

impl<F: FnMut(Batch) + Send + 'static> Followed for Manifests<F> {
    fn look(&mut self) -> Watched {
        if let Some(batch) = self.source.refresh() {
            (self.on_change)(batch);
        }
        // The source finds the directories before it reads the files.
        let entry = Some(self.source.path().to_path_buf());
        Watched { entry, directories: self.source.directories().clone() }
    }

    fn cannot_watch(&mut self, path: &Path, error: &io::Error) {
        let seconds = self.pace.look_every.as_secs();
        warn!(path = %path.display(), %error, "cannot watch; changes are seen within {seconds} seconds instead");
    }
}

#[cfg(test)]
mod tests;
