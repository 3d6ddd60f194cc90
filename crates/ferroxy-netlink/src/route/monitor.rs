//! Watches for changes to the addresses of this network namespace. Linux only.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::notice::{Notice, read};
use super::wire::{RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR};
use crate::error::{Errno, Error};
use crate::socket::{Protocol, Socket};

/// Watches from the moment it is opened. Open it *before* listing the addresses, so that no change is missed.
#[derive(Debug)]
pub struct AddressMonitor {
    socket: Socket,
}

impl AddressMonitor {
    pub fn open() -> Result<AddressMonitor, Error> {
        let socket = Socket::open(Protocol::Route)?;
        socket.join(RTNLGRP_IPV4_IFADDR)?;
        socket.join(RTNLGRP_IPV6_IFADDR)?;
        Ok(AddressMonitor { socket })
    }

    /// Waits for a change: `None` after the timeout; without a timeout it waits for ever. All changes that have arrived by then
    /// are one notice.
    pub fn next(&mut self, timeout: Option<Duration>) -> Result<Option<Notice>, Error> {
        let failed = |errno| Error::refused("watch addresses", "", errno);
        if !self.socket.wait(timeout).map_err(failed)? {
            return Ok(None);
        }
        let mut moved = Some(Vec::new());
        loop {
            match self.socket.receive() {
                Ok(None) => return Ok(Some(moved.map_or(Notice::Lost, Notice::Changed))),
                Ok(Some(bytes)) => moved = moved.and_then(|moved| read(bytes, moved).ok()),
                // Larger than the buffer and truncated: its changes are lost, too.
                Err(Errno::NOBUFS | Errno::MSGSIZE) => moved = None,
                Err(errno) => return Err(failed(errno)),
            }
        }
    }
}

/// Readable when `next` does not wait.
impl AsFd for AddressMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
