//! A folder for the files of a run (kubeconfig, logs), removed when dropped.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Result, progress};

pub struct Files(PathBuf);

impl Files {
    /// Creates an empty folder. Files that an interrupted run has left in it are removed.
    pub fn new(folder: PathBuf) -> Result<Files> {
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        Ok(Files(folder))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            progress(&format!("{}: {error}", self.0.display()));
        }
    }
}
