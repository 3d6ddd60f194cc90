//! Notice that addresses of this namespace changed. It does not say which: who cares lists them again, which is
//! cheap and cannot miss anything.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::io::Errno;

use crate::error::Error;
use crate::socket::{Protocol, Socket};

/// Watches from the moment it is opened. Open it *before* the first listing, and no change falls between.
#[derive(Debug)]
pub struct AddressMonitor {
    socket: Socket,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// Addresses came or went since the last notice.
    Changed,
    /// So many came or went that the kernel dropped some notifications. Also calls for a new listing.
    Lost,
}

impl AddressMonitor {
    pub fn open() -> Result<AddressMonitor, Error> {
        let socket = Socket::open(Protocol::Route)?;
        socket.join(libc::RTNLGRP_IPV4_IFADDR)?;
        socket.join(libc::RTNLGRP_IPV6_IFADDR)?;
        Ok(AddressMonitor { socket })
    }

    /// Waits for a change: `None` when none came in time, no timeout waits for ever. Everything that has arrived
    /// by then is one notice.
    pub fn next(&mut self, timeout: Option<Duration>) -> Result<Option<Notice>, Error> {
        let failed = |errno| Error::refused("watch addresses", "", errno);
        if !self.socket.wait(timeout).map_err(failed)? {
            return Ok(None);
        }
        let mut notice = None;
        loop {
            match self.socket.receive() {
                Ok(None) => return Ok(notice),
                // Larger than our buffer and cut: a change all the same.
                Ok(Some(_)) | Err(Errno::MSGSIZE) => notice = notice.or(Some(Notice::Changed)),
                Err(Errno::NOBUFS) => notice = Some(Notice::Lost),
                Err(errno) => return Err(failed(errno)),
            }
        }
    }
}

/// Readable when `next` would not wait.
impl AsFd for AddressMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
