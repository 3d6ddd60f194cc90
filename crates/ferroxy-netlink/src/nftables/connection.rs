//! A connection to nf_tables: commits batches and lists objects. Decides nothing about either. Linux only.

use std::hash::{BuildHasher, RandomState};
use std::io::IoSlice;
use std::time::Duration;

use crate::codec::{Encoder, Fields, Malformed, Message};
use crate::error::{Errno, Error, Kind};
use crate::socket::{Answer, Protocol, Request, Socket};

use super::batch::{Batch, end_bracket};
use super::commit::{Answers, CommitError, Receipt};
use super::decode::{
    CompatRule, read_chain, read_chain_place, read_counters, read_elements, read_generation, read_rule,
    read_set, read_table, read_table_name,
};
use super::encode::put_header;
use super::types::{Chain, Counter, ElementRef, Family, ObservedRule, Set, Table};
use super::wire::{self, ANY_TABLE, chain, element, message, rule};

/// After a large commit the kernel still grows a set's hash table: a listing is tried this often, with this pause.
const LISTING_ATTEMPTS: usize = 10;
const SETTLING_TIME: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub struct Connection {
    socket: Socket,
}

impl Connection {
    pub fn open() -> Result<Self, Error> {
        Socket::open(Protocol::Netfilter).map(|socket| Self { socket })
    }

    /// Notifications about changes made here carry this number.
    pub fn port_id(&self) -> u32 {
        self.socket.port_id()
    }

    /// The maximum size of a batch: some 256 MB, or the system's limit on socket buffers without CAP_NET_ADMIN in the
    /// initial user namespace.
    pub fn max_batch_bytes(&self) -> usize {
        self.socket.send_limit()
    }

    /// Commits the batch atomically.
    pub fn commit(&mut self, batch: &Batch) -> Result<Receipt, CommitError> {
        if batch.is_empty() {
            return Ok(Receipt { messages: 0, bytes: 0 });
        }
        self.run(batch, &end_bracket())?;
        Ok(Receipt { messages: batch.messages(), bytes: batch.bytes() })
    }

    /// Like `commit`, and also returns tag and handle of each rule that was added with `echo`.
    pub fn commit_echoed(&mut self, batch: &Batch) -> Result<(Receipt, Vec<(u32, u64)>), CommitError> {
        if batch.is_empty() {
            return Ok((Receipt { messages: 0, bytes: 0 }, Vec::new()));
        }
        let made = self.run(batch, &end_bracket())?;
        Ok((Receipt { messages: batch.messages(), bytes: batch.bytes() }, made))
    }

    /// Checks whether the kernel accepts the batch. Changes nothing.
    pub fn check(&mut self, batch: &Batch) -> Result<(), CommitError> {
        if batch.is_empty() {
            return Ok(());
        }
        // Without BATCH_END, the kernel validates the batch and then aborts it.
        self.run(batch, &[]).map(drop)
    }

    /// The generation ID. It counts the commits of all programs in this network namespace.
    pub fn generation(&mut self) -> Result<u32, Error> {
        let request = Request { operation: "read generation", object: "", kind: message::GETGEN, flags: 0 };
        let answer = self.socket.query(request, |out| out.put_raw(&[0; wire::HEADER]))?;
        let found =
            read_each(&answer, message::NEWGEN, request, |message| read_generation(message).map(Some))?;
        let missing = Malformed::Missing { what: "generation" };
        found.first().copied().ok_or_else(|| Error::malformed(request.operation, "", missing))
    }

    pub fn table(&mut self, family: Family, name: &str) -> Result<Option<Table>, Error> {
        Ok(self.observe_table(family, name)?.map(|(table, _)| table))
    }

    /// True if another program has disabled the table (`flags dormant`). Adding the table again enables it.
    pub fn is_dormant(&mut self, family: Family, name: &str) -> Result<bool, Error> {
        Ok(self.observe_table(family, name)?.is_some_and(|(_, dormant)| dormant))
    }

    /// The table's chains. Empty when there is no such table.
    pub fn chains(&mut self, family: Family, table: &str) -> Result<Vec<Chain>, Error> {
        let request =
            Request { operation: "list chains of", object: table, kind: message::GETCHAIN, flags: 0 };
        let answer = self.dump(request, family, table)?;
        // Old kernels list the chains of all tables (of the family).
        read_each(&answer, message::NEWCHAIN, request, |message| {
            if read_table_name(message)? == table { read_chain(message).map(Some) } else { Ok(None) }
        })
    }

    /// The table's rules, in order within each chain. Empty when there is no such table.
    pub fn rules(&mut self, family: Family, table: &str) -> Result<Vec<ObservedRule>, Error> {
        let request = Request { operation: "list rules of", object: table, kind: message::GETRULE, flags: 0 };
        let answer = self.dump(request, family, table)?;
        read_each(&answer, message::NEWRULE, request, |message| {
            if read_table_name(message)? == table { read_rule(message).map(Some) } else { Ok(None) }
        })
    }

