//! Options of sockets, the original destination of redirected connections, and limits of descriptors.

use std::fs::File;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use socket2::{SockRef, Socket};

/// From linux/netfilter_ipv4.h and linux/netfilter_ipv6/ip6_tables.h: both have the same number.
const SO_ORIGINAL_DST: libc::c_int = 80;

/// All listening sockets of one address share it (SO_REUSEPORT), including those of a successor; wildcard and specific
/// addresses may be used at the same time.
pub fn prepare_listener(socket: &Socket, address: SocketAddr, freebind: bool) -> io::Result<()> {
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    match (address, freebind) {
        (SocketAddr::V4(_), true) => socket.set_freebind_v4(true),
        (SocketAddr::V6(_), true) => socket.set_freebind_v6(true),
        _ => Ok(()),
    }
}

/// Whether answers need the address that the client used: sockets bound to one address always answer from it.
fn wants_arrival_address(address: SocketAddr) -> bool {
    address.ip().is_unspecified()
}

/// For sockets of frontends and of sessions: the kernel coalesces received datagrams (UDP_GRO), and may fragment large
/// ones when it sends them.
pub fn prepare_datagrams(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    let fd = socket.as_fd();
    // Kernels before 5.0 lack it: datagrams arrive one by one.
    let _ = set(fd, libc::SOL_UDP, libc::UDP_GRO, 1i32);
    match address {
        SocketAddr::V4(_) => {
            set(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DONT)?;
            set(fd, libc::IPPROTO_IP, libc::IP_PKTINFO, i32::from(wants_arrival_address(address)))
        }
        SocketAddr::V6(_) => {
            set(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DONT)?;
            set(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, i32::from(wants_arrival_address(address)))
        }
    }
}

pub fn set_mark(socket: &impl AsFd, mark: u32) -> io::Result<()> {
    SockRef::from(socket).set_mark(mark)
}

pub fn set_user_timeout(socket: &impl AsFd, timeout: Duration) -> io::Result<()> {
    SockRef::from(socket).set_tcp_user_timeout(Some(timeout))
}

/// Where a redirected connection was going.
pub fn original_destination(stream: &impl AsFd, local: SocketAddr) -> io::Result<SocketAddr> {
    let fd = stream.as_fd();
    if local.is_ipv4() {
        let it: libc::sockaddr_in = get(fd, libc::SOL_IP, SO_ORIGINAL_DST)?;
        let address = Ipv4Addr::from(u32::from_be(it.sin_addr.s_addr));
        return Ok(SocketAddrV4::new(address, u16::from_be(it.sin_port)).into());
    }
    let it: libc::sockaddr_in6 = get(fd, libc::SOL_IPV6, SO_ORIGINAL_DST)?;
    let address = Ipv6Addr::from(it.sin6_addr.s6_addr);
    Ok(SocketAddrV6::new(address, u16::from_be(it.sin6_port), 0, 0).into())
}

/// Descriptors or memory for sockets have run out: waiting helps, and no endpoint is to blame.
pub fn is_exhausted(error: &io::Error) -> bool {
    let exhausted = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
    error.raw_os_error().is_some_and(|code| exhausted.contains(&code))
}

/// How many descriptors this process may have; `None` if there is no limit.
pub fn descriptor_limit() -> Option<usize> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current.and_then(|it| usize::try_from(it).ok())
}

/// A descriptor in reserve. When no others are left, closing it lets a waiting connection be accepted and reset.
#[derive(Debug)]
pub struct Spare(Option<File>);

impl Spare {
    pub fn new() -> Spare {
        Spare(File::open("/dev/null").ok())
    }

    /// Frees the descriptor; returns whether there was one.
    pub fn spend(&mut self) -> bool {
        self.0.take().is_some()
    }

    pub fn restore(&mut self) {
        if self.0.is_none() {
            *self = Spare::new();
        }
    }
}

fn set(fd: BorrowedFd<'_>, level: libc::c_int, name: libc::c_int, value: i32) -> io::Result<()> {
    let length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the option value is an i32 that lives during the call.
    let result = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads an option that is a plain C structure.
fn get<T: Copy>(fd: BorrowedFd<'_>, level: libc::c_int, name: libc::c_int) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes at most `length` bytes to `value`.
    let result =
        unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, value.as_mut_ptr().cast(), &mut length) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: T is a C structure of integers, for which zeroes and whatever the kernel wrote are valid.
    Ok(unsafe { value.assume_init() })
}
