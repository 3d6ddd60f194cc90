//! The lock that `iptables-legacy` holds while it replaces a table.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

pub(super) const PATH: &str = "/run/xtables.lock";
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// Taken when it is first needed, and held until dropped.
#[derive(Debug)]
pub(super) struct Lock {
    path: PathBuf,
    patience: Duration,
    taken: Option<Taken>,
}

#[derive(Debug)]
enum Taken {
    Held { _file: File },
    Busy(String),
    Absent(String),
}

/// Whether a table may be replaced.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum State<'a> {
    Held,
    /// No: another program may be replacing the same table.
    Busy(&'a str),
    /// Yes: this process cannot open the lock file, as in a container without it (only iptables and ipvs mode need it).
    /// The kernel refuses a replacement if the number of rules has changed since they were read.
    Absent(&'a str),
}

impl Lock {
    pub(super) fn new(path: &Path, patience: Duration) -> Lock {
        Lock { path: path.to_owned(), patience, taken: None }
    }

    pub(super) fn was_tried(&self) -> bool {
        self.taken.is_some()
    }

    pub(super) fn take(&mut self) {
        self.taken = Some(self.try_take());
    }

    pub(super) fn state(&self) -> State<'_> {
        match &self.taken {
            Some(Taken::Held { .. }) => State::Held,
            Some(Taken::Busy(why)) => State::Busy(why),
            Some(Taken::Absent(why)) => State::Absent(why),
            None => State::Busy("the xtables lock is not taken"),
        }
    }

    fn try_take(&self) -> Taken {
        let path = self.path.display();
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = match options.open(&self.path) {
            Ok(file) => file,
            Err(error) => return Taken::Absent(format!("cannot open {path}: {error}")),
        };
        let deadline = Instant::now() + self.patience;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Taken::Held { _file: file },
                Err(Errno::WOULDBLOCK) if Instant::now() < deadline => {
                    thread::sleep(Duration::from_millis(20));
                }
                Err(Errno::WOULDBLOCK) => {
                    return Taken::Busy(format!("another program holds {path} (waited {:?})", self.patience));
                }
                Err(errno) => return Taken::Busy(format!("cannot lock {path}: {errno}")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(path: &Path) -> Lock {
        let mut lock = Lock::new(path, Duration::ZERO);
        assert!(!lock.was_tried());
        assert!(matches!(lock.state(), State::Busy(_)), "nothing is replaced before");
        lock.take();
        assert!(lock.was_tried());
        lock
    }

    #[test]
    fn a_lock_of_another_program_is_respected() {
        let path = std::env::temp_dir().join(format!("ferroxy-xtables-lock-{}", std::process::id()));
        let other = take(&path);
        assert_eq!(other.state(), State::Held);
        let expected = format!("another program holds {} (waited 0ns)", path.display());
        assert_eq!(take(&path).state(), State::Busy(&expected));
        drop(other);
        assert_eq!(take(&path).state(), State::Held);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_lock_that_cannot_be_opened_is_named() {
        let lock = take(Path::new("/proc/no/xtables.lock"));
        let State::Absent(why) = lock.state() else { panic!("{lock:?}") };
        assert!(why.starts_with("cannot open /proc/no/xtables.lock: "), "{why}");
    }
}
