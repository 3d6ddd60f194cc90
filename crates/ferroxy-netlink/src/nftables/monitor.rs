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

    /// From now on the kernel drops notifications about changes by `port_id`. Our own commits cause a notification for every
    /// element, more than any queue holds: without this filter, [`Notice::Lost`] follows each large commit.
    pub fn ignore(&self, port_id: u32) -> Result<(), Error> {
        self.socket
            .ignore_originator(port_id)
            .map_err(|errno| Error::refused("filter notifications of", port_id.to_string(), errno))
    }

    /// Returns a handle to call `ignore` from another thread, while this thread waits for notices.
    pub fn ignorer(&self) -> Result<Ignorer, Error> {
        let failed = |errno| Error::refused("duplicate the socket to", OPERATION, errno);
        self.socket.duplicate().map(Ignorer).map_err(failed)
    }

    /// Returns a handle to unsubscribe and subscribe again from another thread.
    pub fn subscription(&self) -> Result<Subscription, Error> {
        let failed = |errno| Error::refused("duplicate the socket to", OPERATION, errno);
        self.socket.duplicate().map(Subscription).map_err(failed)
    }

    /// The next notice; `None` after the timeout. Equal notices in a row are returned once.
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

/// Sets which socket a [`Monitor`] ignores.
#[derive(Debug)]
pub struct Ignorer(OwnedFd);

impl Ignorer {
    /// As [`Monitor::ignore`]; replaces the socket of an earlier call.
    pub fn ignore(&self, port_id: u32) -> Result<(), Error> {
        ignore_originator(&self.0, port_id)
            .map_err(|errno| Error::refused("filter notifications of", port_id.to_string(), errno))
    }
}

/// Subscribes and unsubscribes a [`Monitor`].
///
/// While any process of the machine is subscribed, in any namespace, the kernel allocates a notification for each element of a
/// commit, even if a filter drops it later: more than half of the time of a large commit (6.18). Changes while it is
/// unsubscribed are not reported later; compare [`Connection::generation`](super::Connection::generation) to find out whether
/// there were any.
#[derive(Debug)]
pub struct Subscription(OwnedFd);

impl Subscription {
    pub fn pause(&self) -> Result<(), Error> {
        leave(&self.0, NOTIFICATION_GROUP)
    }

    pub fn resume(&self) -> Result<(), Error> {
        join(&self.0, NOTIFICATION_GROUP)
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
