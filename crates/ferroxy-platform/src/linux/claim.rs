//! The claim as a netlink socket with a name (port id) of ours that has joined a multicast group of netfilter.
//!
//! - Only a process that may program this network namespace can join: `bind` demands CAP_NET_ADMIN in the user
//!   namespace that owns it. So the kernel vouches for a holder, whatever its user and PID namespace; with a Unix
//!   socket, `SO_PEERCRED` shows a holder in another PID namespace as pid 0.
//! - `/proc/net/netlink` lists names and groups of this network namespace. No process connects to the holder, so none
//!   can delay or exhaust it, and a check never blocks.
//! - The kernel closes the socket when the process ends.
//!
//! Any process may take a name without joining. Such a name does not count. There are more names than any process can
//! take, so such names do not prevent agents from detecting each other either.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufRead, BufReader};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::netlink::{NETFILTER, SocketAddrNetlink};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

/// Above any process id (2²²), which programs use as names, and below those that the kernel chooses (from 2³¹).
const NAMES: RangeInclusive<u32> = 0x4000_0000..=0x5fff_ffff;

/// Expectations of connection tracking that end: they are hardly ever announced, and joining the group costs nothing.
const GROUP: u32 = 1 << (libc::NFNLGRP_CONNTRACK_EXP_DESTROY - 1);

#[derive(Debug)]
pub struct Held {
    _socket: OwnedFd,
}

/// First takes a name and then looks for another holder, so of two agents that start together at least one sees the
/// other. If both do, both withdraw, and try again at different moments.
pub fn take() -> io::Result<Option<Held>> {
    // A waiting agent must not look like a holder to the next one.
    if holders()?.next().is_some() {
        return Ok(None);
    }
    let (socket, name) = join()?;
    let alone = holders()?.all(|holder| holder == name);
    Ok(alone.then_some(Held { _socket: socket }))
}

/// A socket with a free name that has joined the group.
fn join() -> io::Result<(OwnedFd, u32)> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(NETFILTER))?;
    // Announcements are not read: the kernel keeps one or two, and drops the rest.
    sockopt::set_socket_recv_buffer_size(&socket, 0)?;
    let mut name = *NAMES.start();
    loop {
        match rustix::net::bind(&socket, &SocketAddrNetlink::new(name, GROUP)) {
            Ok(()) => return Ok((socket, name)),
            Err(Errno::ADDRINUSE) => name = any_name(),
            Err(Errno::PERM) => {
                return Err(io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    "not permitted without CAP_NET_ADMIN",
                ));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// A name that other processes cannot predict, and so cannot take before us.
fn any_name() -> u32 {
    let random = RandomState::new().hash_one(());
    NAMES.start() | (random as u32 & (NAMES.end() - NAMES.start()))
}

/// The names of all agents in the network namespace of this thread.
fn holders() -> io::Result<impl Iterator<Item = u32>> {
    let sockets = BufReader::new(File::open("/proc/thread-self/net/netlink")?);
    let mut names = Vec::new();
    for line in sockets.lines() {
        names.extend(holder(&line?));
    }
    Ok(names.into_iter())
}

/// The name in a line of `/proc/net/netlink` (`sk Eth Pid Groups …`), if it is that of an agent.
fn holder(line: &str) -> Option<u32> {
    let mut columns = line.split_ascii_whitespace().skip(1);
    let protocol: u32 = columns.next()?.parse().ok()?;
    let name = columns.next()?.parse().ok()?;
    let groups = u32::from_str_radix(columns.next()?, 16).ok()?;
    let is_agent = protocol == NETFILTER.as_raw().get() && NAMES.contains(&name) && groups & GROUP != 0;
    is_agent.then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_has_one_of_our_names_and_has_joined() {
        let line = |protocol: u32, name: u32, groups: &str| {
            format!(
                "000000009de644ec {protocol:<3} {name:<10} {groups} 0        0        0     2        0        28583   "
            )
        };
        let name = *NAMES.start();
        assert_eq!(holder(&line(12, name, "00000020")), Some(name));
        assert_eq!(holder(&line(12, *NAMES.end(), "00000060")), Some(*NAMES.end()));
        assert_eq!(holder(&line(12, name, "00000000")), None, "only took the name");
        assert_eq!(holder(&line(12, name, "00000010")), None, "joined another group");
        assert_eq!(holder(&line(12, name - 1, "00000020")), None, "has a name of its own");
        assert_eq!(holder(&line(0, name, "00000020")), None, "speaks another protocol");
        let header =
            "sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode";
        assert_eq!(holder(header), None);
    }

    #[test]
    fn every_name_chosen_at_random_is_ours() {
        assert!((0..1000).all(|_| NAMES.contains(&any_name())));
    }
}
