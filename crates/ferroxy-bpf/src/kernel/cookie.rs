//! The cookie of a network namespace: the number by which programs identify it.

use std::os::fd::AsFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::call::long_option;
use super::error::Error;

const SO_NETNS_COOKIE: i32 = 71;

/// The cookie of the calling thread's namespace. Needs Linux 5.14.
pub fn namespace_cookie() -> Result<u64, Error> {
    let failed = |errno| Error::new("read the cookie of", "the network namespace", errno);
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).map_err(failed)?;
    long_option(socket.as_fd(), SO_NETNS_COOKIE).map_err(failed)
}
