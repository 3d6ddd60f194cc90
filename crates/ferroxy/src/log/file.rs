//! `--log-file`: lines go to a file. When it is full it is renamed to `NAME.1`, which replaces the one before: at most two files.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

/// As for klog's `--log-file-max-size`, in megabytes.
pub const USUAL_MEGABYTES: u32 = 100;

static FILE: OnceLock<LogFile> = OnceLock::new();

/// Lines go to this file from the start of logging on, instead of standard error. The first call counts.
pub fn to_file(path: &Path, megabytes: u32) -> io::Result<()> {
    let file = LogFile::open(path, u64::from(megabytes) << 20)?;
    FILE.get_or_init(|| file);
    Ok(())
}

pub(super) fn chosen() -> Option<&'static LogFile> {
    FILE.get()
}

#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    most: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// `None` after an attempt to open it has failed.
    file: Option<File>,
    bytes: u64,
}

impl LogFile {
    fn open(path: &Path, most: u64) -> io::Result<LogFile> {
        let file = append_to(path)?;
        let bytes = file.metadata()?.len();
        Ok(LogFile { path: path.to_owned(), most, state: Mutex::new(State { file: Some(file), bytes }) })
    }

    /// Writes whole lines. Lines that cannot be written are lost: there is nowhere to report it.
    pub(super) fn write_all(&self, lines: &[u8]) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.bytes > 0 && state.bytes + lines.len() as u64 > self.most {
            // Closed first: not every system renames an open file.
            state.file = None;
        }
        if state.file.is_none() {
            let is_full = fs::metadata(&self.path).is_ok_and(|it| it.len() + lines.len() as u64 > self.most);
            let is_gone = !is_full || fs::rename(&self.path, older(&self.path)).is_ok();
            let file = append_to(&self.path)?;
            if !is_gone {
                // The bound matters more than old lines.
                file.set_len(0)?;
            }
            state.bytes = file.metadata()?.len();
            state.file = Some(file);
        }
        let Some(file) = &mut state.file else { return Ok(()) };
        file.write_all(lines)?;
        state.bytes += lines.len() as u64;
        Ok(())
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

fn older(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".1");
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(path: &Path) -> String {
        fs::read_to_string(path).unwrap()
    }

    #[test]
    fn a_full_file_is_renamed_and_the_one_before_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ferroxy.log");
        let file = LogFile::open(&path, 20).unwrap();
        for number in 0..7 {
            file.write_all(format!("line {number}\n").as_bytes()).unwrap();
        }
        assert_eq!(text(&path), "line 6\n");
        assert_eq!(text(&older(&path)), "line 4\nline 5\n");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_restart_goes_on_with_the_file_and_keeps_the_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ferroxy.log");
        LogFile::open(&path, 20).unwrap().write_all(b"before\n").unwrap();
        let file = LogFile::open(&path, 20).unwrap();
        file.write_all(b"after\n").unwrap();
        assert_eq!(text(&path), "before\nafter\n");
        file.write_all(b"and then\n").unwrap();
        assert_eq!((text(&path), text(&older(&path))), ("and then\n".into(), "before\nafter\n".into()));
        // One that is longer than the bound is written, alone.
        file.write_all(&[b'x'; 50]).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 50);
        file.write_all(b"short\n").unwrap();
        assert_eq!(text(&path), "short\n");
    }

    #[test]
    fn where_it_cannot_be_renamed_it_starts_empty() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ferroxy.log");
        fs::create_dir_all(older(&path).join("in the way")).unwrap();
        let file = LogFile::open(&path, 20).unwrap();
        for number in 0..7 {
            file.write_all(format!("line {number}\n").as_bytes()).unwrap();
        }
        assert_eq!(text(&path), "line 6\n");
    }

    #[test]
    fn a_folder_that_does_not_exist_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(LogFile::open(&folder.path().join("no").join("ferroxy.log"), 20).is_err());
    }
}
