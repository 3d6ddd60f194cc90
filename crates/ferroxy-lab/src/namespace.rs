//! One anonymous network namespace, held by a file descriptor: no name under /run/netns, nothing to clean up.
//! `network` and `pod` create its content (links, addresses, servers).

use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;

use ferroxy_netlink::route::Connection;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::cgroup;
use crate::error::{LabError, Result};

/// Exists as long as this value, a socket created in it, or a thread or process in it.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    fd: OwnedFd,
    /// Threads that enter the namespace also enter this cgroup.
    cgroup: Option<PathBuf>,
}

impl Namespace {
    /// A fresh namespace with `lo` up. The name is for messages and thread names only.
    pub fn new(name: impl Into<String>) -> Result<Namespace> {
        let name = name.into();
        // A new thread, because unshare moves the calling thread permanently.
        let fd = run_in_thread(&name, unshare_network)??;
        let namespace = Namespace { name, fd, cgroup: None };
        let mut connection = namespace.connection()?;
        let loopback = connection.link("lo")?;
        connection.set_up(loopback.index)?;
        Ok(namespace)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// From now on, threads that enter the namespace also enter one of [`Cgroups`](crate::Cgroups).
    pub fn set_cgroup(&mut self, cgroup: PathBuf) {
        self.cgroup = Some(cgroup);
    }

    /// Runs `work` in this namespace on a new thread, and returns its result.
    ///
    /// Sockets opened by `work` and child processes that it spawns stay in the namespace. (Such a child must not request a
    /// parent-death signal: its parent is this thread, which ends.)
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        run_in_thread(&self.name, || self.enter().map(|()| work()))?
    }

    /// Like `run`, but returns at once: for servers and load in the background.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<thread::JoinHandle<Result<T>>> {
        let fd = self.fd.try_clone().map_err(|e| LabError::system("duplicate a namespace descriptor", e))?;
        let cgroup = self.cgroup.clone();
        thread::Builder::new()
            .name(self.name.clone())
            .spawn(move || enter(fd.as_fd(), cgroup.as_deref()).map(|()| work()))
            .map_err(|e| LabError::system("start a thread", e))
    }

    /// Moves the calling thread into this namespace permanently.
    pub fn enter(&self) -> Result<()> {
        enter(self.fd.as_fd(), self.cgroup.as_deref())
    }

    /// A connection to its links, addresses and routes, usable from any thread.
    pub fn connection(&self) -> Result<Connection> {
        Ok(self.run(Connection::open)??)
    }

    /// Writes a setting such as `net/ipv4/ip_forward`. (Slashes, because interface names may have dots.)
    pub fn set_sysctl(&self, key: &str, value: &str) -> Result<()> {
        // /proc/sys/net shows the namespace of the reader, so it is written from inside.
        self.run(|| fs::write(format!("/proc/sys/{key}"), value))?
            .map_err(|e| LabError::system(format!("{}: set {key} to {value}", self.name), e))
    }

    pub fn has_sysctl(&self, key: &str) -> Result<bool> {
        self.run(|| fs::exists(format!("/proc/sys/{key}")))?
            .map_err(|e| LabError::system(format!("{}: look for {key}", self.name), e))
    }

    /// The command that enters this namespace from another terminal while this process runs.
    pub fn debug_command(&self) -> String {
        format!("nsenter --net=/proc/{}/fd/{}", std::process::id(), self.fd.as_raw_fd())
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn enter(fd: BorrowedFd<'_>, cgroup: Option<&Path>) -> Result<()> {
    cgroup.map_or(Ok(()), cgroup::enter)?;
    move_into_link_name_space(fd, Some(LinkNameSpaceType::Network))
        .map_err(|e| LabError::system("enter a network namespace", e))
}

fn unshare_network() -> Result<OwnedFd> {
    // SAFETY: without CLONE_FILES the descriptor table stays shared, so no descriptor changes its meaning.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
        .map_err(|e| LabError::system("make a network namespace (root, or `unshare -Urnm`, is needed)", e))?;
    let file = File::open("/proc/thread-self/ns/net")
        .map_err(|e| LabError::system("open the namespace just made", e))?;
    Ok(file.into())
}

fn run_in_thread<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn_scoped(scope, work)
            .map_err(|e| LabError::system("start a thread", e))?;
        // A panic (such as a failed assertion) continues in the caller.
        Ok(thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capability::{Capability, require};

    fn identity() -> String {
        fs::read_link("/proc/thread-self/ns/net").unwrap().display().to_string()
    }

    #[test]
    fn work_runs_inside_and_the_caller_stays_outside() {
        if !require(&[Capability::NetworkNamespaces]) {
            return;
        }
        let outside = identity();
        let (one, other) = (Namespace::new("one").unwrap(), Namespace::new("other").unwrap());
        let inside = one.run(identity).unwrap();
        assert_ne!(inside, outside);
        assert_ne!(inside, other.run(identity).unwrap());
        assert_eq!(inside, one.run(identity).unwrap(), "each run is in the same namespace");
        assert_eq!(identity(), outside);
    }

    #[test]
    fn a_child_process_inherits_the_namespace() {
        if !require(&[Capability::NetworkNamespaces]) {
            return;
        }
        let namespace = Namespace::new("parent").unwrap();
        let output = namespace
            .run(|| std::process::Command::new("readlink").arg("/proc/self/ns/net").output())
            .unwrap()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), namespace.run(identity).unwrap());
    }

    #[test]
    fn settings_are_of_this_namespace_only() {
        if !require(&[Capability::NetworkNamespaces]) {
            return;
        }
        let (on, off) = (Namespace::new("on").unwrap(), Namespace::new("off").unwrap());
        off.set_sysctl("net/ipv4/ip_forward", "0").unwrap();
        on.set_sysctl("net/ipv4/ip_forward", "1").unwrap();
        let read = || fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap();
        assert_eq!(on.run(read).unwrap().trim(), "1");
        assert_eq!(off.run(read).unwrap().trim(), "0");
        assert!(!on.has_sysctl("net/no/such/thing").unwrap());
        assert!(on.set_sysctl("net/no/such/thing", "1").is_err());
    }

    #[test]
    fn a_panic_inside_reaches_the_caller() {
        if !require(&[Capability::NetworkNamespaces]) {
            return;
        }
        let namespace = Namespace::new("panics").unwrap();
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            namespace.run(|| panic!("an assertion inside"))
        }));
        assert_eq!(caught.unwrap_err().downcast_ref::<&str>(), Some(&"an assertion inside"));
    }
}
