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
use ferroxy_nftables::apply::ApplyError;
use tracing::warn;

use crate::config::{Config, Mode};
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

/// Goes on with the privileges that the mode needs. Call it after [`prepare`] and before any thread is started.
pub fn give_up_privileges(mode: Mode, config: &Config) {
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
    /// `None` while another agent has it. Anybody may take a name, so only those count who could be an agent: root, or
    /// the user we are. From others it cannot be had, and must not keep us from working.
    pub fn take() -> io::Result<Option<Claim>> {
        let name = SocketAddr::from_abstract_name("ferroxy/agent")?;
        match UnixListener::bind_addr(&name) {
            Ok(socket) => Ok(Some(Claim { socket: Some(socket) })),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => match holder(&name) {
                Some(user) if user.is_root() || user == rustix::process::geteuid() => Ok(None),
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
fn holder(name: &SocketAddr) -> Option<rustix::process::Uid> {
    let stream = UnixStream::connect_addr(name).ok()?;
    rustix::net::sockopt::socket_peercred(&stream).ok().map(|peer| peer.uid)
}

/// What a kernel that refuses the program lacks, in words a person can act on.
pub fn explain_missing(error: &ApplyError) -> anyhow::Error {
    let permission = |error: &ferroxy_netlink::error::Error| error.errno == rustix::io::Errno::PERM;
    let mut kernels_words = error.refused.iter().map(|(_, error)| error).chain(&error.other);
    if kernels_words.any(permission) {
        return anyhow::anyhow!("not permitted to program the kernel: run as root, or with CAP_NET_ADMIN");
    }
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let refused: Vec<String> = error.refused.iter().map(|(op, error)| format!("`{op}`: {error}")).collect();
    let what = if refused.is_empty() { error.to_string() } else { refused.join("; ") };
    anyhow::anyhow!(
        "this kernel ({release}) cannot do what nftables mode needs (Linux 5.13 with nf_tables, nft_nat, nft_masq, \
         nft_fib and nft_reject can): {what}"
    )
}
