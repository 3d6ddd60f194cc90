//! The claim as an abstract Unix socket: one list of names for each network namespace, no file, and the name is free as
//! soon as the process ends.

use std::fs;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use rustix::net::UCred;

#[derive(Debug)]
pub struct Held {
    socket: Option<UnixListener>,
}

impl Held {
    pub fn is_exclusive(&self) -> bool {
        self.socket.is_some()
    }
}

/// Anyone may bind a name, so only a holder that could be an agent counts: root, our own user, or a process that may
/// program the network. Any other must not keep us from working.
pub fn take(name: &str) -> io::Result<Option<Held>> {
    let address = SocketAddr::from_abstract_name(name)?;
    match UnixListener::bind_addr(&address) {
        Ok(socket) => Ok(Some(Held { socket: Some(socket) })),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => match holder(&address) {
            Some(peer) if could_be_an_agent(&peer) => Ok(None),
            _ => Ok(Some(Held { socket: None })),
        },
        Err(error) => Err(error),
    }
}

/// Who listens on this address; `None` when nobody does.
fn holder(address: &SocketAddr) -> Option<UCred> {
    let stream = UnixStream::connect_addr(address).ok()?;
    rustix::net::sockopt::socket_peercred(&stream).ok()
}

fn could_be_an_agent(peer: &UCred) -> bool {
    // The status of a process in a foreign pid namespace cannot be read.
    let status = || fs::read_to_string(format!("/proc/{}/status", peer.pid.as_raw_nonzero()));
    peer.uid.is_root()
        || peer.uid == rustix::process::geteuid()
        || status().is_ok_and(|status| may_program_the_network(&status))
}

/// Whether CAP_NET_ADMIN is in the effective set of `/proc/<pid>/status`.
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
    fn a_name_is_held_once_and_free_again_after_a_drop() {
        let name = format!("ferroxy/test-{}", std::process::id());
        let held = take(&name).unwrap().unwrap();
        assert!(held.is_exclusive());
        assert!(take(&name).unwrap().is_none());
        drop(held);
        assert!(take(&name).unwrap().is_some());
    }

    #[test]
    fn effective_capabilities_are_read_from_the_status() {
        let status = |effective: &str| format!("Name:\tx\nCapPrm:\t000001ffffffffff\nCapEff:\t{effective}\n");
        assert!(may_program_the_network(&status("0000000000001000")));
        assert!(may_program_the_network(&status("000001ffffffffff")));
        assert!(!may_program_the_network(&status("0000000000000000")));
        assert!(!may_program_the_network(&status("00000000000000ff")));
        assert!(!may_program_the_network("Name:\tx\n"));
    }
}
