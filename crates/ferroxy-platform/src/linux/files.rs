//! Identities of files, and notifications of changed directories by inotify. When to look at the files is decided in `files.rs` of the crate.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use crate::files::Woken;

/// A write counts once the writer closes the file: before that the file is half written. Opening and reading, which the
/// follower does itself, do not count.
const CHANGES: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR);

/// For many events at once; one is at most 272 bytes.
const BUFFER: usize = 16 * 1024;

/// The inotify watches that are set.
pub struct Watcher {
    /// `None`: notifications are not wanted, or not available for the reason in `trouble`.
    inotify: Option<OwnedFd>,
    trouble: Option<io::Error>,
    stop: Arc<OwnedFd>,
    watches: BTreeMap<PathBuf, Watch>,
    /// Directories that were to be watched and did not exist.
    missing: BTreeSet<PathBuf>,
    /// Two paths have one watch if they are mounts of the same directory.
    paths: BTreeMap<i32, BTreeSet<PathBuf>>,
}

struct Watch {
    number: i32,
    directory: Identity,
}

/// Device and inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity(u64, u64);

pub fn identity(_: &Path, metadata: &Metadata) -> Identity {
    Identity(metadata.dev(), metadata.ino())
}

pub fn changed(metadata: &Metadata) -> SystemTime {
    let (seconds, nanoseconds) = (metadata.ctime(), metadata.ctime_nsec());
    let nanoseconds = Duration::from_nanos(nanoseconds.unsigned_abs());
    // Files from before 1970 count as from 1970.
    SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0)) + nanoseconds
}

/// Ends a wait from another thread.
#[derive(Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// The watcher's waits return [`Woken::Stopped`] from now on.
    pub fn stop(&self) {
        // Fails only if the counter is at its limit, and then a wait ends as well.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl Watcher {
    pub fn new(notifications: bool) -> io::Result<(Watcher, Waker)> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let opened = notifications.then(|| inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK));
        let (inotify, trouble) = match opened {
            Some(Ok(inotify)) => (Some(inotify), None),
            Some(Err(error)) => (None, Some(error.into())),
            None => (None, None),
        };
        let waker = Waker(Arc::clone(&stop));
        let (watches, missing, paths) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        Ok((Watcher { inotify, trouble, stop, watches, missing, paths }, waker))
    }

    /// Makes `wanted` the watched directories. `true`: some are new or newly missing, so look again.
    pub fn follow(
        &mut self,
        wanted: &BTreeSet<PathBuf>,
        cannot_watch: &mut dyn FnMut(&Path, &io::Error),
    ) -> bool {
        if let (Some(error), Some(path)) = (&self.trouble, wanted.first()) {
            cannot_watch(path, error);
        }
        if self.inotify.is_none() {
            return false;
        }
        let dropped: Vec<PathBuf> = self.watches.keys().filter(|it| !wanted.contains(*it)).cloned().collect();
        dropped.iter().for_each(|path| self.remove(path));
        self.missing.retain(|path| wanted.contains(path));
        let mut new = false;
        for path in wanted {
            match self.follow_one(path) {
                Ok(changed) => new |= changed,
                // The directory was removed after the look that named it, so look again.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    new |= self.missing.insert(path.clone());
                }
                Err(error) => cannot_watch(path, &error),
            }
        }
        new
    }

    /// `true`: this directory was not watched before.
    fn follow_one(&mut self, path: &Path) -> io::Result<bool> {
        let directory = identity(path, &fs::metadata(path)?);
        if self.watches.get(path).is_some_and(|watch| watch.directory == directory) {
            return Ok(false);
        }
        self.remove(path);
        self.add(path, directory)?;
        self.missing.remove(path);
        Ok(true)
    }

    /// Waits for a change in the watched directories.
    pub fn wait(&mut self, time: Duration) -> Woken {
        let until = Instant::now() + time;
        loop {
            match self.poll(until.saturating_duration_since(Instant::now())) {
                Ready::Stop => return Woken::Stopped,
                Ready::Events => {
                    if let Some(paths) = self.read() {
                        return Woken::Changed(paths);
                    }
                }
                Ready::Nothing if Instant::now() >= until => return Woken::TimedOut,
                Ready::Nothing => {}
            }
        }
    }

    fn poll(&self, time: Duration) -> Ready {
        let timeout = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        let mut ready = vec![PollFd::new(&self.stop, PollFlags::IN)];
        ready.extend(self.inotify.as_ref().map(|inotify| PollFd::new(inotify, PollFlags::IN)));
        // Fails when a signal interrupts it.
        if poll(&mut ready, Some(&timeout)).is_err() {
            return Ready::Nothing;
        }
        match &ready[..] {
            [stop, ..] if !stop.revents().is_empty() => Ready::Stop,
            [_, inotify] if !inotify.revents().is_empty() => Ready::Events,
            _ => Ready::Nothing,
        }
    }

    /// The paths of all queued events; empty: events were lost. `None`: only our own removals of watches were queued.
    fn read(&mut self) -> Option<Vec<PathBuf>> {
        let events = events(self.inotify.as_ref()?);
        let mut changed = Vec::new();
        for event in events {
            if event.flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                return Some(Vec::new());
            }
            let directories: Vec<PathBuf> =
                self.paths.get(&event.watch).into_iter().flatten().cloned().collect();
            match event.name {
                Some(name) => {
                    let paths = directories.iter().map(|directory| directory.join(OsStr::from_bytes(&name)));
                    changed.extend(paths);
                }
                None => changed.extend(directories),
            }
        }
        // An event about a watched directory itself (removed, moved) may mean that the watch went with it, and a new
        // directory of the same name can have the same inode number. So the watch is set again at the next look.
        changed.iter().for_each(|path| self.remove(path));
        (!changed.is_empty()).then_some(changed)
    }

    fn add(&mut self, path: &Path, directory: Identity) -> io::Result<()> {
        let Some(inotify) = &self.inotify else { return Ok(()) };
        let number = inotify::add_watch(inotify, path, CHANGES)?;
        self.paths.entry(number).or_default().insert(path.to_path_buf());
        self.watches.insert(path.to_path_buf(), Watch { number, directory });
        Ok(())
    }

    fn remove(&mut self, path: &Path) {
        let Some(Watch { number, .. }) = self.watches.remove(path) else { return };
        let Some(paths) = self.paths.get_mut(&number) else { return };
        paths.remove(path);
        if paths.is_empty() {
            self.paths.remove(&number);
            if let Some(inotify) = &self.inotify {
                // Fails when the directory is gone: the kernel has then removed the watch.
                let _ = inotify::remove_watch(inotify, number);
            }
        }
    }
}

enum Ready {
    Stop,
    Events,
    Nothing,
}

struct Event {
    watch: i32,
    flags: ReadFlags,
    /// `None`: the event is about the watched directory itself.
    name: Option<Vec<u8>>,
}

/// All events that are queued.
fn events(inotify: &OwnedFd) -> Vec<Event> {
    let mut buffer = [MaybeUninit::uninit(); BUFFER];
    let mut reader = Reader::new(inotify, &mut buffer);
    let mut events = Vec::new();
    loop {
        match reader.next() {
            Ok(event) => events.push(Event {
                watch: event.wd(),
                flags: event.events(),
                name: event.file_name().map(|name| name.to_bytes().to_vec()),
            }),
            Err(Errno::INTR) => {}
            // Usually WOULDBLOCK: all have been read.
            Err(_) => return events,
        }
    }
}
