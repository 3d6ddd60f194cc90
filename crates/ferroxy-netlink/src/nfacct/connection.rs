//! A connection to the packet counters. Decides nothing about them. Linux only.

use super::{Counter, message, put_name, read_counter};
use crate::codec::flag;
use crate::error::{Errno, Error, Kind};
use crate::socket::{Protocol, Request, Socket};

/// A connection to the counters of the network namespace that the calling thread is in when it opens it.
#[derive(Debug)]
pub struct Connection {
    socket: Socket,
}

impl Connection {
    pub fn open() -> Result<Connection, Error> {
        Socket::open(Protocol::Netfilter).map(|socket| Connection { socket })
    }

    /// Creates a counter that starts at 0. A counter that exists keeps its count.
    pub fn ensure(&mut self, name: &str) -> Result<(), Error> {
        let flags = flag::CREATE | flag::EXCL;
        let request = Request { operation: ENSURE, object: name, kind: message::NEW, flags };
        match self.socket.request(request, |out| put_name(out, name)) {
            Err(error) if error.errno == Errno::EXIST => Ok(()),
            other => other,
        }
    }

    /// `None` when there is no such counter.
    pub fn read(&mut self, name: &str) -> Result<Option<Counter>, Error> {
        let request = Request { operation: READ, object: name, kind: message::GET, flags: 0 };
        let answer = match self.socket.query(request, |out| put_name(out, name)) {
            Err(error) if error.kind == Kind::Refused && error.errno == Errno::NOENT => return Ok(None),
            other => other?,
        };
        let malformed = |found| Error::malformed(READ, name, found);
        for message in answer.messages() {
            let message = message.map_err(malformed)?;
            if message.kind == message::NEW {
                return read_counter(&message).map(Some).map_err(malformed);
            }
        }
        Err(Error::unanswered(READ, name))
    }

    /// Fails with EBUSY while a rule uses the counter. Succeeds if the counter does not exist.
    pub fn remove(&mut self, name: &str) -> Result<(), Error> {
        let request = Request { operation: REMOVE, object: name, kind: message::DELETE, flags: 0 };
        match self.socket.request(request, |out| put_name(out, name)) {
            Err(error) if error.errno == Errno::NOENT => Ok(()),
            other => other,
        }
    }
}

/// True for an error that means that this kernel has no such counters (`CONFIG_NETFILTER_NETLINK_ACCT`): it then refuses every
/// request of the subsystem, and rules cannot have counters.
pub fn is_missing(error: &Error) -> bool {
    error.kind == Kind::Refused && matches!(error.errno, Errno::INVAL | Errno::OPNOTSUPP)
}

/// Names of operations in errors.
const ENSURE: &str = "make packet counter";
const READ: &str = "read packet counter";
const REMOVE: &str = "remove packet counter";
