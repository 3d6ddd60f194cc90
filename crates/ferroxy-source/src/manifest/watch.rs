//! When to look at the manifests again: soon after inotify reports something, and every few seconds in any case.
//!
//! The slow look is what still works where inotify does not: network file systems, links that lead through
//! directories nobody watches, an exhausted watch limit. It costs one `stat` for each file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use notify::event::{AccessKind, AccessMode, ModifyKind};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tracing::{debug, warn};

use super::source::{Batch, ManifestSource};
use super::tree::{self, Identity};

const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Changes come in bursts: we wait for this much silence,
const QUIET: Duration = Duration::from_millis(50);
/// but no longer than this.
const PATIENCE: Duration = Duration::from_secs(1);

/// A thread that follows the manifests. Dropping this ends it.
#[derive(Debug)]
pub struct ManifestWatch {
    wake: Sender<Wake>,
    thread: Option<JoinHandle<()>>,
}

impl ManifestSource {
    /// Follows the manifests on a thread of its own, and hands over what changed since `open`, as it happens.
    pub fn watch(self, on_change: impl FnMut(Batch) + Send + 'static) -> io::Result<ManifestWatch> {
        self.watch_with(LOOK_EVERY, Watches::new, on_change)
    }

    fn watch_with(
        self,
        look_every: Duration,
        watches: impl FnOnce(Sender<Wake>) -> Watches,
        on_change: impl FnMut(Batch) + Send + 'static,
    ) -> io::Result<ManifestWatch> {
        let (wake, woken) = mpsc::channel();
        let watches = watches(wake.clone());
        let follower = Follower { source: self, watches, woken, look_every, on_change };
        let thread = thread::Builder::new().name("manifests".to_owned()).spawn(move || follower.run())?;
        Ok(ManifestWatch { wake, thread: Some(thread) })
    }
}

impl Drop for ManifestWatch {
    fn drop(&mut self) {
        // Neither can fail in a way that matters: the thread is gone already, or it panicked and said so.
        let _ = self.wake.send(Wake::Stop);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[derive(Debug)]
enum Wake {
    /// Something happened to these paths. None: something happened, and nobody knows where.
    Changed(Vec<PathBuf>),
    Stop,
}

struct Follower<F> {
    source: ManifestSource,
    watches: Watches,
    woken: Receiver<Wake>,
    look_every: Duration,
    on_change: F,
}

/// Why waiting ended.
enum Woken {
    Look,
    Stop,
}

impl<F: FnMut(Batch)> Follower<F> {
    fn run(mut self) {
        loop {
            self.look();
            if let Woken::Stop = self.wait() {
                return;
            }
        }
    }

    /// Looks until no new directory has to be watched: what happened in one before its watch began was not reported.
    fn look(&mut self) {
        // The bound is for a directory that is replaced faster than we look. The next wake-up continues.
        for _ in 0..8 {
            if let Some(batch) = self.source.refresh() {
                (self.on_change)(batch);
            }
            if !self.watches.follow(&self.wanted()) {
                return;
            }
        }
    }

    /// The directories of the manifests, and the one that holds the path itself, which may be replaced.
    fn wanted(&self) -> BTreeSet<PathBuf> {
        let entry = tree::entry_of(self.source.path());
        let parent = entry.as_deref().and_then(Path::parent).map(Path::to_path_buf);
        self.source.directories().iter().cloned().chain(parent).collect()
    }

    fn wait(&mut self) -> Woken {
        let next_look = Instant::now() + self.look_every;
        loop {
            match self.woken.recv_timeout(next_look.saturating_duration_since(Instant::now())) {
                Ok(Wake::Changed(paths)) if self.concerns_us(&paths) => return self.settle(),
                Ok(Wake::Changed(_)) => {}
                Err(RecvTimeoutError::Timeout) => return Woken::Look,
                Ok(Wake::Stop) | Err(RecvTimeoutError::Disconnected) => return Woken::Stop,
            }
        }
    }

    fn settle(&mut self) -> Woken {
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.woken.recv_timeout(QUIET.min(left)) {
                Ok(Wake::Changed(paths)) => {
                    self.watches.renew(&paths);
                    if left.is_zero() {
                        return Woken::Look;
                    }
                }
                Err(RecvTimeoutError::Timeout) => return Woken::Look,
                Ok(Wake::Stop) | Err(RecvTimeoutError::Disconnected) => return Woken::Stop,
            }
        }
    }

    /// The directory that holds the path may be a busy one (`/tmp`): what happens to its other entries is nothing to us.
    fn concerns_us(&mut self, paths: &[PathBuf]) -> bool {
        self.watches.renew(paths);
        let entry = tree::entry_of(self.source.path());
        let directories = self.source.directories();
        let inside = |path: &PathBuf| path.parent().is_some_and(|parent| directories.contains(parent));
        paths.is_empty()
            || paths
                .iter()
                .any(|path| inside(path) || directories.contains(path) || Some(path) == entry.as_ref())
    }
}

/// The inotify watches that are set, by resolved path, each with the directory it was set on.
struct Watches {
    watcher: Option<RecommendedWatcher>,
    set: BTreeMap<PathBuf, Identity>,
    complained: bool,
}

impl Watches {
    fn new(wake: Sender<Wake>) -> Watches {
        let report = move |event: notify::Result<notify::Event>| {
            let paths = match event {
                Ok(event) if is_change(&event.kind) => event.paths,
                Ok(_) => return,
                Err(error) => {
                    debug!(%error, "inotify");
                    Vec::new()
                }
            };
            // Fails only when the follower has ended.
            let _ = wake.send(Wake::Changed(paths));
        };
        let mut watches = Watches { watcher: None, set: BTreeMap::new(), complained: false };
        match notify::recommended_watcher(report) {
            Ok(watcher) => watches.watcher = Some(watcher),
            Err(error) => watches.complain(Path::new(""), &error),
        }
        watches
    }

