//! What this host is able to do.

use std::fs;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use ferroxy_core::Family;
use ferroxy_nftables::apply::ApplyError;

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

/// Being the one that programs this network namespace.
///
/// It is a name in the namespace's own list of abstract sockets: nothing on disk, and gone with the process.
#[derive(Debug)]
pub struct Claim {
    _socket: UnixListener,
}

impl Claim {
    /// `None` while another process has it.
    pub fn take() -> io::Result<Option<Claim>> {
        match UnixListener::bind_addr(&SocketAddr::from_abstract_name("ferroxy/agent")?) {
            Ok(socket) => Ok(Some(Claim { _socket: socket })),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
            Err(error) => Err(error),
        }
    }
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
