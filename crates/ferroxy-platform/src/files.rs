//! Follows files on a thread: looks at them again soon after the system reports a change, and every few seconds in any
//! case. It does not interpret their content.
//!
//! Directories are watched, not files: replacing a file by a rename gives it a new inode, and a ConfigMap volume swaps a
//! link to a directory. The periodic look finds what notifications miss: network file systems, links through directories
//! that are not watched, an exhausted limit of watches, a platform without notifications.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use crate::system;
use crate::system::files::{Waker, Watcher};

/// Which file or directory a path leads to: equal for all paths that lead to the same one.
pub use crate::system::files::Identity;

/// Changes come in bursts: wait for this much silence,
const QUIET: Duration = Duration::from_millis(50);
/// but no longer than this.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often to look in a row because there are new directories to watch. It bounds the work for a directory that is
/// replaced faster than we look; the next event continues.
const LOOKS_IN_A_ROW: usize = 8;

/// What a [`Follower`] follows.
pub trait Followed: Send + 'static {
    /// Looks at the files, and returns what to watch until the next look. Called once at the start.
    ///
    /// Find out what to watch first and read the files after that. Then a directory that goes away in between is noticed,
    /// because it cannot be watched.
    fn look(&mut self) -> Watched;

    /// Changes of this path are not reported, only found by the periodic look. Called once at most.
    fn cannot_watch(&mut self, path: &Path, error: &io::Error);
}

/// What to watch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Watched {
    /// The path that is followed, if it may be replaced as a whole: its directory is watched for this name only.
    pub entry: Option<PathBuf>,
    /// Directories, with all links resolved, in which every entry matters.
    pub directories: BTreeSet<PathBuf>,
}

/// How often to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Look this often without a notification.
    pub look_every: Duration,
    /// Whether to use the system's notifications at all.
    pub notifications: bool,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { look_every: Duration::from_secs(10), notifications: true }
    }
}

/// A thread that follows files. Dropping this ends it.
#[derive(Debug)]
pub struct Follower {
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Follower {
    /// `name` is the name of the thread.
    pub fn start(name: &str, pace: Pace, followed: impl Followed) -> io::Result<Follower> {
        let (watcher, waker) = Watcher::new(pace.notifications)?;
        let following = Following { followed, watcher, pace, watched: Watched::default(), complained: false };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || following.run())?;
        Ok(Follower { waker, thread: Some(thread) })
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.waker.stop();
        // Fails only when the thread panicked, which has been reported.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The path with its directory resolved but its own name kept, even if that is a link: a watch of the directory reports
/// changes under this path. `None` when the directory does not exist.
pub fn entry_of(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Some(fs::canonicalize(parent).ok()?.join(name))
}

/// `metadata` is that of `path`.
pub fn identity(path: &Path, metadata: &Metadata) -> Identity {
    system::files::identity(path, metadata)
}

/// When the content or the attributes changed last. Programs that copy files set the modification time back, but not
/// this time, where the platform has it.
pub fn changed(metadata: &Metadata) -> SystemTime {
    system::files::changed(metadata)
}

/// Why a wait ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// Something happened to these paths. Without paths: something happened, but it is not known where.
    #[allow(dead_code, reason = "a platform without notifications never makes it")]
    Changed(Vec<PathBuf>),
    TimedOut,
    Stopped,
}

struct Following<F> {
    followed: F,
    watcher: Watcher,
    pace: Pace,
    watched: Watched,
    complained: bool,
}

impl<F: Followed> Following<F> {
    fn run(mut self) {
        loop {
            self.look();
            if self.wait().is_none() {
                return;
            }
        }
    }

    /// Looks until no new watch begins: changes in a directory before its watch began were not reported.
    fn look(&mut self) {
        for _ in 0..LOOKS_IN_A_ROW {
            self.watched = self.followed.look();
            // Resolved here once, because events carry resolved paths.
            self.watched.entry = self.watched.entry.as_deref().and_then(entry_of);
            if !self.watch() {
                return;
            }
        }
    }

    /// `true`: something may have happened unnoticed, before a watch began.
    fn watch(&mut self) -> bool {
        let parent = self.watched.entry.as_deref().and_then(Path::parent).map(Path::to_path_buf);
        let directories = self.watched.directories.iter().cloned().chain(parent).collect();
        let (followed, complained) = (&mut self.followed, &mut self.complained);
        self.watcher.follow(&directories, &mut |path, error| {
            if !std::mem::replace(complained, true) {
                followed.cannot_watch(path, error);
            }
        })
    }

    /// Waits until it is time to look. `None`: it is time to end.
    fn wait(&mut self) -> Option<()> {
        let next_look = Instant::now() + self.pace.look_every;
        loop {
            match self.watcher.wait(next_look.saturating_duration_since(Instant::now())) {
                Woken::Changed(paths) if self.concerns_us(&paths) => return self.settle(),
                Woken::Changed(_) => {}
                Woken::TimedOut => return Some(()),
                Woken::Stopped => return None,
            }
        }
    }

    fn settle(&mut self) -> Option<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.watcher.wait(QUIET.min(left)) {
                Woken::Changed(_) if left.is_zero() => return Some(()),
                Woken::Changed(_) => {}
                Woken::TimedOut => return Some(()),
                Woken::Stopped => return None,
            }
        }
    }

    /// The directory that holds the entry may be a busy one (`/tmp`): its other entries do not matter.
    fn concerns_us(&self, paths: &[PathBuf]) -> bool {
        let Watched { entry, directories } = &self.watched;
        let inside = |path: &Path| path.parent().is_some_and(|parent| directories.contains(parent));
        let is_entry =
            |path: &Path| entry.as_deref().is_some_and(|entry| path == entry || Some(path) == entry.parent());
        let concerns = |path: &PathBuf| inside(path) || directories.contains(path) || is_entry(path);
        paths.is_empty() || paths.iter().any(concerns)
    }
}

// With links, and notifications that not every platform has.
#[cfg(unix)]
#[cfg(test)]
mod tests;
