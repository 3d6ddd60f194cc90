//! A batch: operations that the kernel commits atomically. Encodes each operation when it is added, and remembers which
//! bytes belong to which tag of the caller, so that a refusal can be traced back. Sends nothing.

use crate::ack::Ack;
use crate::codec::{Attributes, Encoder, Messages, OpenMessage, OpenNest, flag};
use crate::error::{Errno, Error};

use super::commit::Failure;
use super::decode::{read_element, read_rule_place};
use super::encode::{put_chain, put_compat_rule, put_element, put_header, put_rule, put_set, put_table};
use super::expr::Expressions;
use super::types::{Chain, DataRef, ElementRef, Family, NewRule, Place, Rule, Set, Table};
use super::wire::{SUBSYSTEM, chain, element, message, rule, set, table};

/// Elements share a message until its list has this many bytes. The list's length field has 16 bits.
const LIST_LIMIT: usize = 60_000;
/// The sequence number of BATCH_BEGIN. Operations are numbered from 1.
const BEGIN_SEQUENCE: u32 = 0;

/// Operations between BATCH_BEGIN and BATCH_END. Each operation has a `tag` of the caller, which is part of its failure.
///
/// Adding an object that exists is only an error if its contents differ. Deleting an object that does not exist is an error.
#[derive(Debug, Clone)]
pub struct Batch {
    encoder: Encoder,
    /// One for each message, in order: message n has sequence number n + 1.
    operations: Vec<Operation>,
    /// For each element of each message: its offset in the message, and its tag.
    elements: Vec<(u32, u32)>,
    /// The message that the next element may still join.
    open: Option<OpenList>,
    scratch: Vec<u8>,
}

/// A kind of operation: the message type, its flags, and the words for errors.
#[derive(Debug)]
struct Verb {
    kind: u16,
    flags: u16,
    words: &'static str,
}

mod verb {
    use super::{Verb, flag, message};

    pub(super) static ADD_TABLE: Verb =
        Verb { kind: message::NEWTABLE, flags: flag::CREATE, words: "add table" };
    pub(super) static DELETE_TABLE: Verb = Verb { kind: message::DELTABLE, flags: 0, words: "delete table" };
    pub(super) static ADD_CHAIN: Verb =
        Verb { kind: message::NEWCHAIN, flags: flag::CREATE, words: "add chain" };
    pub(super) static DELETE_CHAIN: Verb = Verb { kind: message::DELCHAIN, flags: 0, words: "delete chain" };
    pub(super) static FLUSH_CHAIN: Verb = Verb { kind: message::DELRULE, flags: 0, words: "flush chain" };
    pub(super) static ADD_RULE: Verb =
        Verb { kind: message::NEWRULE, flags: flag::CREATE | flag::APPEND, words: "add rule to" };
    pub(super) static INSERT_RULE: Verb =
        Verb { kind: message::NEWRULE, flags: flag::CREATE, words: "add rule to" };
    pub(super) static INSERT_RULE_ECHO: Verb =
        Verb { kind: message::NEWRULE, flags: flag::CREATE | flag::ECHO, words: "add rule to" };
    pub(super) static ADD_RULE_ECHO: Verb = Verb {
        kind: message::NEWRULE,
        flags: flag::CREATE | flag::APPEND | flag::ECHO,
        words: "add rule to",
    };
    pub(super) static DELETE_RULE: Verb = Verb { kind: message::DELRULE, flags: 0, words: "delete rule" };
    pub(super) static ADD_SET: Verb = Verb { kind: message::NEWSET, flags: flag::CREATE, words: "add set" };
    pub(super) static DELETE_SET: Verb = Verb { kind: message::DELSET, flags: 0, words: "delete set" };
    pub(super) static FLUSH_SET: Verb = Verb { kind: message::DELSETELEM, flags: 0, words: "flush set" };
    pub(super) static ADD_ELEMENT: Verb =
        Verb { kind: message::NEWSETELEM, flags: flag::CREATE, words: "add element to" };
    pub(super) static DELETE_ELEMENT: Verb =
        Verb { kind: message::DELSETELEM, flags: 0, words: "delete element of" };
}

#[derive(Debug, Clone)]
struct Operation {
    /// Where its message starts.
    start: usize,
    tag: u32,
    verb: &'static Verb,
    object: String,
    /// Index of its first element in `elements`. Its elements end where those of the next operation start.
    first_element: usize,
}

