//! A connection to ctnetlink: lists entries and deletes them. Decides nothing about either. Linux only.

use std::io::IoSlice;

use super::decode::read_entry;
use super::encode::{header, put_deletion, put_filter};
use super::wire::message;
use super::{Entry, Filter, Tuple};
use crate::codec::{Encoder, Messages};
use crate::error::{Errno, Error, Kind};
use crate::socket::{Ack, Protocol, Request, Socket};

/// Names of operations in errors.
const LIST: &str = "list connections";
const DELETE: &str = "delete connections";

/// The maximum number of deletions in one datagram, so that their acknowledgements fit any receive queue.
const BATCH: usize = 128;

/// A connection to the conntrack table of the network namespace that the calling thread is in when it opens it.
#[derive(Debug)]
pub struct Connection {
    socket: Socket,
}

impl Connection {
    pub fn open() -> Result<Connection, Error> {
        Socket::open(Protocol::Netfilter).map(|socket| Connection { socket })
    }

    /// Passes each matching entry to `each` as it arrives, without collecting them. The table changes all the time: an entry
    /// that is created or removed during the dump may be missing or come twice. An error may come after some entries.
    ///
    /// The kernel filters as far as it can: status since 5.18, tuples since 5.8, and before that the family only.
    pub fn entries(&mut self, wanted: Filter, each: &mut dyn FnMut(Entry)) -> Result<(), Error> {
        match self.list(wanted, put_filter, each) {
            // Most older kernels ignore a filter that they do not know; some refuse it.
            Err(error) if is_missing(&error) => self.list(wanted, |_, _| {}, each),
            other => other,
        }
    }

    fn list(
        &mut self,
        wanted: Filter,
        put_filter: fn(&mut Encoder, &Filter),
        each: &mut dyn FnMut(Entry),
    ) -> Result<(), Error> {
        let request = Request { operation: LIST, object: "", kind: message::GET, flags: 0 };
        let fill = |out: &mut Encoder| {
            out.put_raw(&header(wanted.family));
            put_filter(out, &wanted);
        };
        let interrupted = self.socket.stream(request, fill, &mut |found| {
            let entry = if found.kind == message::NEW { read_entry(found)? } else { None };
            // An older kernel may have ignored a part of the filter.
            entry.filter(|entry| wanted.matches(entry)).into_iter().for_each(&mut *each);
            Ok(())
        })?;
        if interrupted { Err(Error::unstable(request.operation, request.object)) } else { Ok(()) }
    }

    /// Deletes exactly these entries: an entry that no longer exists is skipped, even if a newer entry has its tuple. Returns
    /// the number of deleted entries. After an error, some entries may be deleted.
    pub fn delete(&mut self, entries: &[Entry]) -> Result<usize, Error> {
        entries.chunks(BATCH).try_fold(0, |removed, batch| Ok(removed + self.delete_batch(batch)?))
    }

    fn delete_batch(&mut self, batch: &[Entry]) -> Result<usize, Error> {
        let failed = |errno| match errno {
            Errno::NOBUFS => Error::lost(DELETE, ""),
            errno => Error::refused(DELETE, "", errno),
        };
        let mut out = Encoder::new();
        for (sequence, entry) in (1..).zip(batch) {
            put_deletion(&mut out, sequence, entry);
        }
        self.socket.discard_pending().map_err(failed)?;
        self.socket.send(&[IoSlice::new(out.bytes())]).map_err(failed)?;

        // The kernel has processed the datagram inside `send`: all answers are in the queue.
        let mut answers = Answers::default();
        while let Some(bytes) = self.socket.receive().map_err(failed)? {
            answers.read(batch, bytes)?;
        }
        answers.conclude(batch)
    }
}

/// True for an error that means that this kernel has no ctnetlink: it then refuses even a dump without a filter.
pub fn is_missing(error: &Error) -> bool {
    let refused = error.kind == Kind::Refused && error.operation == LIST;
    refused && matches!(error.errno, Errno::INVAL | Errno::OPNOTSUPP)
}

/// The kernel's answers to a batch of deletions, one for each.
#[derive(Default)]
struct Answers {
    count: usize,
    removed: usize,
    refusal: Option<Error>,
}

impl Answers {
    fn read(&mut self, batch: &[Entry], bytes: &[u8]) -> Result<(), Error> {
        let malformed = |found| Error::malformed(DELETE, "", found);
        for message in Messages::new(bytes) {
            let Some(ack) = Ack::from_message(&message.map_err(malformed)?) else { continue };
            let ack = ack.map_err(malformed)?;
            let Some(entry) = (ack.sequence as usize).checked_sub(1).and_then(|index| batch.get(index))
            else {
                continue;
            };
            self.count += 1;
            match ack.errno {
                None => self.removed += 1,
                Some(Errno::NOENT) => {}
                Some(errno) => {
                    let Tuple { source, destination } = entry.original;
                    let object = format!("{source} -> {destination}");
                    let error = Error::refused("delete connection", object, errno).explained(ack.words);
                    self.refusal.get_or_insert(error);
                }
            }
        }
        Ok(())
    }

    fn conclude(self, batch: &[Entry]) -> Result<usize, Error> {
        match self.refusal {
            Some(error) => Err(error),
            None if self.count < batch.len() => Err(Error::unanswered(DELETE, "")),
            None => Ok(self.removed),
        }
    }
}
