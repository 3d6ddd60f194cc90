//! Real files, real inotify. Tests wait as long as it takes; nothing is asserted about how long that is.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use ferroxy_core::Event;

use super::*;

/// Long enough to mean that it will not happen.
const NEVER: Duration = Duration::from_secs(3600);
const LONG: Duration = Duration::from_secs(600);

struct Bench {
    dir: tempfile::TempDir,
    batches: Receiver<Batch>,
    watch: ManifestWatch,
}

impl Bench {
    /// Watches `m` in a fresh directory, after `prepare` has filled that.
    fn new(prepare: impl FnOnce(&Path)) -> Bench {
        Bench::with(prepare, Pace { look_every: NEVER, notifications: true })
    }

    fn with(prepare: impl FnOnce(&Path), pace: Pace) -> Bench {
        let dir = tempfile::tempdir().unwrap();
        prepare(dir.path());
        let (source, _) = ManifestSource::open(dir.path().join("m"), drop).unwrap();
        let (send, batches) = mpsc::channel();
        let watch = source.watch_at(pace, move |batch| send.send(batch).unwrap()).unwrap();
        Bench { dir, batches, watch }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, ip: &str) {
        fs::write(self.path(name), service(ip)).unwrap();
    }

    /// Waits until the Service has this address; `None`: until it is gone.
    fn expect(&self, ip: Option<&str>) {
        loop {
            let batch = self.batches.recv_timeout(LONG).expect("a batch");
            let seen = batch.events.iter().any(|event| match (event, ip) {
                (Event::Service(it), Some(ip)) => it.cluster_ip == ip,
                (Event::ServiceGone { .. }, None) => true,
                _ => false,
            });
            if seen {
                return;
            }
        }
    }

    fn expect_diagnostic(&self, part: &str) {
        loop {
            let batch = self.batches.recv_timeout(LONG).expect("a batch");
            if batch.diagnostics.iter().any(|it| it.to_string().contains(part)) {
                return;
            }
        }
    }
}

fn service(ip: &str) -> String {
    format!("{{kind: Service, apiVersion: v1, metadata: {{name: a}}, spec: {{clusterIP: {ip}}}}}\n")
}

fn directory(root: &Path) {
    fs::create_dir(root.join("m")).unwrap();
    fs::write(root.join("m/a.yaml"), service("x0")).unwrap();
}

#[test]
fn writes_renames_and_removals() {
    let bench = Bench::new(directory);
    bench.write("m/a.yaml", "x1");
    bench.expect(Some("x1"));
    bench.write("elsewhere", "x2");
    fs::rename(bench.path("elsewhere"), bench.path("m/a.yaml")).unwrap();
    bench.expect(Some("x2"));
    fs::remove_file(bench.path("m/a.yaml")).unwrap();
    bench.expect(None);
}

#[test]
fn new_directories_are_watched_too() {
    let bench = Bench::new(directory);
    fs::remove_file(bench.path("m/a.yaml")).unwrap();
    bench.expect(None);
    fs::create_dir_all(bench.path("m/x/y")).unwrap();
    bench.write("m/x/y/a.yaml", "x1");
    bench.expect(Some("x1"));
    bench.write("m/x/y/a.yaml", "x2");
    bench.expect(Some("x2"));
    fs::remove_dir_all(bench.path("m/x")).unwrap();
    bench.expect(None);
    // The same names again, perhaps with the same inode numbers.
    fs::create_dir_all(bench.path("m/x/y")).unwrap();
    bench.write("m/x/y/a.yaml", "x3");
    bench.expect(Some("x3"));
    bench.write("m/x/y/a.yaml", "x4");
    bench.expect(Some("x4"));
}

#[test]
fn configmap_swaps() {
    let bench = Bench::new(|root| {
        fs::create_dir_all(root.join("m/..0")).unwrap();
        fs::write(root.join("m/..0/a.yaml"), service("x0")).unwrap();
        symlink("..0", root.join("m/..data")).unwrap();
        symlink("..data/a.yaml", root.join("m/a.yaml")).unwrap();
    });
    for (version, ip) in [("m/..1", "x1"), ("m/..2", "x2")] {
        fs::create_dir(bench.path(version)).unwrap();
        bench.write(&format!("{version}/a.yaml"), ip);
        symlink(version.trim_start_matches("m/"), bench.path("m/..data_tmp")).unwrap();
        fs::rename(bench.path("m/..data_tmp"), bench.path("m/..data")).unwrap();
        bench.expect(Some(ip));
    }
    fs::remove_dir_all(bench.path("m/..1")).unwrap();
}

#[test]
fn the_watched_directory_is_replaced() {
    let bench = Bench::new(directory);
    fs::create_dir(bench.path("next")).unwrap();
    bench.write("next/a.yaml", "x1");
    fs::rename(bench.path("m"), bench.path("old")).unwrap();
    bench.expect_diagnostic("stay in force");
    fs::rename(bench.path("next"), bench.path("m")).unwrap();
    bench.expect(Some("x1"));
    bench.write("m/a.yaml", "x2");
    bench.expect(Some("x2"));
}

#[test]
fn a_link_to_the_directory_is_turned() {
    let bench = Bench::new(|root| {
        for (name, ip) in [("one", "x1"), ("two", "x2")] {
            fs::create_dir(root.join(name)).unwrap();
            fs::write(root.join(name).join("a.yaml"), service(ip)).unwrap();
        }
        symlink("one", root.join("m")).unwrap();
    });
    symlink("two", bench.path("turned")).unwrap();
    fs::rename(bench.path("turned"), bench.path("m")).unwrap();
    bench.expect(Some("x2"));
    bench.write("two/a.yaml", "x3");
    bench.expect(Some("x3"));
}

#[test]
fn a_single_file() {
    let bench = Bench::new(|root| fs::write(root.join("m"), service("x0")).unwrap());
    bench.write("m", "x1");
    bench.expect(Some("x1"));
    bench.write("elsewhere", "x2");
    fs::rename(bench.path("elsewhere"), bench.path("m")).unwrap();
    bench.expect(Some("x2"));
    fs::write(bench.path("m"), "kind: {").unwrap();
    bench.expect_diagnostic("stay in force");
    bench.write("m", "x3");
    bench.expect(Some("x3"));
}

#[test]
fn without_inotify_looking_suffices() {
    let bench = Bench::with(directory, Pace { look_every: Duration::from_millis(5), notifications: false });
    bench.write("m/a.yaml", "x1");
    bench.expect(Some("x1"));
}

#[test]
fn what_happened_before_the_watch_began_is_not_missed() {
    let dir = tempfile::tempdir().unwrap();
    directory(dir.path());
    let (source, _) = ManifestSource::open(dir.path().join("m"), drop).unwrap();
    fs::write(dir.path().join("m/a.yaml"), service("x1")).unwrap();
    let (send, batches) = mpsc::channel();
    let pace = Pace { look_every: NEVER, notifications: true };
    let watch = source.watch_at(pace, move |batch| send.send(batch).unwrap()).unwrap();
    let bench = Bench { dir, batches, watch };
    bench.expect(Some("x1"));
}

#[test]
fn dropping_the_watch_ends_its_thread() {
    let bench = Bench::new(directory);
    drop(bench.watch);
    // The thread owned the sender: the channel ends with it.
    while bench.batches.recv_timeout(LONG).is_ok() {}
    assert_eq!(bench.batches.try_recv(), Err(mpsc::TryRecvError::Disconnected));
}