/// The open message. The next element joins it if it has the same verb, family, table and set.
#[derive(Debug, Clone)]
struct OpenList {
    verb: &'static Verb,
    family: Family,
    table: String,
    set: String,
    start: usize,
    message: OpenMessage,
    list: OpenNest,
    list_start: usize,
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

impl Batch {
    pub fn new() -> Self {
        let mut batch = Self {
            encoder: Encoder::new(),
            operations: Vec::new(),
            elements: Vec::new(),
            open: None,
            scratch: Vec::new(),
        };
        batch.put_bracket();
        batch
    }

    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Messages between the brackets. Many elements make one message.
    pub fn messages(&self) -> usize {
        self.operations.len()
    }

    /// The number of bytes to send, including BATCH_BEGIN and BATCH_END.
    pub fn bytes(&self) -> usize {
        self.encoder.position() + end_bracket().len()
    }

    /// Starts over, keeping the memory.
    pub fn clear(&mut self) {
        self.encoder.clear();
        self.operations.clear();
        self.elements.clear();
        self.open = None;
        self.put_bracket();
    }

    pub fn add_table(&mut self, tag: u32, family: Family, table: &Table) {
        let object = format!("{} {}", family.name(), table.name);
        self.put(tag, family, &verb::ADD_TABLE, object, |out, scratch, _| {
            put_table(out, scratch, table);
        });
    }

    /// Deletes the table with everything in it.
    pub fn delete_table(&mut self, tag: u32, family: Family, name: &str) {
        let object = format!("{} {name}", family.name());
        self.put(tag, family, &verb::DELETE_TABLE, object, |out, _, _| {
            out.put_str(table::NAME, name);
        });
    }

    pub fn add_chain(&mut self, tag: u32, family: Family, table: &str, chain: &Chain) {
        let object = path(family, table, &chain.name);
        self.put(tag, family, &verb::ADD_CHAIN, object, |out, scratch, _| {
            put_chain(out, scratch, table, chain);
        });
    }

    /// Deletes the chain with its rules. Refused while a rule or an element jumps to it.
    pub fn delete_chain(&mut self, tag: u32, family: Family, table: &str, name: &str) {
        let object = path(family, table, name);
        self.put(tag, family, &verb::DELETE_CHAIN, object, |out, _, _| {
            out.put_str(chain::TABLE, table);
            out.put_str(chain::NAME, name);
        });
    }

    /// Removes its rules.
    pub fn flush_chain(&mut self, tag: u32, family: Family, table: &str, chain: &str) {
        let object = path(family, table, chain);
        self.put(tag, family, &verb::FLUSH_CHAIN, object, |out, _, _| {
            out.put_str(rule::TABLE, table);
            out.put_str(rule::CHAIN, chain);
        });
    }

    /// Appends the rule to the chain.
    pub fn add_rule(&mut self, tag: u32, family: Family, table: &str, chain: &str, rule: &Rule) {
        let object = path(family, table, chain);
        self.put(tag, family, &verb::ADD_RULE, object, |out, scratch, _| {
            put_rule(out, scratch, table, chain, rule);
        });
    }

    /// A rule in the form of iptables, at any place.
    pub fn add_compat_rule(&mut self, tag: u32, rule: &NewRule<'_>, fill: impl FnOnce(&mut Expressions<'_>)) {
        let verb = match (rule.place, rule.echo) {
            (Place::Last, false) => &verb::ADD_RULE,
            (Place::Last, true) => &verb::ADD_RULE_ECHO,
            (_, false) => &verb::INSERT_RULE,
            (_, true) => &verb::INSERT_RULE_ECHO,
        };
        // There can be hundreds of thousands of rules: instead of a string for each, `describe` decodes the message if it is refused.
        self.put(tag, rule.family, verb, String::new(), |out, _, _| put_compat_rule(out, rule, fill));
    }

    pub fn delete_rule(&mut self, tag: u32, family: Family, table: &str, chain: &str, handle: u64) {
        let object = format!("{handle} of {}", path(family, table, chain));
        self.put(tag, family, &verb::DELETE_RULE, object, |out, _, _| {
            out.put_str(rule::TABLE, table);
            out.put_str(rule::CHAIN, chain);
            out.put_u64_be(rule::HANDLE, handle);
        });
    }