    /// Makes the set of watches this one. `true`: some are new.
    fn follow(&mut self, wanted: &BTreeSet<PathBuf>) -> bool {
        let dropped: Vec<PathBuf> = self.set.keys().filter(|it| !wanted.contains(*it)).cloned().collect();
        dropped.iter().for_each(|path| self.remove(path));
        let mut new = false;
        for path in wanted {
            let Some(identity) = fs::metadata(path).ok().map(|it| tree::identity(&it)) else { continue };
            if self.set.get(path) != Some(&identity) {
                self.remove(path);
                new |= self.add(path, identity);
            }
        }
        new
    }

    /// An event about a watched directory itself (removed, moved) may mean that the watch went with it, and a new
    /// directory of the same name can even have the same inode number. So it is set again at the next occasion.
    fn renew(&mut self, paths: &[PathBuf]) {
        paths.iter().for_each(|path| self.remove(path));
    }

    fn add(&mut self, path: &Path, identity: Identity) -> bool {
        let Some(watcher) = &mut self.watcher else { return false };
        match watcher.watch(path, RecursiveMode::NonRecursive) {
            Ok(()) => {
                self.set.insert(path.to_path_buf(), identity);
                true
            }
            Err(error) => {
                self.complain(path, &error);
                false
            }
        }
    }

    fn remove(&mut self, path: &Path) {
        if self.set.remove(path).is_some()
            && let Some(watcher) = &mut self.watcher
            && let Err(error) = watcher.unwatch(path)
        {
            // The kernel drops the watch of a removed directory by itself.
            debug!(path = %path.display(), %error, "watch already gone");
        }
    }

    fn complain(&mut self, path: &Path, error: &notify::Error) {
        if !self.complained {
            self.complained = true;
            let seconds = LOOK_EVERY.as_secs();
            warn!(path = %path.display(), %error, "cannot watch; changes are seen within {seconds} seconds instead");
        }
    }
}

/// Our own reading opens and closes files, which is reported too. A write counts once the writer closes the file:
/// before that the file is half written.
fn is_change(kind: &EventKind) -> bool {
    match kind {
        EventKind::Access(access) => *access == AccessKind::Close(AccessMode::Write),
        EventKind::Modify(ModifyKind::Data(_)) => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests;
