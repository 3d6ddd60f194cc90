//! A connection to IPVS, the kernel's load balancer. Decides nothing about it. Linux only.

use std::collections::HashSet;

use super::decode::{read_destination, read_family, read_server, read_timeouts};
use super::encode::{header, put_change, put_timeouts, put_which};
use super::wire::{NAME, VERSION, command, control};
use super::{Address, Change, Found, Timeouts, VirtualServer};
use crate::error::{Errno, Error, Kind};
use crate::requests::{Refused, Requests};
use crate::socket::{Protocol, Request, Socket};

/// Names of operations in errors.
const FIND: &str = "find netlink family";
const SERVERS: &str = "list virtual servers";
const DESTINATIONS: &str = "list destinations of";
const CHANGE: &str = "change virtual servers";
const GET_TIMEOUTS: &str = "read timeouts of IPVS";
const SET_TIMEOUTS: &str = "set timeouts of IPVS";

/// A connection to the virtual servers of the network namespace that the calling thread is in when it opens it.
#[derive(Debug)]
pub struct Connection {
    socket: Socket,
    /// The message type of IPVS, which the kernel assigns.
    family: u16,
}

impl Connection {
    /// Makes the kernel load the IPVS module. A kernel without IPVS is an error ([`is_missing`]).
    pub fn open() -> Result<Connection, Error> {
        let mut socket = Socket::open(Protocol::Generic)?;
        let request = Request { operation: FIND, object: NAME, kind: control::FAMILY, flags: 0 };
        let answer = socket.query(request, |out| {
            out.put_raw(&header(control::GET_FAMILY, control::VERSION));
            out.put_str(control::NAME, NAME);
        })?;
        let first = answer.messages().next().ok_or_else(|| Error::unanswered(FIND, NAME))?;
        let read = first.and_then(|message| read_family(&message).map(|(family, _)| family));
        let family = read.map_err(|found| Error::malformed(FIND, NAME, found))?;
        Ok(Connection { socket, family })
    }

    /// `None` if IPVS is not loaded. Does not load it: a dump of all generic netlink families is used, because a request for
    /// one by name loads its module.
    pub fn open_if_loaded() -> Result<Option<Connection>, Error> {
        let mut socket = Socket::open(Protocol::Generic)?;
        let request = Request { operation: FIND, object: NAME, kind: control::FAMILY, flags: 0 };
        let answer =
            socket.dump(request, |out| out.put_raw(&header(control::GET_FAMILY, control::VERSION)))?;
        for message in answer.messages() {
            let read = message.and_then(|message| read_family(&message));
            let (family, name) = read.map_err(|found| Error::malformed(FIND, NAME, found))?;
            if name == NAME {
                return Ok(Some(Connection { socket, family }));
            }
        }
        Ok(None)
    }

    /// All virtual servers with an address, including those of other programs, without duplicates. The kernel resumes a long dump
    /// at a position that counts the servers of all network namespaces (Linux 6.1): if another namespace's servers change
    /// meanwhile, the dump can repeat a server (the repetition is removed here) or omit one.
    pub fn servers(&mut self) -> Result<Vec<VirtualServer>, Error> {
        let request = Request { operation: SERVERS, object: "", kind: self.family, flags: 0 };
        let answer = self.socket.dump(request, |out| out.put_raw(&header(command::GET_SERVICE, VERSION)))?;
        let servers = answer.messages().filter_map(|message| match message {
            Ok(message) => read_server(&message).transpose(),
            Err(found) => Some(Err(found)),
        });
        let mut servers: Vec<VirtualServer> =
            servers.collect::<Result<_, _>>().map_err(|found| Error::malformed(SERVERS, "", found))?;
        let mut known = HashSet::new();
        servers.retain(|server| known.insert(server.address));
        Ok(servers)
    }

    /// Empty when there is no such virtual server.
    pub fn destinations(&mut self, server: &Address) -> Result<Vec<Found>, Error> {
        let object = server.to_string();
        let request = Request { operation: DESTINATIONS, object: &object, kind: self.family, flags: 0 };
        let answer = self.socket.dump(request, |out| {
            out.put_raw(&header(command::GET_DESTINATION, VERSION));
            put_which(out, server);
        })?;
        let found = answer.messages().map(|message| read_destination(&message?, server.ip));
        found.collect::<Result<_, _>>().map_err(|found| Error::malformed(DESTINATIONS, object, found))
    }

    /// Makes the changes in this order, independently of each other. Returns those that the kernel refused: EEXIST if a server or
    /// destination to add exists, ESRCH if a server and ENOENT if a destination does not exist.
    pub fn change(&mut self, changes: &[Change]) -> Result<Vec<Refused>, Error> {
        let mut requests = Requests::default();
        for change in changes {
            requests.push(self.family, 0, |out| put_change(out, change));
        }
        let mut refused = Vec::new();
        self.socket.carry_out(CHANGE, &requests, &mut |index, ack, _| {
            if let (Some(errno), Some(change)) = (ack.errno, changes.get(index)) {
                let error = Error::refused(verb(change), change.to_string(), errno).explained(ack.words);
                refused.push(Refused { index, error });
            }
        })?;
        Ok(refused)
    }

    pub fn timeouts(&mut self) -> Result<Timeouts, Error> {
        let request = Request { operation: GET_TIMEOUTS, object: "", kind: self.family, flags: 0 };
        let answer = self.socket.query(request, |out| out.put_raw(&header(command::GET_CONFIG, VERSION)))?;
        let first = answer.messages().next().ok_or_else(|| Error::unanswered(GET_TIMEOUTS, ""))?;
        let read = first.and_then(|message| read_timeouts(&message));
        read.map_err(|found| Error::malformed(GET_TIMEOUTS, "", found))
    }

    pub fn set_timeouts(&mut self, timeouts: Timeouts) -> Result<(), Error> {
        let request = Request { operation: SET_TIMEOUTS, object: "", kind: self.family, flags: 0 };
        self.socket.request(request, |out| {
            out.put_raw(&header(command::SET_CONFIG, VERSION));
            put_timeouts(out, &timeouts);
        })
    }
}

/// True for an error that means that this kernel has no IPVS.
pub fn is_missing(error: &Error) -> bool {
    error.kind == Kind::Refused && error.operation == FIND && error.errno == Errno::NOENT
}

fn verb(change: &Change) -> &'static str {
    match change {
        Change::AddServer(_) => "add virtual server",
        Change::SetServer(_) => "change virtual server",
        Change::RemoveServer(_) => "remove virtual server",
        Change::AddDestination(..) => "add destination",
        Change::SetDestination(..) => "change destination",
        Change::RemoveDestination(..) => "remove destination",
    }
}
