//! Creates the lock file of legacy tools before they need it. The tools take the lock themselves.

use std::env;
use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::Error;

/// The default of the tools.
const DEFAULT: &str = "/run/xtables.lock";
/// Tools since 1.8.7 read another path from here.
const VARIABLE: &str = "XTABLES_LOCKFILE";

pub(super) fn path() -> PathBuf {
    env::var_os(VARIABLE).map_or_else(|| PathBuf::from(DEFAULT), PathBuf::from)
}

/// Creates the directory and the file if they are missing, as in a container without `/run`.
pub(super) fn prepare() -> Result<(), Error> {
    prepare_at(&path())
}

fn prepare_at(path: &Path) -> Result<(), Error> {
    let failed = |source| Error::LockFile { path: path.to_owned(), source };
    if let Some(directory) = path.parent() {
        match fs::create_dir_all(directory) {
            // An existing read-only directory may contain a file that can be opened: tried next.
            Err(error) if error.kind() != ErrorKind::ReadOnlyFilesystem => return Err(failed(error)),
            _ => {}
        }
    }
    // As the tools open it.
    OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path).map(drop).map_err(failed)
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
