//! The content of one file, whenever it changes: written in place, replaced by a rename, or reached through links that
//! change, as in a ConfigMap volume. What the content means is not for here.
//!
//! The directories are watched, not the file: its inode goes with every replacement. A slow look now and then is for
//! where inotify does not reach: network file systems, an exhausted watch limit, links through other directories.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use notify::event::{AccessKind, AccessMode, ModifyKind};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tracing::{debug, warn};

const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Changes come in bursts: we wait for this much silence,
const QUIET: Duration = Duration::from_millis(50);
/// but no longer than this.
const PATIENCE: Duration = Duration::from_secs(1);

/// A thread that follows a file. Dropping this ends it.
#[derive(Debug)]
pub struct Follower {
    wake: Sender<Wake>,
    thread: Option<JoinHandle<()>>,
}

impl Follower {
    /// Hands over what is in the file now, and again whenever that has changed; or why it cannot be read.
    pub(super) fn start(
        path: PathBuf,
        on_content: impl FnMut(Result<String, String>) + Send + 'static,
    ) -> io::Result<Follower> {
        let (wake, woken) = mpsc::channel();
        let watcher = watcher(wake.clone());
        let following = Following { path, watcher, woken, last: None, on_content };
        let thread = thread::Builder::new().name("config".to_owned()).spawn(move || following.run())?;
        Ok(Follower { wake, thread: Some(thread) })
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        // Neither can fail in a way that matters: the thread is gone already, or it panicked and said so.
        let _ = self.wake.send(Wake::Stop);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[derive(Debug)]
enum Wake {
    Changed,
    Stop,
}

/// Without one (an exhausted limit) looking now and then must do.
fn watcher(wake: Sender<Wake>) -> Option<RecommendedWatcher> {
    let report = move |event: notify::Result<notify::Event>| {
        if event.is_ok_and(|event| !is_change(&event.kind)) {
            return;
        }
        // Fails only when the follower has ended.
        let _ = wake.send(Wake::Changed);
    };
    match notify::recommended_watcher(report) {
        Ok(watcher) => Some(watcher),
        Err(error) => {
            warn!("cannot watch the configuration file: {error}; changes are seen within {LOOK_EVERY:?}");
            None
        }
    }
}

/// Our own reading opens and closes the file, which is reported too. A write counts once the writer closes the file:
/// before that it is half written.
fn is_change(kind: &EventKind) -> bool {
    match kind {
        EventKind::Access(access) => *access == AccessKind::Close(AccessMode::Write),
        EventKind::Modify(ModifyKind::Data(_)) => false,
        _ => true,
    }
}

struct Following<F> {
    path: PathBuf,
    watcher: Option<RecommendedWatcher>,
    woken: Receiver<Wake>,
    last: Option<Result<String, String>>,
    on_content: F,
}

impl<F: FnMut(Result<String, String>)> Following<F> {
    fn run(mut self) {
        loop {
            // First the watch, then the look: no change is missed between them.
            self.watch();
            self.look();
            if self.wait_for_change().is_none() {
                return;
            }
        }
    }

    /// The directory that holds the path, and the one that it leads to. Those that are watched already stay so, and
    /// one that was replaced by another of the same name is watched anew.
    fn watch(&mut self) {
        let resolved = fs::canonicalize(&self.path).ok();
        let Some(watcher) = &mut self.watcher else { return };
        for file in [Some(self.path.clone()), resolved].into_iter().flatten() {
            let directory = match file.parent() {
                Some(parent) if parent != Path::new("") => parent,
                _ => Path::new("."),
            };
            if let Err(error) = watcher.watch(directory, RecursiveMode::NonRecursive) {
                debug!("cannot watch {}: {error}", directory.display());
            }
        }
    }

    fn look(&mut self) {
        let content = self.read();
        if self.last.as_ref() != Some(&content) {
            let content = self.settle(content);
            if self.last.as_ref() != Some(&content) {
                self.last = Some(content.clone());
                (self.on_content)(content);
            }
        }
    }

    /// Reads again until nothing changes any more: somebody may be writing.
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

    /// Until there is something to look at. `None`: it is time to end.
    fn wait_for_change(&self) -> Option<()> {
        match self.woken.recv_timeout(LOOK_EVERY) {
            Ok(Wake::Changed) => {}
            Err(RecvTimeoutError::Timeout) => return Some(()),
            Ok(Wake::Stop) | Err(RecvTimeoutError::Disconnected) => return None,
        }
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            match self.woken.recv_timeout(QUIET) {
                Ok(Wake::Changed) => {}
                Err(RecvTimeoutError::Timeout) => break,
                Ok(Wake::Stop) | Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests;
