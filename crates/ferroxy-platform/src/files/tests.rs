//! Real files, real notifications. Tests wait as long as it takes; nothing is asserted about how long that is.

use std::os::unix::fs::symlink;
use std::sync::mpsc::{self, Receiver, Sender};

use tempfile::TempDir;

use super::*;

/// So long that no periodic look happens: every change that a test sees comes from a notification.
const NEVER: Duration = Duration::from_secs(3600);
const LONG: Duration = Duration::from_secs(600);

/// Follows one file and sends its content whenever that has changed.
struct Content {
    path: PathBuf,
    last: Option<String>,
    seen: Sender<Option<String>>,
    complaints: Sender<String>,
}

impl Followed for Content {
    fn look(&mut self) -> Watched {
        let parents = [entry_of(&self.path), fs::canonicalize(&self.path).ok()];
        let directories =
            parents.iter().flatten().filter_map(|path| path.parent()).map(Path::to_path_buf).collect();
        let content = fs::read_to_string(&self.path).ok();
        if self.last != content {
            self.last.clone_from(&content);
            self.seen.send(content).unwrap();
        }
        Watched { entry: Some(self.path.clone()), directories }
    }

    fn cannot_watch(&mut self, path: &Path, error: &io::Error) {
        self.complaints.send(format!("{}: {error}", path.display())).unwrap();
    }
}

struct Bench {
    directory: TempDir,
    seen: Receiver<Option<String>>,
    complaints: Receiver<String>,
    follower: Follower,
}

impl Bench {
    /// Follows `file` in a new directory that `make` has filled.
    fn new(make: impl FnOnce(&Path)) -> Bench {
        Bench::with(make, Pace { look_every: NEVER, notifications: true })
    }

    fn with(make: impl FnOnce(&Path), pace: Pace) -> Bench {
        let directory = tempfile::tempdir().unwrap();
        make(directory.path());
        let ((sender, seen), (complain, complaints)) = (mpsc::channel(), mpsc::channel());
        let path = directory.path().join("file");
        let content = Content { path, last: None, seen: sender, complaints: complain };
        let follower = Follower::start("test", pace, content).unwrap();
        Bench { directory, seen, complaints, follower }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Waits until this content is seen. A look in the middle of a write may see less before.
    fn expect(&self, content: Option<&str>) {
        while self.seen.recv_timeout(LONG).unwrap().as_deref() != content {}
    }
}

fn one(at: &Path) {
    fs::write(at.join("file"), "one").unwrap();
}

#[test]
fn a_file_written_in_place() {
    let bench = Bench::new(one);
    bench.expect(Some("one"));
    fs::write(bench.path("file"), "two").unwrap();
    bench.expect(Some("two"));
    // Another file is no change.
    fs::write(bench.path("other"), "x").unwrap();
    fs::write(bench.path("file"), "three").unwrap();
    bench.expect(Some("three"));
}

#[test]
fn a_file_replaced_by_a_rename() {
    let bench = Bench::new(one);
    bench.expect(Some("one"));
    for text in ["two", "three"] {
        fs::write(bench.path("new"), text).unwrap();
        fs::rename(bench.path("new"), bench.path("file")).unwrap();
        bench.expect(Some(text));
    }
}

#[test]
fn a_file_that_is_removed_and_comes_back() {
    let bench = Bench::new(one);
    bench.expect(Some("one"));
    fs::remove_file(bench.path("file")).unwrap();
    bench.expect(None);
    fs::write(bench.path("file"), "one").unwrap();
    bench.expect(Some("one"));
}

/// As the kubelet does it: a directory for each version, `..data` is a link to the current one.
#[test]
fn a_configmap_volume() {
    let version = |at: &Path, name: &str| {
        fs::create_dir(at.join(name)).unwrap();
        fs::write(at.join(name).join("file"), name).unwrap();
    };
    let bench = Bench::new(|at| {
        version(at, "..1");
        symlink("..1", at.join("..data")).unwrap();
        symlink("..data/file", at.join("file")).unwrap();
    });
    bench.expect(Some("..1"));
    for (old, new) in [("..1", "..2"), ("..2", "..3")] {
        version(bench.directory.path(), new);
        symlink(new, bench.path("..data_tmp")).unwrap();
        fs::rename(bench.path("..data_tmp"), bench.path("..data")).unwrap();
        fs::remove_dir_all(bench.path(old)).unwrap();
        bench.expect(Some(new));
    }
}

/// The new directory can have the inode number of the old one.
#[test]
fn a_directory_that_is_removed_and_made_again() {
    let elsewhere = tempfile::tempdir().unwrap();
    let inner = elsewhere.path().join("inner");
    fs::create_dir(&inner).unwrap();
    fs::write(inner.join("file"), "0").unwrap();
    let bench = Bench::new(|at| symlink(inner.join("file"), at.join("file")).unwrap());
    bench.expect(Some("0"));
    for round in 1..5 {
        fs::remove_dir_all(&inner).unwrap();
        bench.expect(None);
        fs::create_dir(&inner).unwrap();
        fs::write(inner.join("file"), format!("{round}")).unwrap();
        // Nothing that is watched has changed; the link itself is made again.
        fs::remove_file(bench.path("file")).unwrap();
        symlink(inner.join("file"), bench.path("file")).unwrap();
        bench.expect(Some(&format!("{round}")));
    }
}

#[test]
fn a_link_to_a_file_in_another_directory() {
    let elsewhere = tempfile::tempdir().unwrap();
    let real = elsewhere.path().join("real");
    fs::write(&real, "one").unwrap();
    let bench = Bench::new(|at| symlink(&real, at.join("file")).unwrap());
    bench.expect(Some("one"));
    fs::write(&real, "two").unwrap();
    bench.expect(Some("two"));
}

#[test]
fn without_notifications_the_periodic_look_suffices() {
    let bench = Bench::with(one, Pace { look_every: Duration::from_millis(5), notifications: false });
    bench.expect(Some("one"));
    fs::write(bench.path("file"), "two").unwrap();
    bench.expect(Some("two"));
    drop(bench.follower);
    assert_eq!(bench.complaints.try_iter().count(), 0);
}

#[test]
fn dropping_the_follower_ends_its_thread() {
    let bench = Bench::new(one);
    drop(bench.follower);
    // The thread owned the sender: the channel ends with it.
    while bench.seen.recv_timeout(LONG).is_ok() {}
    assert_eq!(bench.seen.try_recv(), Err(mpsc::TryRecvError::Disconnected));
}

#[test]
fn an_entry_keeps_its_own_name_and_resolves_its_directory() {
    let directory = tempfile::tempdir().unwrap();
    let real = fs::canonicalize(directory.path()).unwrap();
    fs::create_dir(real.join("a")).unwrap();
    symlink("a", real.join("b")).unwrap();
    assert_eq!(entry_of(&real.join("b/link")), Some(real.join("a/link")));
    assert_eq!(entry_of(&real.join("b")), Some(real.join("b")));
    assert_eq!(entry_of(&real.join("missing/link")), None);
    assert_eq!(entry_of(Path::new("name")), Some(std::env::current_dir().unwrap().join("name")));
}
