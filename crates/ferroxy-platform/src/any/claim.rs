//! The claim as a locked file in the directory for temporary files: for the whole host, not for a network namespace.

use std::fs::{File, TryLockError};
use std::io;

/// The lock ends when the file is closed.
#[derive(Debug)]
pub struct Held {
    _file: File,
}

impl Held {
    pub fn is_exclusive(&self) -> bool {
        true
    }
}

pub fn take(name: &str) -> io::Result<Option<Held>> {
    let path = std::env::temp_dir().join(format!("{}.lock", name.replace('/', "-")));
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
    fn a_name_is_held_once_and_free_again_after_a_drop() {
        let name = format!("ferroxy/test-{}", std::process::id());
        let held = take(&name).unwrap().unwrap();
        assert!(take(&name).unwrap().is_none());
        drop(held);
        assert!(take(&name).unwrap().is_some());
        let _ = std::fs::remove_file(std::env::temp_dir().join(format!("{}.lock", name.replace('/', "-"))));
    }
}
