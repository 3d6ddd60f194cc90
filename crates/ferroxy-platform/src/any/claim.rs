//! The claim as a locked file in the directory for temporary files: for the whole host, not for a network namespace.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;

/// The lock ends when the file is closed.
#[derive(Debug)]
pub struct Held {
    _file: File,
}

pub fn take() -> io::Result<Option<Held>> {
    lock(&std::env::temp_dir().join("ferroxy-agent.lock"))
}

fn lock(path: &Path) -> io::Result<Option<Held>> {
    let file = File::options().write(true).create(true).truncate(false).open(path)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(Held { _file: file })),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_locked_once_and_free_again_after_a_drop() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let held = lock(&path).unwrap().unwrap();
        assert!(lock(&path).unwrap().is_none());
        drop(held);
        assert!(lock(&path).unwrap().is_some());
    }
}
