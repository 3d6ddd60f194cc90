//! Leaves the host: moves to our own network and mount namespaces, through a user namespace unless we are root. From then
//! on nothing is visible outside, and everything ends with the process, even if it is killed.

use std::io;
use std::path::PathBuf;
use std::{env, fs};

use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::{getegid, geteuid};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Moves this process, which must not have started a thread yet, away from the host. Returns a folder that only this
/// process and its children see.
pub fn leave_host() -> anyhow::Result<PathBuf> {
    let is_root = geteuid().is_root();
    isolate().and_then(|()| private_folder()).map_err(|error| match is_root {
        true => anyhow::anyhow!("cannot make namespaces for the demo: {error}"),
        false => anyhow::anyhow!(
            "this system lets only root make network namespaces ({error}): run the demo as root"
        ),
    })
}

fn isolate() -> io::Result<()> {
    let own = UnshareFlags::NEWNET | UnshareFlags::NEWNS;
    match unshare(own) {
        Err(Errno::PERM) => {}
        done => return Ok(done?),
    }
    // Not root, or a root without CAP_SYS_ADMIN: root of a user namespace may do the same.
    let (user, group) = (geteuid(), getegid());
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
fn private_folder() -> io::Result<PathBuf> {
    let folder = env::temp_dir();
    // Mounts may be shared with the host: without this, the host would see the new mount.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    mount("ferroxy-demo", &folder, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, None)?;
    Ok(folder)
}
