//! A connection to the kernel's sets. Decides nothing about them. Linux only.

use std::thread;
use std::time::{Duration, Instant};

use super::decode::{line_of_refusal, read_command, read_name, read_number, read_part};
use super::encode::{put_description, put_members, put_start, put_type};
use super::wire::{NEWEST_PROTOCOL, OLDEST_PROTOCOL, command, message, refusal};
use super::{Family, Found, Kind, Member, Set};
use crate::codec::{Encoder, Malformed, Message};
use crate::error::{self, Errno, Error};
use crate::requests::{Refused, Requests};
use crate::socket::{Ack, Protocol, Request, Socket};

/// Names of operations in errors.
const ASK: &str = "query the ipset protocol version";
const ASK_TYPE: &str = "ask for the set type";
const CREATE: &str = "create set";
const DESTROY: &str = "destroy set";
const SWAP: &str = "swap sets";
const NAMES: &str = "list sets";
const LIST: &str = "list set";
const ADD: &str = "add to set";
const REMOVE: &str = "remove from set";

/// The pause between two attempts to destroy a set that is in use.
const PAUSE: Duration = Duration::from_millis(10);

/// The maximum number of members in one message: the list's length has 16 bits, and the largest member takes 84 bytes.
const MEMBERS_IN_A_MESSAGE: usize = 400;

/// A connection to the sets of the network namespace that the calling thread is in when it opens it.
#[derive(Debug)]
pub struct Connection {
    socket: Socket,
    protocol: u8,
}

impl Connection {
    /// Negotiates the protocol version. A kernel without ipset is an error ([`is_missing`]).
    pub fn open() -> Result<Connection, Error> {
        let mut connection =
            Connection { socket: Socket::open(Protocol::Netfilter)?, protocol: NEWEST_PROTOCOL };
        let (oldest, newest) =
            connection.ask_for_range(ASK, "", message::PROTOCOL, command::PROTOCOL, |_| {})?;
        if newest < OLDEST_PROTOCOL || oldest > NEWEST_PROTOCOL {
            let words = format!(
                "the kernel supports ipset protocol {oldest} to {newest}, this program {OLDEST_PROTOCOL} to \
                 {NEWEST_PROTOCOL}"
            );
            return Err(Error::refused(ASK, "", Errno::PROTONOSUPPORT).explained(Some(words)));
        }
        connection.protocol = newest.min(NEWEST_PROTOCOL);
        Ok(connection)
    }

    /// Succeeds if a set with the same description exists. A set with another description is an error (EEXIST).
    pub fn create(&mut self, set: &Set) -> Result<(), Error> {
        let revision = self.revision(set.kind, set.family)?;
        self.command(CREATE, &set.name, message::CREATE, |out| {
            out.put_str(command::NAME, &set.name);
            put_type(out, set.kind, set.family);
            out.put_u8(command::REVISION, revision);
            put_description(out, set);
        })
    }

    /// Fails with EBUSY while a rule uses the set. Succeeds if the set does not exist.
    pub fn destroy(&mut self, name: &str) -> Result<(), Error> {
        match self.command(DESTROY, name, message::DESTROY, |out| out.put_str(command::NAME, name)) {
            // Older kernels return ENOENT; newer kernels only with NLM_F_EXCL.
            Err(error) if error.errno == Errno::NOENT => Ok(()),
            other => other,
        }
    }

    /// Like `destroy`, but retries until this time while a rule uses the set: nf_tables releases the sets of a removed rule later,
    /// in the background.
    pub fn destroy_when_free(&mut self, name: &str, until: Instant) -> Result<(), Error> {
        loop {
            match self.destroy(name) {
                Err(error) if error.errno == Errno::BUSY && Instant::now() < until => thread::sleep(PAUSE),
                other => return other,
            }
        }
    }

    /// Exchanges the members of two sets of the same kind atomically.
    pub fn swap(&mut self, one: &str, other: &str) -> Result<(), Error> {
        self.command(SWAP, one, message::SWAP, |out| {
            out.put_str(command::NAME, one);
            out.put_str(command::OTHER_NAME, other);
        })
    }

