//! Notice of changes to nf_tables, by anyone in this network namespace. Says what kind of thing changed in which table,
//! not how: whoever needs to know reads it back.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::codec::{Malformed, Message, Messages};
use crate::error::Error;
use crate::socket::{Protocol, Socket, ignore_originator, join, leave};

use super::connection::read_generation;
use super::decode::{read_chain_name, read_family, read_table_name};
use super::types::Family;
use super::wire::{NOTIFICATION_GROUP, message};

const OPERATION: &str = "watch nftables";

#[derive(Debug)]
pub struct Monitor {
    socket: Socket,
    pending: VecDeque<Notice>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    Changed {
        /// `None` for families this crate does not write.
        family: Option<Family>,
        table: String,
        /// `table`, `chain`, `rule`, `set`, `element`, `object` or `flowtable`.
        what: &'static str,
        /// Of a chain or rule.
        chain: Option<String>,
        removed: bool,
        /// Who did it: compare with [`Connection::port_id`](super::Connection::port_id).
        port_id: u32,
    },
    /// A commit is complete.
    Generation { id: u32, port_id: u32 },
    /// More was said than our queue could hold: anything may have changed.
    Lost,
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

fn read_notices(bytes: &[u8], pending: &mut VecDeque<Notice>) -> Result<(), Malformed> {
    for message in Messages::new(bytes) {
        if let Some(notice) = read_notice(&message?)?
            && pending.back() != Some(&notice)
        {
            pending.push_back(notice);
        }
    }
    Ok(())
}

fn read_notice(message: &Message<'_>) -> Result<Option<Notice>, Malformed> {
    let port_id = message.port_id;
    let (what, removed) = match message.kind {
        message::NEWTABLE => ("table", false),
        message::DELTABLE => ("table", true),
        message::NEWCHAIN => ("chain", false),
        message::DELCHAIN => ("chain", true),
        message::NEWRULE => ("rule", false),
        message::DELRULE => ("rule", true),
        message::NEWSET => ("set", false),
        message::DELSET => ("set", true),
        message::NEWSETELEM => ("element", false),
        message::DELSETELEM => ("element", true),
        message::NEWOBJ => ("object", false),
        message::DELOBJ => ("object", true),
        message::NEWFLOWTABLE => ("flowtable", false),
        message::DELFLOWTABLE => ("flowtable", true),
        message::NEWGEN => return Ok(Some(Notice::Generation { id: read_generation(message)?, port_id })),
        _ => return Ok(None),
    };
    let (family, table) = (read_family(message)?, read_table_name(message)?.to_owned());
    let chain = read_chain_name(message, what)?;
    Ok(Some(Notice::Changed { family, table, what, chain, removed, port_id }))
}
