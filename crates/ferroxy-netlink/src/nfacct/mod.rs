//! The kernel's named packet counters (`nfnetlink_acct`), which iptables rules count into with `-m nfacct`. Makes and reads them;
//! what is counted is the rules' business.

use rustix::io::Errno;

use crate::codec::{Encoder, Fields, Malformed, Message, flag};
use crate::error::{Error, Kind};
use crate::socket::{Protocol, Request, Socket};

/// Packets and bytes counted since the counter was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counter {
    pub packets: u64,
    pub bytes: u64,
}

/// A door to the counters of the namespace that the calling thread was in when it was opened.
#[derive(Debug)]
pub struct Connection {
    socket: Socket,
}

impl Connection {
    pub fn open() -> Result<Connection, Error> {
        Socket::open(Protocol::Netfilter).map(|socket| Connection { socket })
    }

    /// Makes a counter that starts at nought. One that is there already is left alone, with what it has counted.
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

    /// Fails with EBUSY while a rule counts into it; one that is not there is no error.
    pub fn remove(&mut self, name: &str) -> Result<(), Error> {
        let request = Request { operation: REMOVE, object: name, kind: message::DELETE, flags: 0 };
        match self.socket.request(request, |out| put_name(out, name)) {
            Err(error) if error.errno == Errno::NOENT => Ok(()),
            other => other,
        }
    }
}

/// True for an error that says that this kernel has no such counters (`CONFIG_NETFILTER_NETLINK_ACCT`): nobody then answers for
/// the whole subsystem, and rules must do without.
pub fn is_missing(error: &Error) -> bool {
    error.kind == Kind::Refused && matches!(error.errno, Errno::INVAL | Errno::OPNOTSUPP)
}

/// What is tried, for errors.
const ENSURE: &str = "make packet counter";
const READ: &str = "read packet counter";
const REMOVE: &str = "remove packet counter";

/// Message types: the subsystem and what to do.
mod message {
    const ACCT: u16 = (libc::NFNL_SUBSYS_ACCT as u16) << 8;
    pub(super) const NEW: u16 = ACCT;
    pub(super) const GET: u16 = ACCT | 1;
    pub(super) const DELETE: u16 = ACCT | 3;
}

/// `NFACCT_*`.
mod attribute {
    pub(super) const NAME: u16 = 1;
    pub(super) const PACKETS: u16 = 2;
    pub(super) const BYTES: u16 = 3;
    pub(super) const COUNT: usize = 4;
}

/// `nfgenmsg`: family u8, version u8, resource id u16. Counters have no family.
const HEADER: usize = 4;

fn put_name(out: &mut Encoder, name: &str) {
    out.put_raw(&[0; HEADER]);
    out.put_str(attribute::NAME, name);
}

fn read_counter(message: &Message<'_>) -> Result<Counter, Malformed> {
    let (_, attributes) = message.split::<HEADER>()?;
    let fields: Fields<'_, { attribute::COUNT }> = Fields::new(attributes)?;
    Ok(Counter {
        packets: fields.need(attribute::PACKETS, "packets of a counter")?.u64_be()?,
        bytes: fields.need(attribute::BYTES, "bytes of a counter")?.u64_be()?,
    })
}
