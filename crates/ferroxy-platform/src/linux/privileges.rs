//! Capabilities: the process keeps only those it needs.

use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set, clear_ambient_capability_set,
    configure_capability_in_ambient_set, remove_capability_from_bounding_set, set_capabilities,
    set_no_new_privs,
};

use crate::{Privilege, Privileges};

pub fn keep(privileges: &Privileges, extra: &[Privilege]) -> io::Result<()> {
    keep_only(set(privileges.own) | set(extra), set(privileges.programs))
}

fn keep_only(own: CapabilitySet, programs: CapabilitySet) -> io::Result<()> {
    let threads = fs::read_dir("/proc/self/task")?.count();
    if threads != 1 {
        return Err(io::Error::other(format!("{threads} threads are running already")));
    }
    // From now on no program we execute gets more than we have, whether set-user-ID or with file capabilities.
    set_no_new_privs(true)?;
    clear_ambient_capability_set()?;
    let all = own | programs;
    drop_from_bounding_set(all)?;
    let permitted = capabilities(None)?.permitted & all;
    let inheritable = permitted & programs;
    set_capabilities(None, CapabilitySets { effective: permitted, permitted, inheritable })?;
    for capability in each(inheritable) {
        configure_capability_in_ambient_set(capability, true)?;
    }
    Ok(())
}

/// Without a permitted set and under `no_new_privs`, which [`keep_only`] sets, not even a program that runs as root gets
/// capabilities back.
pub fn give_up_in_this_thread() -> io::Result<()> {
    clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    Ok(set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?)
}

fn set(privileges: &[Privilege]) -> CapabilitySet {
    privileges.iter().map(|privilege| capability(*privilege)).collect()
}

fn capability(privilege: Privilege) -> CapabilitySet {
    match privilege {
        Privilege::NetAdmin => CapabilitySet::NET_ADMIN,
        Privilege::NetRaw => CapabilitySet::NET_RAW,
        Privilege::NetBindService => CapabilitySet::NET_BIND_SERVICE,
        Privilege::SysResource => CapabilitySet::SYS_RESOURCE,
        Privilege::Bpf => CapabilitySet::BPF,
    }
}

/// The bounding set limits what could ever be regained. Without CAP_SETPCAP it stays as it is, which `no_new_privs`
/// makes harmless.
fn drop_from_bounding_set(keep: CapabilitySet) -> io::Result<()> {
    for capability in each(CapabilitySet::from_bits_retain(u64::MAX)) {
        match capability_is_in_bounding_set(capability) {
            Ok(true) if !keep.contains(capability) => match remove_capability_from_bounding_set(capability) {
                Err(Errno::PERM) => return Ok(()),
                result => result?,
            },
            Ok(_) => {}
            // The kernel has no capabilities beyond this one.
            Err(Errno::INVAL) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn each(set: CapabilitySet) -> impl Iterator<Item = CapabilitySet> {
    (0..u64::BITS)
        .map(|bit| CapabilitySet::from_bits_retain(1 << bit))
        .filter(move |capability| set.contains(*capability))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_privilege_is_the_capability_of_its_name() {
        for privilege in Privilege::ALL {
            assert_eq!(CapabilitySet::from_name(privilege.name()), Some(capability(privilege)));
        }
        let both = set(&[Privilege::NetAdmin, Privilege::NetRaw]);
        assert_eq!(both, CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW);
        assert_eq!(set(&[]), CapabilitySet::empty());
    }
}