    pub fn add_set(&mut self, tag: u32, family: Family, table: &str, set: &Set) {
        let object = path(family, table, &set.name);
        self.put(tag, family, &verb::ADD_SET, object, |out, scratch, id| {
            put_set(out, scratch, table, set, id);
        });
    }

    /// Deletes the set with its elements. Refused while a rule refers to it.
    pub fn delete_set(&mut self, tag: u32, family: Family, table: &str, name: &str) {
        let object = path(family, table, name);
        self.put(tag, family, &verb::DELETE_SET, object, |out, _, _| {
            out.put_str(set::TABLE, table);
            out.put_str(set::NAME, name);
        });
    }

    /// Removes its elements.
    pub fn flush_set(&mut self, tag: u32, family: Family, table: &str, set: &str) {
        let object = path(family, table, set);
        self.put(tag, family, &verb::FLUSH_SET, object, |out, _, _| {
            out.put_str(element::LIST_TABLE, table);
            out.put_str(element::LIST_SET, set);
        });
    }

    pub fn add_element(&mut self, tag: u32, family: Family, table: &str, set: &str, element: ElementRef<'_>) {
        self.join_list(tag, &verb::ADD_ELEMENT, family, table, set);
        self.put_list_element(tag, element);
    }

    /// The element's data and comment are ignored.
    pub fn delete_element(
        &mut self,
        tag: u32,
        family: Family,
        table: &str,
        set: &str,
        element: ElementRef<'_>,
    ) {
        self.join_list(tag, &verb::DELETE_ELEMENT, family, table, set);
        let element = ElementRef { data: DataRef::None, comment: None, ..element };
        self.put_list_element(tag, element);
    }

    /// The opening bracket and all operations; the closing bracket is [`end_bracket`].
    pub(super) fn encoded(&self) -> &[u8] {
        self.encoder.bytes()
    }

    /// True if something exceeded a length field of the protocol: the batch must not be sent.
    pub(super) fn is_oversized(&self) -> bool {
        self.encoder.is_oversized()
    }

    /// The sequence number of the message that requests an acknowledgement.
    pub(super) fn last_sequence(&self) -> u32 {
        sequence(self.operations.len())
    }

    /// Finds the operation or element that the kernel refused. `None` if the refusal concerns the batch as a whole.
    pub(super) fn explain(&self, ack: &Ack, errno: Errno) -> Option<Failure> {
        let index = (ack.sequence as usize).checked_sub(1)?;
        let operation = self.operations.get(index)?;
        let end = self.operations.get(index + 1).map_or(self.elements.len(), |next| next.first_element);
        let elements = self.elements.get(operation.first_element..end).unwrap_or_default();
        let guilty = ack.offset.and_then(|offset| {
            let after = elements.partition_point(|(start, _)| *start <= offset);
            elements.get(after.checked_sub(1)?)
        });
        let (tag, object) = match guilty {
            Some((start, tag)) => (Some(*tag), self.describe_element(operation, *start)),
            // No offset identifies an element: the tag is only known if all elements have the same tag.
            None => (common_tag(operation, elements), self.describe(operation)),
        };
        let error = Error::refused(operation.verb.words, object, errno).explained(ack.words.clone());
        Some(Failure { tag, error })
    }

    /// The tag of the operation with this sequence number.
    pub(super) fn tag_of(&self, sequence: u32) -> Option<u32> {
        let index = (sequence as usize).checked_sub(1)?;
        self.operations.get(index).map(|operation| operation.tag)
    }

    fn describe(&self, operation: &Operation) -> String {
        if !operation.object.is_empty() {
            return operation.object.clone();
        }
        let bytes = self.encoder.bytes().get(operation.start..).unwrap_or_default();
        let message = Messages::new(bytes).next().and_then(Result::ok);
        message.and_then(|message| read_rule_place(&message)).unwrap_or_default()
    }

    fn describe_element(&self, operation: &Operation, start: u32) -> String {
        let bytes = self.encoder.bytes().get(operation.start + start as usize..).unwrap_or_default();
        let element = Attributes::new(bytes).next().and_then(Result::ok);
        let Some(element) = element.and_then(|attribute| read_element(&attribute).ok()) else {
            return operation.object.clone();
        };
        let words: Vec<String> = element.key.chunks(4).map(hex).collect();
        let comment = element.comment.map(|comment| format!(" \"{comment}\"")).unwrap_or_default();
        format!("{} {{ {}{comment} }}", operation.object, words.join(" "))
    }

