//! The content of one file, whenever it changes: written in place, replaced by a rename, or reached through links that
//! change, as in a ConfigMap volume. How changes are noticed is the platform's part (`ferroxy_platform::files`); what
//! the content means is not decided here.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use ferroxy_platform::files::{self, Followed, Pace, Watched};
use tracing::warn;

pub use ferroxy_platform::files::Follower;

/// A file that is being written is read again until it has not changed for this long,
const QUIET: Duration = Duration::from_millis(50);
/// but no longer than this.
const PATIENCE: Duration = Duration::from_secs(1);

/// Passes on the content of the file now and after every change, or the reason why it cannot be read.
pub(super) fn start(
    path: PathBuf,
    on_content: impl FnMut(Result<String, String>) + Send + 'static,
) -> io::Result<Follower> {
    start_at(Pace::default(), path, on_content)
}

fn start_at(
    pace: Pace,
    path: PathBuf,
    on_content: impl FnMut(Result<String, String>) + Send + 'static,
) -> io::Result<Follower> {
    Follower::start("config", pace, Content { path, pace, last: None, on_content })
}

struct Content<F> {
    path: PathBuf,
    pace: Pace,
    last: Option<Result<String, String>>,
    on_content: F,
}

impl<F: FnMut(Result<String, String>) + Send + 'static> Followed for Content<F> {
    fn look(&mut self) -> Watched {
        let watched = self.watched();
        let content = self.read();
        if self.last.as_ref() != Some(&content) {
            let content = self.settle(content);
            if self.last.as_ref() != Some(&content) {
                self.last = Some(content.clone());
                (self.on_content)(content);
            }
        }
        watched
    }

    fn cannot_watch(&mut self, path: &Path, error: &io::Error) {
        let seconds = self.pace.look_every.as_secs();
        let path = path.display();
        warn!("cannot watch {path}: {error}; changes of the configuration are seen within {seconds} seconds");
    }
}

impl<F> Content<F> {
    /// The directory that holds the path, and the one that its links lead to.
    fn watched(&self) -> Watched {
        let places = [files::entry_of(&self.path), fs::canonicalize(&self.path).ok()];
        let parents = places.iter().flatten().filter_map(|place| place.parent());
        Watched { entry: Some(self.path.clone()), directories: parents.map(Path::to_path_buf).collect() }
    }

    /// Reads again until nothing changes any more: the file may be half written.
    fn settle(&self, mut content: Result<String, String>) -> Result<String, String> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            thread::sleep(QUIET);
            let again = self.read();
            if again == content {
                break;
            }
            content = again;
        }
        content
    }

    fn read(&self) -> Result<String, String> {
        fs::read_to_string(&self.path).map_err(|error| format!("{}: {error}", self.path.display()))
    }
}

#[cfg(test)]
mod tests;
