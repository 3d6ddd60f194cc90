//! Notice that addresses of this namespace changed, and which. Notices can be lost, and say so: who must not miss anything
//! lists the addresses again.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::io::Errno;

use super::Address;
use crate::codec::{Malformed, Messages};
use crate::error::Error;
use crate::socket::{Protocol, Socket};

/// Watches from the moment it is opened. Open it *before* the first listing, and no change falls between.
#[derive(Debug)]
pub struct AddressMonitor {
    socket: Socket,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// What came or went since the last notice, in order.
    Changed(Vec<Moved>),
    /// So many came or went that the kernel dropped some notifications. Also calls for a new listing.
    Lost,
}

/// An address that came or went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    pub address: Address,
    pub came: bool,
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
        let mut moved = Some(Vec::new());
        loop {
            match self.socket.receive() {
                Ok(None) => return Ok(Some(moved.map_or(Notice::Lost, Notice::Changed))),
                Ok(Some(bytes)) => moved = moved.and_then(|moved| read(bytes, moved).ok()),
                // Larger than our buffer and cut: what it said is lost, too.
                Err(Errno::NOBUFS | Errno::MSGSIZE) => moved = None,
                Err(errno) => return Err(failed(errno)),
            }
        }
    }
}

fn read(bytes: &[u8], mut moved: Vec<Moved>) -> Result<Vec<Moved>, Malformed> {
    for message in Messages::new(bytes) {
        let message = message?;
        let came = match message.kind {
            libc::RTM_NEWADDR => true,
            libc::RTM_DELADDR => false,
            _ => continue,
        };
        moved.extend(Address::decode(&message)?.map(|address| Moved { address, came }));
    }
    Ok(moved)
}

/// Readable when `next` would not wait.
impl AsFd for AddressMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
