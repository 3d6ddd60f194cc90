//! Cgroups for tests, and a bpffs: programs are attached to cgroups and pinned in the bpffs. Needs real root.
//!
//! A socket belongs to the cgroup of the thread that opened it. So that threads of one test process can be in different
//! cgroups, all cgroups here are "threaded", below a cgroup that has the whole process.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::thread::gettid;

use crate::error::{LabError, Result};

/// A tree of cgroups, removed when it is dropped.
#[derive(Debug)]
pub struct Cgroups {
    root: PathBuf,
}

const PREFIX: &str = "ferroxy-lab-";

impl Cgroups {
    pub fn new() -> Result<Cgroups> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let of_process = move_process()?;
        let root = of_process.join(NEXT.fetch_add(1, Ordering::Relaxed).to_string());
        make_threaded(&root)?;
        Ok(Cgroups { root })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The cgroup at a relative path, and all above it.
    pub fn create(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let mut cgroup = self.root.clone();
        for part in path.as_ref().components() {
            cgroup.push(part);
            make_threaded(&cgroup)?;
        }
        Ok(cgroup)
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        // A process that was just killed may still be there; the next test process sweeps.
        remove(&self.root);
    }
}

/// Moves the calling thread into one of these cgroups.
pub fn enter(cgroup: &Path) -> Result<()> {
    let path = cgroup.join("cgroup.threads");
    fs::write(&path, gettid().as_raw_nonzero().to_string()).map_err(|error| LabError::file(&path, error))
}

/// Once for each process: moves the process with all of its threads to a cgroup of its own. Returns the cgroup.
fn move_process() -> Result<PathBuf> {
    static MOVED: Mutex<Option<PathBuf>> = Mutex::new(None);
    let mut moved = MOVED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(cgroup) = &*moved {
        return Ok(cgroup.clone());
    }
    let mount = mount_point()?;
    sweep(&mount);
    let cgroup = mount.join(format!("{PREFIX}{}", std::process::id()));
    create(&cgroup)?;
    let procs = cgroup.join("cgroup.procs");
    fs::write(&procs, std::process::id().to_string()).map_err(|error| LabError::file(&procs, error))?;
    *moved = Some(cgroup.clone());
    Ok(cgroup)
}

/// Where the hierarchy of version 2 is mounted.
fn mount_point() -> Result<PathBuf> {
    let mounts = Path::new("/proc/self/mounts");
    let text = fs::read_to_string(mounts).map_err(|error| LabError::file(mounts, error))?;
    let found = text.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (place, kind) = (words.next()?, words.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(place))
    });
    found.ok_or_else(|| LabError::unknown("mount", "cgroup2"))
}

fn make_threaded(cgroup: &Path) -> Result<()> {
    create(cgroup)?;
    let path = cgroup.join("cgroup.type");
    fs::write(&path, "threaded").map_err(|error| LabError::file(&path, error))
}

fn create(cgroup: &Path) -> Result<()> {
    match fs::create_dir(cgroup) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(LabError::file(cgroup, error)),
        _ => Ok(()),
    }
}

/// Removes cgroups of test processes that no longer exist.
fn sweep(mount: &Path) {
    for entry in fs::read_dir(mount).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(process) = name.strip_prefix(PREFIX) else { continue };
        if !Path::new("/proc").join(process).exists() {
            remove(&entry.path());
        }
    }
}

/// Children first. A cgroup that is still in use stays.
fn remove(cgroup: &Path) {
    for entry in fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    drop(fs::remove_dir(cgroup));
}

/// A bpffs in a temporary directory, unmounted when it is dropped. The next process removes what a killed process left.
#[derive(Debug)]
pub struct BpfFilesystem {
    path: PathBuf,
}

impl BpfFilesystem {
    pub fn mount() -> Result<BpfFilesystem> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let temporary = std::env::temp_dir();
        for (process, path) in left_behind(&temporary) {
            if !Path::new("/proc").join(process).exists() {
                detach(&path);
            }
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = temporary.join(format!("{PREFIX}{}-{number}", std::process::id()));
        create(&path)?;
        let mounted = mount("bpf", &path, "bpf", MountFlags::NOSUID | MountFlags::NODEV, None);
        mounted.map_err(|error| LabError::system("mount a bpffs", error))?;
        Ok(BpfFilesystem { path })
    }

    pub fn path(&self) -> PathBuf {
        self.path.clone()
    }
}

impl Drop for BpfFilesystem {
    fn drop(&mut self) {
        detach(&self.path);
    }
}

fn detach(path: &Path) {
    // Nothing else can be done where it fails.
    let _ = unmount(path, UnmountFlags::DETACH);
    drop(fs::remove_dir(path));
}

/// Directories of this kind, each with the process that made it.
fn left_behind(temporary: &Path) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(temporary).into_iter().flatten().flatten();
    let found = entries.filter_map(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        let (process, _) = name.strip_prefix(PREFIX)?.split_once('-')?;
        Some((process.to_owned(), entry.path()))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capability::{Capability, require};

    fn own_cgroup() -> String {
        let text = fs::read_to_string("/proc/thread-self/cgroup").unwrap();
        text.lines().find_map(|line| line.strip_prefix("0::")).unwrap().to_owned()
    }

    #[test]
    fn a_thread_enters_a_cgroup_and_the_process_stays() {
        if !require(&[Capability::SocketPrograms]) {
            return;
        }
        let cgroups = Cgroups::new().unwrap();
        let inner = cgroups.create("node/pods/a1").unwrap();
        let entered = std::thread::spawn(move || {
            enter(&inner).unwrap();
            own_cgroup()
        });
        let entered = entered.join().unwrap();
        assert!(entered.ends_with("node/pods/a1"), "{entered}");
        assert!(!own_cgroup().ends_with("a1"));
        let root = cgroups.root().to_owned();
        drop(cgroups);
        assert!(!root.exists());
    }
}
