//! Identities of files by their resolved paths. No notifications of changed files: a wait ends by time or by a stop.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, SystemTime};

use crate::files::Woken;

/// The hash of the path with all links resolved. A file that replaces another at the same path has the same identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity(u64);

pub fn identity(path: &Path, _: &Metadata) -> Identity {
    let mut hasher = DefaultHasher::new();
    fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf()).hash(&mut hasher);
    Identity(hasher.finish())
}

/// The platform has no better time than that of the last modification.
pub fn changed(metadata: &Metadata) -> SystemTime {
    metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH)
}

pub struct Watcher {
    stopped: Receiver<()>,
}

/// Ends a wait from another thread.
#[derive(Debug)]
pub struct Waker(Sender<()>);

impl Waker {
    pub fn stop(&self) {
        // Fails only when the watcher is gone.
        let _ = self.0.send(());
    }
}

impl Watcher {
    pub fn new(_notifications: bool) -> io::Result<(Watcher, Waker)> {
        let (stop, stopped) = mpsc::channel();
        Ok((Watcher { stopped }, Waker(stop)))
    }

    /// Watches nothing and reports no error: this platform relies on the periodic look.
    pub fn follow(&mut self, _: &BTreeSet<PathBuf>, _: &mut dyn FnMut(&Path, &io::Error)) -> bool {
        false
    }

    pub fn wait(&mut self, time: Duration) -> Woken {
        match self.stopped.recv_timeout(time) {
            Err(RecvTimeoutError::Timeout) => Woken::TimedOut,
            Ok(()) | Err(RecvTimeoutError::Disconnected) => Woken::Stopped,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_by_time_or_by_a_stop() {
        let (mut watcher, waker) = Watcher::new(true).unwrap();
        assert!(!watcher.follow(&BTreeSet::from([std::env::temp_dir()]), &mut |_, _| {}));
        assert_eq!(watcher.wait(Duration::ZERO), Woken::TimedOut);
        waker.stop();
        assert_eq!(watcher.wait(Duration::from_secs(60)), Woken::Stopped);
    }
}
