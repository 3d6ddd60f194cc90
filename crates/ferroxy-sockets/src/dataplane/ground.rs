//! What translation at sockets needs on a host: cgroups to attach programs to, a bpffs for pins, a kernel that is new enough.

use std::fs;
use std::path::{Path, PathBuf};

use ferroxy_bpf::kernel::{Cgroup, is_bpf_filesystem, namespace_cookie};

use crate::entry::Clients;
use crate::options::Options;
use crate::release::protects_kernel_clients;

/// The namespace and the cgroups of this host.
#[derive(Debug)]
pub struct Ground {
    /// The cookie of the agent's network namespace, which is the host's.
    pub host_namespace: u64,
    /// Where the programs for these clients are attached, or why they cannot be.
    pub host: Result<Cgroup, String>,
    pub pods: Result<Cgroup, String>,
}

/// The cgroups of pods below the top: with systemd, without systemd, and both in kind.
const PODS: [&str; 4] =
    ["kubepods.slice", "kubepods", "kubelet.slice/kubelet-kubepods.slice", "kubelet/kubepods"];

impl Ground {
    /// The error says why no socket can be translated here.
    pub fn find(options: &Options) -> Result<Ground, String> {
        let host_namespace = namespace_cookie().map_err(|error| format!("{error} (needs Linux 5.14)"))?;
        check_pins(&options.pins)?;
        let top = match &options.cgroup {
            Some(path) => Ok(path.clone()),
            None => find_top(),
        };
        let host = top.clone().and_then(|top| {
            check_release()?;
            Cgroup::open(&top).map_err(|error| error.to_string())
        });
        let pods = match &options.pods_cgroup {
            Some(path) => Ok(path.clone()),
            None => top.and_then(|top| find_pods(&top)),
        };
        let pods = pods.and_then(|path| Cgroup::open(&path).map_err(|error| error.to_string()));
        Ok(Ground { host_namespace, host, pods })
    }

    pub fn cgroup(&self, clients: Clients) -> &Result<Cgroup, String> {
        if clients == Clients::HOST { &self.host } else { &self.pods }
    }
}

/// Whether the directory of our pins is, or will be, on a bpffs.
fn check_pins(pins: &Path) -> Result<(), String> {
    let existing = pins.ancestors().find(|path| path.exists()).unwrap_or(pins);
    if is_bpf_filesystem(existing) {
        return Ok(());
    }
    Err(format!("{} is not on a bpffs; mount the host's /sys/fs/bpf", pins.display()))
}

fn check_release() -> Result<(), String> {
    let uname = rustix::system::uname();
    let (release, version) = (uname.release().to_string_lossy(), uname.version().to_string_lossy());
    let signature = fs::read_to_string("/proc/version_signature").unwrap_or_default();
    if protects_kernel_clients(&release, &version, &signature) {
        return Ok(());
    }
    Err(format!(
        "Linux {release} does not protect NFS and SMB mounts from translated addresses (6.6 and later stable kernels do)"
    ))
}

/// Where the hierarchy of version 2 is mounted: the host's, or the node's where a node is a container.
fn find_top() -> Result<PathBuf, String> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let found = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (place, kind) = (words.next()?, words.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(place))
    });
    let top = found.min_by_key(|path| path.as_os_str().len());
    let top = top.ok_or("no cgroup hierarchy of version 2 is mounted; mount the host's /sys/fs/cgroup")?;
    if is_only_ours(&top) {
        return Err(format!(
            "{} has only this process's own cgroup; mount the host's /sys/fs/cgroup",
            top.display()
        ));
    }
    Ok(top)
}

/// In a container with a cgroup namespace, the mount shows the container's own cgroup as the top.
fn is_only_ours(top: &Path) -> bool {
    let own = std::process::id().to_string();
    let processes = fs::read_to_string(top.join("cgroup.procs")).unwrap_or_default();
    // The real root cgroup has no `cgroup.type`.
    top.join("cgroup.type").exists() && processes.lines().any(|process| process == own)
}

fn find_pods(top: &Path) -> Result<PathBuf, String> {
    let found = PODS.iter().map(|name| top.join(name)).find(|path| path.is_dir());
    found.ok_or_else(|| {
        format!(
            "there is no cgroup of pods below {} ({}); see --sockets-pods-cgroup",
            top.display(),
            PODS.join(", ")
        )
    })
}
