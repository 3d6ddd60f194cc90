//! Socket options that rustix does not cover. All `unsafe` code of this crate is here.

#![allow(unsafe_code, reason = "the system calls take pointers; this file is the only one that may")]

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::error::Errno;
use crate::xtables::{COUNTER, Replacement};

/// Sets an option of netlink sockets, all of which are numbers.
pub(crate) fn set_netlink_option(fd: &OwnedFd, option: i32, value: u32) -> Result<(), Errno> {
    // SAFETY: the value contains no pointer.
    unsafe { set(fd, libc::SOL_NETLINK, option, &value.to_ne_bytes()) }
}

/// Makes the kernel drop notifications about changes by the socket with this port id, and answers to it. Replaces the filter of
/// an earlier call.
pub(crate) fn ignore_originator(fd: &OwnedFd, port_id: u32) -> Result<(), Errno> {
    // Offset of nlmsg_pid. All messages of one datagram have one originator. The program loads words as if they
    // were big endian, while the header is in host byte order.
    const PORT_OFFSET: u32 = 12;
    let port_id = u32::from_be_bytes(port_id.to_ne_bytes());
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let compare = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let finish = (libc::BPF_RET | libc::BPF_K) as u16;
    let mut filter = [
        libc::sock_filter { code: load, jt: 0, jf: 0, k: PORT_OFFSET },
        libc::sock_filter { code: compare, jt: 0, jf: 1, k: port_id },
        libc::sock_filter { code: finish, jt: 0, jf: 0, k: 0 },
        libc::sock_filter { code: finish, jt: 0, jf: 0, k: u32::MAX },
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    let length = size_of_val(&program) as libc::socklen_t;
    // SAFETY: the kernel reads the program, whose pointer and length are those of `filter`, which lives until this returns.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            std::ptr::from_ref(&program).cast::<c_void>(),
            length,
        )
    };
    result_of(result)
}

/// Reads an option into a buffer, which may hold a request for the kernel.
pub(crate) fn read(fd: &OwnedFd, level: i32, option: i32, buffer: &mut [u8]) -> Result<(), Errno> {
    let mut length = buffer.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to the buffer, and `length` is the buffer's size.
    let result = unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, option, buffer.as_mut_ptr().cast::<c_void>(), &mut length)
    };
    result_of(result)
}

/// Replaces a table of legacy iptables, and returns the counters of the entries that it had.
pub(crate) fn replace_table(
    fd: &OwnedFd,
    level: i32,
    option: i32,
    replacement: &mut Replacement,
) -> Result<Vec<u8>, Errno> {
    let mut counters = vec![0; replacement.entries_before() * COUNTER];
    let message = replacement.message(counters.as_mut_ptr() as u64);
    // SAFETY: the one pointer in the message is that to `counters`. The kernel writes as many counters there as the message
    // says, which is `entries_before`, and refuses the message unless the table has exactly as many entries.
    unsafe { set(fd, level, option, message) }?;
    Ok(counters)
}

/// Adds to the counters of a table of legacy iptables.
pub(crate) fn add_counters(fd: &OwnedFd, level: i32, option: i32, message: &[u8]) -> Result<(), Errno> {
    // SAFETY: the message, `xt_counters_info`, contains no pointer.
    unsafe { set(fd, level, option, message) }
}

/// # Safety
/// Pointers inside of `value` are valid for what the kernel does with them.
unsafe fn set(fd: &OwnedFd, level: i32, option: i32, value: &[u8]) -> Result<(), Errno> {
    let length = value.len() as libc::socklen_t;
    // SAFETY: pointer and length are of one live value, which the kernel only reads; the caller vouches for pointers in it.
    let result = unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, value.as_ptr().cast(), length) };
    result_of(result)
}

fn result_of(result: i32) -> Result<(), Errno> {
    match result {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}
