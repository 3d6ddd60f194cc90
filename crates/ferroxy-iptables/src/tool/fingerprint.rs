//! A cheap sign that somebody changed a table: the same fingerprint as before means that nothing of ours was flushed or
//! removed. What changed is for `save` to find out.
//!
//! Reading 10,000 Services back takes some seconds of CPU in either variant; a fingerprint is one system call.
//!
//! - **nf_tables**: the generation, which counts the commits of everybody to all tables of this network namespace. No change is
//!   missed; a foreign one is a reason to look. It can also be had without asking:
//!   [`ferroxy_netlink::nftables::Monitor`] tells of changes to the tables `nat`, `filter` and `mangle` of the family.
//! - **legacy**: there are no notifications and no generation. The kernel tells the number of entries of a table and their size
//!   (as `iptables` itself asks for them, before it copies them). A rule replaced by one of the same size is not seen: a full
//!   comparison now and then is still needed.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};

use ferroxy_netlink::nftables::Connection;
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, ipproto, socket_with};

use super::detect::legacy_table_exists;
use super::{Error, Family, Variant};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fingerprint {
    /// No such table, so none of our rules.
    Absent,
    /// Of all of nf_tables. A [`Receipt`](super::Receipt) says by how much our own restore may have raised it.
    Generation(u32),
    /// Of a legacy table.
    Entries { count: u32, bytes: u32 },
}

/// Of the network namespace that the calling thread is in.
pub fn fingerprint(family: Family, variant: Variant, table: &str) -> Result<Fingerprint, Error> {
    match variant {
        Variant::NfTables => Ok(Fingerprint::Generation(Connection::open()?.generation()?)),
        Variant::Legacy => {
            ask_legacy(family, table).map_err(|source| Error::Fingerprint { table: table.to_owned(), source })
        }
    }
}

/// `struct ipt_getinfo`; `ip6t_getinfo` is the same.
#[repr(C)]
#[derive(Default)]
struct Info {
    name: [u8; 32],
    valid_hooks: u32,
    hook_entry: [u32; 5],
    underflow: [u32; 5],
    entries: u32,
    bytes: u32,
}

/// `IPT_SO_GET_INFO` and `IP6T_SO_GET_INFO`.
const GET_INFO: libc::c_int = 64;

fn ask_legacy(family: Family, table: &str) -> io::Result<Fingerprint> {
    // Asking the kernel about a table makes it: look whether it is there first.
    if !legacy_table_exists(family, table) {
        return Ok(Fingerprint::Absent);
    }
    let (domain, level) = match family {
        Family::V4 => (AddressFamily::INET, libc::IPPROTO_IP),
        Family::V6 => (AddressFamily::INET6, libc::IPPROTO_IPV6),
    };
    let mut info = Info::default();
    // The last byte stays zero: the name is a C string.
    let room = info.name.len() - 1;
    if table.len() > room {
        return Ok(Fingerprint::Absent);
    }
    info.name[..table.len()].copy_from_slice(table.as_bytes());
    let protocol: Option<Protocol> = Some(ipproto::RAW);
    let socket = socket_with(domain, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
    get_info(&socket, level, &mut info)?;
    Ok(Fingerprint::Entries { count: info.entries, bytes: info.bytes })
}

fn get_info(socket: &OwnedFd, level: libc::c_int, info: &mut Info) -> io::Result<()> {
    let mut length = mem::size_of::<Info>() as libc::socklen_t;
    let pointer: *mut Info = info;
    // SAFETY: the kernel reads and writes at most `length` bytes at `pointer`, which is a live Info of that size, and any bytes
    // make a valid Info.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, GET_INFO, pointer.cast(), &raw mut length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