    /// The rules of one chain, in order. Empty when there is no such chain. Use it to read a few chains of a large table:
    /// for every 32 KiB of a listing, the kernel walks all listed rules again.
    pub fn rules_of(&mut self, family: Family, table: &str, chain: &str) -> Result<Vec<ObservedRule>, Error> {
        let request = Request { operation: "list rules of", object: chain, kind: message::GETRULE, flags: 0 };
        let answer = self.socket.dump(request, |out| {
            put_table_name(out, family, table);
            out.put_str(rule::CHAIN, chain);
        });
        let answer = match answer {
            Err(error) if is_missing(&error) => Answer::default(),
            other => other?,
        };
        let rules = read_each(&answer, message::NEWRULE, request, |message| {
            if read_table_name(message)? == table { read_rule(message).map(Some) } else { Ok(None) }
        })?;
        Ok(rules.into_iter().filter(|rule| rule.chain == chain).collect())
    }

    /// Passes table and name of each chain of a family to `each`, and whether it is a base chain.
    pub fn all_chains(
        &mut self,
        family: Family,
        each: &mut dyn FnMut(&str, &str, bool),
    ) -> Result<(), Error> {
        let request = Request { operation: "list", object: "chains", kind: message::GETCHAIN, flags: 0 };
        let answer = self.socket.dump(request, |out| put_header(out, family))?;
        let mut read = |message: &Message<'_>| {
            let (table, name, is_base) = read_chain_place(message)?;
            each(table, name, is_base);
            Ok(None::<()>)
        };
        read_each(&answer, message::NEWCHAIN, request, &mut read).map(drop)
    }

    /// Whether the table has this chain.
    pub fn has_chain(&mut self, family: Family, table: &str, name: &str) -> Result<bool, Error> {
        let request = Request { operation: "read chain", object: name, kind: message::GETCHAIN, flags: 0 };
        let answer = self.socket.query(request, |out| {
            put_header(out, family);
            out.put_str(chain::TABLE, table);
            out.put_str(chain::NAME, name);
        });
        match answer {
            Err(error) if is_missing(&error) => Ok(false),
            other => other.map(|_| true),
        }
    }

    /// Passes the rules of one chain to `each`, in order: no rules when there is no such chain.
    pub fn compat_rules(
        &mut self,
        family: Family,
        table: &str,
        chain: &str,
        each: &mut dyn FnMut(&CompatRule<'_>) -> Result<(), Malformed>,
    ) -> Result<(), Error> {
        let request = Request { operation: "list rules of", object: chain, kind: message::GETRULE, flags: 0 };
        let answer = self.socket.dump(request, |out| {
            put_table_name(out, family, table);
            out.put_str(rule::CHAIN, chain);
        });
        let answer = match answer {
            Err(error) if is_missing(&error) => Answer::default(),
            other => other?,
        };
        let mut read = |message: &Message<'_>| {
            let rule = CompatRule::read(message)?;
            if rule.table == table && rule.chain == chain {
                each(&rule)?;
            }
            Ok(None::<()>)
        };
        read_each(&answer, message::NEWRULE, request, &mut read).map(drop)
    }

    /// The table's named sets and maps, without their elements. Empty when there is no such table.
    pub fn sets(&mut self, family: Family, table: &str) -> Result<Vec<Set>, Error> {
        let request = Request { operation: "list sets of", object: table, kind: message::GETSET, flags: 0 };
        let answer = self.dump(request, family, table)?;
        read_each(&answer, message::NEWSET, request, |message| {
            if read_table_name(message)? == table { read_set(message) } else { Ok(None) }
        })
    }

    /// Passes each element to `each`, in the kernel's order, after checking that the whole listing is consistent. Listings of
    /// dynamic sets, which packets change all the time, are not checked: elements may be missing or come twice.
    ///
    /// For every 32 KiB of a listing, the kernel starts again at the first element: the time grows with the square of the
    /// set's size.
    pub fn elements(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
        each: &mut dyn FnMut(ElementRef<'_>),
    ) -> Result<(), Error> {
        let object = format!("{table}/{set}");
        let kind = message::GETSETELEM;
        let request = Request { operation: "list elements of", object: &object, kind, flags: 0 };
        let malformed = |found| Error::malformed(request.operation, request.object, found);
        let dynamic = self.is_dynamic(request, family, table, set)?;
        for _ in 0..LISTING_ATTEMPTS {
            let answer = self.socket.dump(request, |out| put_set_name(out, family, table, set))?;
            if dynamic || !repeats_an_element(&answer).map_err(malformed)? {
                let read = |message: &Message<'_>| read_elements(message, each).map(|()| None::<()>);
                return read_each(&answer, message::NEWSETELEM, request, read).map(|_| ());
            }
            std::thread::sleep(SETTLING_TIME);
        }
        Err(Error::unstable(request.operation, request.object))
    }

    /// Passes the key and the counter of each element with a counter to `each`. As for dynamic sets in `elements`, keys may be
    /// missing or come twice. Passes nothing when there is no such set.
    pub fn counters(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
        each: &mut dyn FnMut(&[u8], Counter),
    ) -> Result<(), Error> {
        let object = format!("{table}/{set}");
        let kind = message::GETSETELEM;
        let request = Request { operation: "list counters of", object: &object, kind, flags: 0 };
        let answer = match self.socket.dump(request, |out| put_set_name(out, family, table, set)) {
            Err(error) if is_missing(&error) => return Ok(()),
            other => other?,
        };
        let read = |message: &Message<'_>| read_counters(message, each).map(|()| None::<()>);
        read_each(&answer, message::NEWSETELEM, request, read).map(|_| ())
    }

    fn is_dynamic(
        &mut self,
        request: Request<'_>,
        family: Family,
        table: &str,
        set: &str,
    ) -> Result<bool, Error> {
        let request = Request { kind: message::GETSET, ..request };
        let answer = self.socket.query(request, |out| put_set_name(out, family, table, set))?;
        let found = read_each(&answer, message::NEWSET, request, read_set)?;
        Ok(found.first().is_some_and(|set| set.dynamic))
    }

    fn observe_table(&mut self, family: Family, name: &str) -> Result<Option<(Table, bool)>, Error> {
        let request = Request { operation: "read table", object: name, kind: message::GETTABLE, flags: 0 };
        let answer = self.socket.query(request, |out| put_table_name(out, family, name));
        match answer {
            Ok(answer) => {
                Ok(read_each(&answer, message::NEWTABLE, request, |m| read_table(m).map(Some))?.pop())
            }
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn dump(&mut self, request: Request<'_>, family: Family, table: &str) -> Result<Answer, Error> {
        match self.socket.dump(request, |out| put_table_name(out, family, table)) {
            Err(error) if is_missing(&error) => Ok(Answer::default()),
            other => other,
        }
    }

    fn run(&mut self, batch: &Batch, end: &[u8]) -> Result<Vec<(u32, u64)>, CommitError> {
        let size = || format!("batch of {} messages, {} bytes", batch.messages(), batch.bytes());
        let failed = |errno| CommitError::caused_by(Error::refused("commit", size(), errno));
        if batch.is_oversized() {
            return Err(failed(Errno::MSGSIZE));
        }
        self.socket.discard_pending().map_err(failed)?;
        self.socket.send(&[IoSlice::new(batch.encoded()), IoSlice::new(end)]).map_err(failed)?;

        // All answers are in our queue by now, or lost because it was full: there is nothing to wait for.
        let mut answers = Answers::default();
        loop {
            match self.socket.receive() {
                Ok(None) => return answers.conclude(size),
                Ok(Some(bytes)) => answers.read(batch, bytes, size),
                Err(Errno::NOBUFS | Errno::MSGSIZE) => {
                    answers.trouble(Error::lost("read all answers to", size()));
                }
                Err(errno) => return Err(failed(errno)),
            }
        }
    }
}

/// Reads the messages of one kind. `read` returns `None` to skip a message.
fn read_each<T>(
    answer: &Answer,
    kind: u16,
    request: Request<'_>,
    mut read: impl FnMut(&Message<'_>) -> Result<Option<T>, Malformed>,
) -> Result<Vec<T>, Error> {
    let malformed = |found| Error::malformed(request.operation, request.object, found);
    let mut found = Vec::new();
    for message in answer.messages() {
        let message = message.map_err(malformed)?;
        if message.kind == kind {
            found.extend(read(&message).map_err(malformed)?);
        }
    }
    Ok(found)
}

/// True when the order of elements changed during the listing. After a large commit, the kernel still grows the set's hash
/// table in the background. It resumes a listing by skipping as many elements as it has sent: if the order has changed,
/// one element comes twice for each element that is missing. The kernel does not mark such a listing as interrupted.
fn repeats_an_element(answer: &Answer) -> Result<bool, Malformed> {
    let keys = RandomState::new();
    let mut seen = Vec::new();
    for message in answer.messages() {
        let (_, attributes) = message?.split::<{ wire::HEADER }>()?;
        let Some(list) = Fields::<4>::new(attributes)?.get(element::LIST_ELEMENTS) else { continue };
        for attribute in list.nested() {
            seen.push(keys.hash_one(attribute?.payload));
        }
    }
    // Sorting takes less time than a hash set.
    seen.sort_unstable();
    Ok(seen.windows(2).any(|pair| pair[0] == pair[1]))
}

fn put_set_name(out: &mut Encoder, family: Family, table: &str, set: &str) {
    put_header(out, family);
    // Messages about sets and messages about elements use the same attribute numbers for table and set.
    out.put_str(element::LIST_TABLE, table);
    out.put_str(element::LIST_SET, set);
}

fn put_table_name(out: &mut Encoder, family: Family, table: &str) {
    put_header(out, family);
    out.put_str(ANY_TABLE, table);
}

fn is_missing(error: &Error) -> bool {
    error.kind == Kind::Refused && error.errno == Errno::NOENT
}
