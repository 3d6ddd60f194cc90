//! Watches for changes to nf_tables by any process in this network namespace. Linux only.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::error::{Errno, Error};
use crate::socket::{Protocol, Socket, ignore_originator, join, leave};

use super::notice::{Notice, read_notices};
use super::wire::NOTIFICATION_GROUP;

const OPERATION: &str = "watch nftables";

#[derive(Debug)]
pub struct Monitor {
    socket: Socket,
    pending: VecDeque<Notice>,
}

impl Monitor {
    pub fn open() -> Result<Self, Error> {
        let socket = Socket::open(Protocol::Netfilter)?;
        socket.join(NOTIFICATION_GROUP)?;
        Ok(Self { socket, pending: VecDeque::new() })
    }

    /// From now on the kernel leaves out what `port_id` does. A commit of our own makes a notification for every element,
    /// more than any queue holds: without this each large commit is followed by [`Notice::Lost`].
    pub fn ignore(&self, port_id: u32) -> Result<(), Error> {
        self.socket
            .ignore_originator(port_id)
            .map_err(|errno| Error::refused("filter notifications of", port_id.to_string(), errno))
    }

    /// The same from elsewhere, while this thread waits for notices.
    pub fn ignorer(&self) -> Result<Ignorer, Error> {
        let failed = |errno| Error::refused("duplicate the socket to", OPERATION, errno);
        self.socket.duplicate().map(Ignorer).map_err(failed)
    }

    /// For not listening at all for a while, told from elsewhere.
    pub fn ear(&self) -> Result<Ear, Error> {
        let failed = |errno| Error::refused("duplicate the socket to", OPERATION, errno);
        self.socket.duplicate().map(Ear).map_err(failed)
    }

    /// The next notice; `None` when time ran out first. Equal notices in a row are given once.
    pub fn next(&mut self, timeout: Option<Duration>) -> Result<Option<Notice>, Error> {
        let failed = |errno| Error::refused(OPERATION, "", errno);
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            if let Some(notice) = self.pending.pop_front() {
                return Ok(Some(notice));
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if !self.socket.wait(left).map_err(failed)? {
                return Ok(None);
            }
            match self.socket.receive() {
                Ok(Some(bytes)) => read_notices(bytes, &mut self.pending)
                    .map_err(|found| Error::malformed(OPERATION, "", found))?,
                Ok(None) => {}
                Err(Errno::NOBUFS | Errno::MSGSIZE) => return Ok(Some(Notice::Lost)),
                Err(errno) => return Err(failed(errno)),
            }
        }
    }
}

/// Tells a [`Monitor`] whom to ignore.
#[derive(Debug)]
pub struct Ignorer(OwnedFd);

impl Ignorer {
    /// As [`Monitor::ignore`], from now on and in place of whoever was named before.
    pub fn ignore(&self, port_id: u32) -> Result<(), Error> {
        ignore_originator(&self.0, port_id)
            .map_err(|errno| Error::refused("filter notifications of", port_id.to_string(), errno))
    }
}

/// Opens and closes the ear of a [`Monitor`].
///
/// While anybody listens, in whatever namespace of the machine, the kernel makes a notification of each element of a
/// commit, with pages of memory of its own, whether it is ignored later or not: more than half of the time of a large
/// commit (6.18). What happens while the ear is closed is not told later;
/// [`Connection::generation`](super::Connection::generation) tells whether anything did.
#[derive(Debug)]
pub struct Ear(OwnedFd);

impl Ear {
    pub fn close(&self) -> Result<(), Error> {
        leave(&self.0, NOTIFICATION_GROUP)
    }

    pub fn open(&self) -> Result<(), Error> {
        join(&self.0, NOTIFICATION_GROUP)
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