    /// Adds members that are missing. Returns those that the kernel refused; the others are added.
    pub fn add(&mut self, set: &str, members: &[Member]) -> Result<Vec<Refused>, Error> {
        self.change(ADD, message::ADD, set, members)
    }

    /// Removes members that exist. Returns those that the kernel refused; the others are removed.
    pub fn remove(&mut self, set: &str, members: &[Member]) -> Result<Vec<Refused>, Error> {
        self.change(REMOVE, message::DELETE, set, members)
    }

    /// The names of all sets, including those of other programs.
    pub fn names(&mut self) -> Result<Vec<String>, Error> {
        self.list(command::ONLY_NAMES, read_name)
    }

    /// All sets, with the numbers by which rules refer to them. A set that is destroyed and created again has another number.
    pub fn numbers(&mut self) -> Result<Vec<(u16, String)>, Error> {
        self.list(command::ONLY_DESCRIPTIONS, |message| Ok((read_number(message)?, read_name(message)?)))
    }

    fn list<T>(
        &mut self,
        flags: u32,
        read: impl Fn(&Message<'_>) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Error> {
        let request = Request { operation: NAMES, object: "", kind: message::LIST, flags: 0 };
        let protocol = self.protocol;
        let answer = self.socket.dump(request, |out| {
            put_start(out, protocol);
            out.put_u32_be(command::FLAGS, flags);
        })?;
        let sets = answer.messages().map(|message| read(&message?));
        sets.collect::<Result<_, _>>().map_err(|found| Error::malformed(NAMES, "", found))
    }

    /// `None` when there is no such set. The set cannot be destroyed while this runs.
    pub fn set(&mut self, name: &str) -> Result<Option<Found>, Error> {
        let request = Request { operation: LIST, object: name, kind: message::LIST, flags: 0 };
        let protocol = self.protocol;
        let answer = self.socket.dump(request, |out| {
            put_start(out, protocol);
            out.put_str(command::NAME, name);
        });
        let answer = match answer {
            Err(error) if error.kind == error::Kind::Refused && error.errno == Errno::NOENT => {
                return Ok(None);
            }
            other => other?,
        };
        let mut found = None;
        let read = answer.messages().try_for_each(|message| read_part(&message?, &mut found));
        read.map_err(|wrong| Error::malformed(LIST, name, wrong))?;
        Ok(found)
    }

    /// The revision to create a set with: the closest to ours that the kernel has. The request makes the kernel load the type.
    fn revision(&mut self, kind: Kind, family: Family) -> Result<u8, Error> {
        let fill = |out: &mut Encoder| put_type(out, kind, family);
        let (oldest, newest) =
            self.ask_for_range(ASK_TYPE, kind.name(), message::TYPE, command::REVISION, fill)?;
        Ok(kind.revision().min(newest).max(oldest))
    }

    /// Sends a request whose answer contains the newest version, and the oldest version unless both are the same.
    fn ask_for_range(
        &mut self,
        operation: &'static str,
        object: &str,
        kind: u16,
        newest: u16,
        fill: impl FnOnce(&mut Encoder),
    ) -> Result<(u8, u8), Error> {
        let protocol = self.protocol;
        let request = Request { operation, object, kind, flags: 0 };
        let answer = self.socket.query(request, |out| {
            put_start(out, protocol);
            fill(out);
        })?;
        let read = |message: Result<Message<'_>, Malformed>| {
            let fields = read_command(&message?)?;
            let newest = fields.need(newest, "version")?.u8()?;
            Ok((fields.get(command::OLDEST).map_or(Ok(newest), |it| it.u8())?, newest))
        };
        let first = answer.messages().next().ok_or_else(|| Error::unanswered(operation, object))?;
        read(first).map_err(|found| Error::malformed(operation, object, found))
    }

