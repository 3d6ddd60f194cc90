//! The lock of legacy iptables. The tools take it themselves, so we only create its file before they run; we take it while we
//! replace a table without the tools.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::{Attendant, Error, Limits};

/// The default of the tools.
const DEFAULT: &str = "/run/xtables.lock";
/// Tools since 1.8.7 read another path from this variable.
const VARIABLE: &str = "XTABLES_LOCKFILE";

pub(super) fn path() -> PathBuf {
    env::var_os(VARIABLE).map_or_else(|| PathBuf::from(DEFAULT), PathBuf::from)
}

/// Creates the directory and the file if they are missing, as in a container without `/run`.
pub(super) fn prepare() -> Result<(), Error> {
    prepare_at(&path())
}

/// Held until it is dropped.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Waits as long as all runs of a tool would. Returns how long it waited, if it did.
    pub(crate) fn take(limits: &Limits, attendant: &dyn Attendant) -> Result<(Lock, Duration), Error> {
        Lock::take_at(&path(), limits, attendant)
    }

    fn take_at(path: &Path, limits: &Limits, attendant: &dyn Attendant) -> Result<(Lock, Duration), Error> {
        const PAUSE: Duration = Duration::from_millis(20);
        let file = open_at(path)?;
        let (began, patience) = (Instant::now(), limits.lock * limits.attempts.max(1));
        let mut has_waited = false;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    let waited = if has_waited { began.elapsed() } else { Duration::ZERO };
                    return Ok((Lock { _file: file }, waited));
                }
                Err(Errno::AGAIN | Errno::INTR) if began.elapsed() < patience => {
                    has_waited = true;
                    attendant.waiting();
                    std::thread::sleep(PAUSE);
                }
                Err(Errno::AGAIN | Errno::INTR) => {
                    let waited = began.elapsed();
                    return Err(Error::Locked {
                        tool: "Ferroxy".into(),
                        runs: limits.attempts.max(1),
                        waited,
                    });
                }
                Err(errno) => return Err(Error::LockFile { path: path.to_owned(), source: errno.into() }),
            }
        }
    }
}

fn prepare_at(path: &Path) -> Result<(), Error> {
    open_at(path).map(drop)
}

fn open_at(path: &Path) -> Result<File, Error> {
    let failed = |source| Error::LockFile { path: path.to_owned(), source };
    if let Some(directory) = path.parent() {
        match fs::create_dir_all(directory) {
            // An existing read-only directory may contain a file that can be opened: tried next.
            Err(error) if error.kind() != ErrorKind::ReadOnlyFilesystem => return Err(failed(error)),
            _ => {}
        }
    }
    // As the tools open it.
    OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_cannot_be_written_is_named() {
        let error = prepare_at(Path::new("/proc/no/xtables.lock")).unwrap_err().to_string();
        assert!(error.starts_with("cannot open the xtables lock file /proc/no/xtables.lock: "), "{error}");
        assert!(error.ends_with("(in a container, mount the host's file)"), "{error}");
    }

    #[test]
    fn what_is_missing_is_made() {
        let directory = env::temp_dir().join(format!("ferroxy-lock-{}", std::process::id()));
        prepare_at(&directory.join("run/xtables.lock")).unwrap();
        prepare_at(&directory.join("run/xtables.lock")).unwrap();
        fs::remove_dir_all(directory).unwrap();
    }
}
