//! Real files, real inotify. Tests wait as long as it takes; nothing is asserted about how long that is.

use std::os::unix::fs::symlink;
use std::sync::mpsc::{self, Receiver};

use tempfile::TempDir;

use super::*;

/// So long that the periodic check never happens: every change is noticed by inotify.
const NEVER: Duration = Duration::from_secs(3600);
const LONG: Duration = Duration::from_secs(600);

struct Seen {
    directory: TempDir,
    contents: Receiver<Result<String, String>>,
    _follower: Follower,
}

impl Seen {
    /// Makes a directory, and follows a file in it.
    fn new(make: impl FnOnce(&Path), file: &str) -> Seen {
        let directory = tempfile::tempdir().unwrap();
        make(directory.path());
        let (sender, contents) = mpsc::channel();
        let pace = Pace { look_every: NEVER, notifications: true };
        let follower =
            start_at(pace, directory.path().join(file), move |content| sender.send(content).unwrap());
        Seen { directory, contents, _follower: follower.unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn next(&self) -> Result<String, String> {
        self.contents.recv_timeout(LONG).unwrap()
    }

    #[track_caller]
    fn is_next(&self, text: &str) {
        assert_eq!(self.next().as_deref(), Ok(text));
    }
}

#[test]
fn a_plain_file_written_in_place() {
    let seen = Seen::new(|at| fs::write(at.join("config"), "one").unwrap(), "config");
    seen.is_next("one");
    fs::write(seen.path("config"), "two").unwrap();
    seen.is_next("two");
    // Neither the same content nor another file is a change.
    fs::write(seen.path("config"), "two").unwrap();
    fs::write(seen.path("other"), "x").unwrap();
    fs::write(seen.path("config"), "three").unwrap();
    seen.is_next("three");
}

#[test]
fn a_file_replaced_by_a_rename() {
    let seen = Seen::new(|at| fs::write(at.join("config"), "one").unwrap(), "config");
    seen.is_next("one");
    for text in ["two", "three"] {
        fs::write(seen.path("new"), text).unwrap();
        fs::rename(seen.path("new"), seen.path("config")).unwrap();
        seen.is_next(text);
    }
}

/// As the kubelet does it: a directory for each version, `..data` is a link to the current one.
#[test]
fn a_config_map() {
    let version = |at: &Path, name: &str| {
        fs::create_dir(at.join(name)).unwrap();
        fs::write(at.join(name).join("config"), name).unwrap();
    };
    let make = |at: &Path| {
        version(at, "..1");
        symlink("..1", at.join("..data")).unwrap();
        symlink("..data/config", at.join("config")).unwrap();
    };
    let seen = Seen::new(make, "config");
    seen.is_next("..1");
    for (old, new) in [("..1", "..2"), ("..2", "..3")] {
        version(seen.directory.path(), new);
        symlink(new, seen.path("..data_tmp")).unwrap();
        fs::rename(seen.path("..data_tmp"), seen.path("..data")).unwrap();
        fs::remove_dir_all(seen.path(old)).unwrap();
        seen.is_next(new);
    }
}

#[test]
fn a_link_to_a_file_elsewhere() {
    let elsewhere = tempfile::tempdir().unwrap();
    let real = elsewhere.path().join("real");
    fs::write(&real, "one").unwrap();
    let seen = Seen::new(|at| symlink(&real, at.join("config")).unwrap(), "config");
    seen.is_next("one");
    fs::write(&real, "two").unwrap();
    seen.is_next("two");
}

#[test]
fn a_file_that_goes_and_comes_back() {
    let seen = Seen::new(|at| fs::write(at.join("config"), "one").unwrap(), "config");
    seen.is_next("one");
    fs::remove_file(seen.path("config")).unwrap();
    let error = seen.next().unwrap_err();
    assert!(error.contains("config: No such file"), "{error}");
    fs::write(seen.path("config"), "one").unwrap();
    seen.is_next("one");
}