    /// A single command and its verdict.
    fn command(
        &mut self,
        operation: &'static str,
        object: &str,
        kind: u16,
        fill: impl FnOnce(&mut Encoder),
    ) -> Result<(), Error> {
        let mut requests = Requests::default();
        let protocol = self.protocol;
        requests.push(kind, 0, |out| {
            put_start(out, protocol);
            fill(out);
        });
        let mut verdict = Ok(());
        self.socket.carry_out(operation, &requests, &mut |_, ack, message| {
            verdict = judge(operation, object, ack, message);
        })?;
        verdict
    }

    fn change(
        &mut self,
        operation: &'static str,
        kind: u16,
        set: &str,
        members: &[Member],
    ) -> Result<Vec<Refused>, Error> {
        let mut refused = Vec::new();
        let mut done = 0;
        while done < members.len() {
            let part = &members[done..members.len().min(done + MEMBERS_IN_A_MESSAGE)];
            match self.change_some(operation, kind, set, part)? {
                None => done += part.len(),
                // The kernel stops at the first member that it refuses; those after it are sent again.
                Some((line, mut error)) => {
                    let member = part.get(line).map(ToString::to_string).unwrap_or_default();
                    error.object = format!("{set} {member}");
                    refused.push(Refused { index: done + line, error });
                    done += line + 1;
                }
            }
        }
        Ok(refused)
    }

    /// Sends one message. Returns the index of the member that the kernel refused, and why. An `Err` concerns all members.
    fn change_some(
        &mut self,
        operation: &'static str,
        kind: u16,
        set: &str,
        members: &[Member],
    ) -> Result<Option<(usize, Error)>, Error> {
        let mut requests = Requests::default();
        let protocol = self.protocol;
        // Without NLM_F_EXCL the kernel accepts additions of members that exist, and removals of members that do not exist.
        requests.push(kind, 0, |out| {
            put_start(out, protocol);
            out.put_str(command::NAME, set);
            put_members(out, members);
        });
        let mut verdict = Ok(None);
        self.socket.carry_out(operation, &requests, &mut |_, ack, message| {
            let line = line_of_refusal(message).and_then(|line| line.checked_sub(1));
            verdict = match (judge(operation, set, ack, message), line) {
                (Ok(()), _) => Ok(None),
                (Err(error), Some(line)) if line < members.len() => Ok(Some((line, error))),
                (Err(error), _) => Err(error),
            };
        })?;
        verdict
    }
}

/// True for an error that means that this kernel has no ipset.
pub fn is_missing(error: &Error) -> bool {
    let refused = error.kind == error::Kind::Refused && error.operation == ASK;
    refused && matches!(error.errno, Errno::INVAL | Errno::OPNOTSUPP)
}

/// Maps the error numbers of ipset to an errno with the same meaning, and a message.
fn judge(operation: &'static str, object: &str, ack: Ack, message: &Message<'_>) -> Result<(), Error> {
    let Some(errno) = ack.errno else { return Ok(()) };
    let number = message.payload.first_chunk().map_or(0, |raw| i32::from_ne_bytes(*raw).unsigned_abs());
    let (errno, words) = match number {
        refusal::PROTOCOL => (Errno::PROTO, "a message that the protocol does not allow"),
        refusal::NO_SUCH_TYPE => (Errno::OPNOTSUPP, "no such type of set"),
        refusal::TOO_MANY_SETS => (Errno::NOSPC, "too many sets"),
        refusal::BUSY | refusal::REFERENCED => (Errno::BUSY, "a rule uses it"),
        refusal::OTHER_EXISTS => (Errno::NOENT, "the other set does not exist"),
        refusal::OTHER_TYPE => (Errno::INVAL, "sets of different types"),
        refusal::MEMBER_EXISTS => (Errno::EXIST, "the element is in the set already, or is not in it"),
        refusal::PREFIX => (Errno::INVAL, "invalid prefix length"),
        refusal::FAMILY => (Errno::AFNOSUPPORT, "the element has another IP family than the set"),
        refusal::OF_THE_TYPE => (Errno::NOSPC, "the set is full"),
        _ => return Err(Error::refused(operation, object, errno).explained(ack.words)),
    };
    Err(Error::refused(operation, object, errno).explained(Some(words.to_owned())))
}
