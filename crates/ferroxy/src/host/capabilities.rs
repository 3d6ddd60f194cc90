//! Giving up privileges: of all capabilities the process may have been started with, it goes on with those its mode
//! needs. What each is for is said in the table below; doing without root altogether is the deployment's business.

use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set, clear_ambient_capability_set,
    configure_capability_in_ambient_set, remove_capability_from_bounding_set, set_capabilities,
    set_no_new_privs,
};

use crate::config::Config;
use ferroxy_dataplane::{Mode, Privilege};

/// What a process keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// For itself.
    pub own: CapabilitySet,
    /// For the programs it runs, which have no privileges of their own.
    pub children: CapabilitySet,
}

impl Needs {
    /// What a configuration needs in a mode, from the moment on when the host is prepared.
    ///
    /// Not needed: CAP_SYS_RESOURCE (the OOM score has been set, and never changes), CAP_SYS_MODULE (the kernel loads its
    /// own modules when netlink asks for them), CAP_DAC_OVERRIDE (files are read as the user we are).
    pub fn of(mode: &Mode, config: &Config) -> Needs {
        let set = |privileges: &[Privilege]| {
            privileges.iter().fold(CapabilitySet::empty(), |all, it| {
                all | match it {
                    Privilege::NetAdmin => CapabilitySet::NET_ADMIN,
                    Privilege::NetRaw => CapabilitySet::NET_RAW,
                    Privilege::NetBindService => CapabilitySet::NET_BIND_SERVICE,
                    Privilege::SysResource => CapabilitySet::SYS_RESOURCE,
                }
            })
        };
        let of_mode = Needs { own: set(mode.privileges.own), children: set(mode.privileges.programs) };
        let served = [config.healthz, Some(config.metrics)].into_iter().flatten();
        if served.map(|address| address.port()).any(|port| (1..1024).contains(&port)) {
            return Needs { own: of_mode.own | CapabilitySet::NET_BIND_SERVICE, ..of_mode };
        }
        of_mode
    }
}

/// Gives up everything else, for good: for this process and for what it runs.
///
/// Capabilities are a thread's, and a new thread has those of the one that starts it. So this must be called before any
/// thread is started, and fails when there is one.
pub fn keep_only(needs: Needs) -> io::Result<()> {
    let threads = fs::read_dir("/proc/self/task")?.count();
    if threads != 1 {
        return Err(io::Error::other(format!("{threads} threads are running already")));
    }
    // Whatever is executed from now on gets no more than we have, be it set-user-ID or marked with capabilities.
    set_no_new_privs(true)?;
    clear_ambient_capability_set()?;
    let all = needs.own | needs.children;
    drop_from_bounding_set(all)?;
    let permitted = capabilities(None)?.permitted & all;
    let inheritable = permitted & needs.children;
    set_capabilities(None, CapabilitySets { effective: permitted, permitted, inheritable })?;
    for capability in each(inheritable) {
        configure_capability_in_ambient_set(capability, true)?;
    }
    Ok(())
}

/// The most that could ever be had again. Without CAP_SETPCAP it stays as it is, which `no_new_privs` makes harmless.
fn drop_from_bounding_set(keep: CapabilitySet) -> io::Result<()> {
    for capability in (0..u64::BITS).map(|bit| CapabilitySet::from_bits_retain(1 << bit)) {
        match capability_is_in_bounding_set(capability) {
            Ok(true) if !keep.contains(capability) => match remove_capability_from_bounding_set(capability) {
                Err(Errno::PERM) => return Ok(()),
                result => result?,
            },
            Ok(_) => {}
            // The kernel knows no further ones.
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
    use clap::Parser;

    use super::*;
    use crate::flags::Flags;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: Flags,
    }

    fn needs(mode: &Mode, flags: &[&str]) -> Needs {
        let line = Line::try_parse_from(std::iter::once(&"ferroxy").chain(flags)).unwrap();
        Needs::of(mode, &Config::load(&line.flags, crate::modes::MODES).unwrap().0)
    }

    #[test]
    fn each_mode_keeps_what_it_needs() {
        let admin = CapabilitySet::NET_ADMIN;
        let nftables = Needs { own: admin, children: CapabilitySet::empty() };
        assert_eq!(needs(&ferroxy_nftables::MODE, &[]), nftables);
        let both = admin | CapabilitySet::NET_RAW;
        for mode in [&ferroxy_iptables::MODE, &ferroxy_ipvs::MODE] {
            assert_eq!(needs(mode, &[]), Needs { own: both, children: both }, "{mode:?}");
        }
    }

    #[test]
    fn low_ports_need_a_capability_of_their_own() {
        let low = needs(&ferroxy_nftables::MODE, &["--metrics-bind-address=127.0.0.1:249"]);
        assert_eq!(low.own, CapabilitySet::NET_ADMIN | CapabilitySet::NET_BIND_SERVICE);
        let low = needs(&ferroxy_iptables::MODE, &["--healthz-bind-address=0.0.0.0:1023"]);
        assert!(low.own.contains(CapabilitySet::NET_BIND_SERVICE));
        assert!(!low.children.contains(CapabilitySet::NET_BIND_SERVICE));
        let high = needs(&ferroxy_nftables::MODE, &["--healthz-bind-address=0.0.0.0:1024"]);
        assert_eq!(high.own, CapabilitySet::NET_ADMIN);
    }

    #[test]
    fn a_process_with_threads_keeps_all() {
        // The test harness runs this in a thread of its own.
        let error = keep_only(Needs { own: CapabilitySet::empty(), children: CapabilitySet::empty() });
        assert!(error.unwrap_err().to_string().contains("threads are running already"));
    }
}
