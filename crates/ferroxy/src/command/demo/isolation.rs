//! Leaving the host: network and mount namespaces of our own, through a user namespace where we are not root. After
//! this nothing we do can be seen outside, and all of it ends with the process, however that ends.

use std::io;
use std::path::PathBuf;
use std::{env, fs};

use anyhow::Context;
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Moves this process, which must not have started a thread yet, away from the host. Returns a folder that only this
/// process and its children see.
pub fn leave_host() -> anyhow::Result<PathBuf> {
    isolate().map_err(|error| {
        let forbidden = [Errno::PERM, Errno::ACCESS, Errno::NOSPC, Errno::USERS].map(io::Error::from);
        let forbidden = forbidden.iter().any(|known| known.raw_os_error() == error.raw_os_error());
        let advice = if forbidden { "; run it as root" } else { "" };
        anyhow::anyhow!("the demo needs network namespaces, and this system forbids them ({error}){advice}")
    })?;
    private_folder()
}

fn isolate() -> io::Result<()> {
    let own = UnshareFlags::NEWNET | UnshareFlags::NEWNS;
    match unshare(own) {
        Err(Errno::PERM) => {}
        done => return Ok(done?),
    }
    // Not root, or a root without CAP_SYS_ADMIN: root of a user namespace may do the same.
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    unshare(own | UnshareFlags::NEWUSER)?;
    fs::write("/proc/self/uid_map", format!("0 {} 1", user.as_raw()))?;
    // The kernel lets an ordinary user map groups only after giving up setgroups(2).
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/gid_map", format!("0 {} 1", group.as_raw()))
}

fn unshare(namespaces: UnshareFlags) -> rustix::io::Result<()> {
    // SAFETY: without CLONE_FILES the descriptor table stays shared, so no descriptor changes its meaning.
    unsafe { unshare_unsafe(namespaces) }
}

/// A file system in memory, over the temporary folder, in our mount namespace only: it leaves nothing behind even
/// when we are killed.
fn private_folder() -> anyhow::Result<PathBuf> {
    let folder = env::temp_dir();
    // Otherwise the host, with which mounts may be shared, would see it.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .context("cannot keep mounts to ourselves (run it as root)")?;
    mount("ferroxy-demo", &folder, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, None)
        .with_context(|| format!("cannot mount a private folder over {} (run it as root)", folder.display()))?;
    Ok(folder)
}
