//! This host: what it is able to do, what is set on it before the work begins, and what this process may do to it.

pub mod capabilities;
pub mod notify;
pub mod oom;
pub mod sysctl;

use std::fs;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use ferroxy_core::Family;
use ferroxy_dataplane::Mode;
use rustix::net::UCred;
use tracing::warn;

use crate::config::Config;
use capabilities::Needs;

/// The IP families that are switched on.
pub fn families() -> Vec<Family> {
    let present = fs::exists("/proc/net/if_inet6").unwrap_or(false);
    let disabled = fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6");
    if present && disabled.is_ok_and(|value| value.trim() != "1") {
        Family::ALL.to_vec()
    } else {
        vec![Family::V4]
    }
}

/// What needs more privileges than the work itself: done before they are given up, and all that `--init-only` does.
pub fn prepare(config: &Config) {
    oom::set_score(config.oom_score_adj);
    sysctl::apply(&config.conntrack);
}

/// The same for a configuration that has changed, as far as the privileges that are left allow it. What has not changed is
/// not done, and not complained about, again.
pub fn prepare_again(old: &Config, new: &Config) {
    if old.oom_score_adj != new.oom_score_adj {
        oom::set_score(new.oom_score_adj);
    }
    if old.conntrack != new.conntrack {
        sysctl::apply(&new.conntrack);
    }
}

/// Goes on with the privileges that the mode needs. Call it after [`prepare`] and before any thread is started.
pub fn give_up_privileges(mode: &Mode, config: &Config) {
    if let Err(error) = capabilities::keep_only(Needs::of(mode, config)) {
        warn!("going on with all privileges: they cannot be given up ({error})");
    }
}

/// Being the one that programs this network namespace.
///
/// It is a name in the namespace's own list of abstract sockets: nothing on disk, and gone with the process.
#[derive(Debug)]
pub struct Claim {
    socket: Option<UnixListener>,
}

impl Claim {
    /// `None` while another agent has it. Anybody may take a name, so only those count who could be an agent: root, the
    /// user we are, or whoever may program the network. From others it cannot be had, and must not keep us from working.
    pub fn take() -> io::Result<Option<Claim>> {
        let name = SocketAddr::from_abstract_name("ferroxy/agent")?;
        match UnixListener::bind_addr(&name) {
            Ok(socket) => Ok(Some(Claim { socket: Some(socket) })),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => match holder(&name) {
                Some(peer) if could_be_an_agent(&peer) => Ok(None),
                _ => Ok(Some(Claim { socket: None })),
            },
            Err(error) => Err(error),
        }
    }

    /// False when a stranger has taken the name: then a second agent would not notice us.
    pub fn is_exclusive(&self) -> bool {
        self.socket.is_some()
    }
}

/// Who listens under a name; `None` when nobody does.
fn holder(name: &SocketAddr) -> Option<UCred> {
    let stream = UnixStream::connect_addr(name).ok()?;
    rustix::net::sockopt::socket_peercred(&stream).ok()
}

fn could_be_an_agent(peer: &UCred) -> bool {
    // A process of a pid namespace that we cannot see into has no status for us to read.
    let status = || fs::read_to_string(format!("/proc/{}/status", peer.pid.as_raw_nonzero()));
    peer.uid.is_root()
        || peer.uid == rustix::process::geteuid()
        || status().is_ok_and(|status| may_program_the_network(&status))
}

/// As `/proc/<pid>/status` says it: whether CAP_NET_ADMIN is in the effective set.
fn may_program_the_network(status: &str) -> bool {
    const NET_ADMIN: u64 = 1 << 12;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    bits.is_some_and(|bits| bits & NET_ADMIN != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_program_the_network_is_in_the_status() {
        let status = |effective: &str| format!("Name:\tx\nCapPrm:\t000001ffffffffff\nCapEff:\t{effective}\n");
        assert!(may_program_the_network(&status("0000000000001000")));
        assert!(may_program_the_network(&status("000001ffffffffff")));
        assert!(!may_program_the_network(&status("0000000000000000")));
        assert!(!may_program_the_network(&status("00000000000000ff")));
        assert!(!may_program_the_network("Name:\tx\n"));
    }
}