    fn put(
        &mut self,
        tag: u32,
        family: Family,
        verb: &'static Verb,
        object: String,
        fill: impl FnOnce(&mut Encoder, &mut Vec<u8>, u32),
    ) {
        let message = self.begin(tag, family, verb, object);
        fill(&mut self.encoder, &mut self.scratch, sequence(self.operations.len()));
        self.encoder.end_message(message);
    }

    /// Starts a message and moves the request for an acknowledgement to it: only the last one is acknowledged, so that
    /// success is a single answer whatever the size of the batch.
    fn begin(&mut self, tag: u32, family: Family, verb: &'static Verb, object: String) -> OpenMessage {
        self.open = None;
        if let Some(previous) = self.operations.last() {
            self.encoder.set_message_flags(previous.start, previous.verb.flags | flag::REQUEST);
        }
        let (start, flags) = (self.encoder.position(), verb.flags | flag::REQUEST | flag::ACK);
        let first_element = self.elements.len();
        self.operations.push(Operation { start, tag, verb, object, first_element });
        let message = self.encoder.begin_message(verb.kind, flags, sequence(self.operations.len()));
        put_header(&mut self.encoder, family);
        message
    }

    /// Makes sure that the open message is a list for this set, with room for one more element.
    fn join_list(&mut self, tag: u32, verb: &'static Verb, family: Family, table: &str, set: &str) {
        let position = self.encoder.position();
        let joins = self.open.as_ref().is_some_and(|open| {
            open.verb.kind == verb.kind
                && open.family == family
                && open.set == set
                && open.table == table
                && position - open.list_start < LIST_LIMIT
        });
        if joins {
            return;
        }
        let message = self.begin(tag, family, verb, path(family, table, set));
        self.encoder.put_str(element::LIST_TABLE, table);
        self.encoder.put_str(element::LIST_SET, set);
        let list_start = self.encoder.position();
        let list = self.encoder.begin_nested(element::LIST_ELEMENTS);
        let (table, set) = (table.to_owned(), set.to_owned());
        self.open = Some(OpenList { verb, family, table, set, start: position, message, list, list_start });
    }

    /// Appends to the open list. Its lengths are brought up to date each time, so the batch can be sent at any moment.
    fn put_list_element(&mut self, tag: u32, element: ElementRef<'_>) {
        let Some(open) = &self.open else { return };
        let offset = self.encoder.position() - open.start;
        self.elements.push((u32::try_from(offset).unwrap_or(u32::MAX), tag));
        put_element(&mut self.encoder, &mut self.scratch, element);
        self.encoder.end_nested(open.list);
        self.encoder.end_message(open.message);
    }

    fn put_bracket(&mut self) {
        put_bracket(&mut self.encoder, message::BATCH_BEGIN, BEGIN_SEQUENCE);
    }
}

/// Closes a batch. Without it, the kernel validates the whole batch and then aborts it.
pub(super) fn end_bracket() -> [u8; 20] {
    let mut bytes = [0; 20];
    let mut encoder = Encoder::new();
    put_bracket(&mut encoder, message::BATCH_END, BEGIN_SEQUENCE);
    if let Some(encoded) = encoder.bytes().first_chunk() {
        bytes = *encoded;
    }
    bytes
}

fn put_bracket(encoder: &mut Encoder, kind: u16, sequence: u32) {
    let message = encoder.begin_message(kind, flag::REQUEST, sequence);
    let [high, low] = SUBSYSTEM.to_be_bytes();
    encoder.put_raw(&[0, 0, high, low]);
    encoder.end_message(message);
}

impl Family {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ip => "ip",
            Self::Ip6 => "ip6",
        }
    }
}

pub(super) fn path(family: Family, table: &str, name: &str) -> String {
    format!("{} {table}/{name}", family.name())
}

/// Below 2^31, where the numbers of a connection's other requests begin: a larger batch does not fit into memory.
fn sequence(operations: usize) -> u32 {
    u32::try_from(operations).unwrap_or(u32::MAX)
}

fn common_tag(operation: &Operation, elements: &[(u32, u32)]) -> Option<u32> {
    elements.iter().all(|(_, tag)| *tag == operation.tag).then_some(operation.tag)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
