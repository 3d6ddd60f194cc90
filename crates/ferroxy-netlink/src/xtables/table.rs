//! A table of legacy iptables as the kernel lays it out in memory, and the same table without some of its rules. Pure.
//!
//! It is one list of entries. Built-in chains come first, at offsets that the header names; a chain of the user begins
//! with an entry whose target is `ERROR` and holds its name. A jump is the offset of the entry to go on with, so taking
//! entries out means to write all jumps anew. An `ERROR` ends the table, too.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher};
use std::ops::Range;

use crate::codec::Malformed;

use super::Family;

/// `struct ipt_getinfo`, and where `ipt_get_entries`, `ipt_replace` and `xt_counters_info` end and their lists begin.
/// Each starts with the table's name. They are the same for IPv6.
pub(super) const INFO: usize = 84;
pub(super) const ENTRIES_HEADER: usize = 40;
const REPLACE_HEADER: usize = 96;
pub(super) const COUNTERS_HEADER: usize = 40;
/// Packets and bytes, eight bytes each.
pub(crate) const COUNTER: usize = 16;

const NAME: usize = 32;
const INFO_HOOKS: usize = 32;
const INFO_ENTRIES: usize = 36;
const INFO_UNDERFLOWS: usize = 56;
const INFO_COUNT: usize = 76;
const INFO_SIZE: usize = 80;
pub(super) const ENTRIES_SIZE: Range<usize> = 32..36;
const HOOKS: usize = 5;

/// `struct xt_entry_target`: size, name, revision; then, for a standard target, the verdict, for `ERROR` a name.
const TARGET_NAME: Range<usize> = 2..31;
const TARGET_DATA: usize = 32;
const ERROR_NAME: Range<usize> = 32..62;

/// Where things are in an entry: `struct ipt_entry` and `struct ip6t_entry`.
#[derive(Debug, Clone, Copy)]
struct Layout {
    target_offset: usize,
    next_offset: usize,
    size: usize,
}

impl Layout {
    const fn of(family: Family) -> Layout {
        match family {
            Family::Ip => Layout { target_offset: 88, next_offset: 90, size: 112 },
            Family::Ip6 => Layout { target_offset: 140, next_offset: 142, size: 168 },
        }
    }
}

/// A table as it was read.
#[derive(Debug)]
pub struct Table {
    family: Family,
    info: Vec<u8>,
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    at: usize,
    end: usize,
    target: Target,
}

#[derive(Debug, PartialEq, Eq)]
enum Target {
    /// Begins the chain of this name.
    Chain(String),
    /// Goes on at this offset, which is another chain's first rule.
    Jump(usize),
    /// A rule that decides nothing: on to the next.
    Next,
    Other,
}

/// A rule that leads to a chain of the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Jump {
    /// `None` for a built-in chain.
    pub from: Option<String>,
    /// Names the rule, in this reading of the table.
    pub rule: u64,
    pub to: String,
}

/// What a table becomes without some rules.
#[derive(Debug)]
pub struct Replacement {
    info: Vec<u8>,
    bytes: Vec<u8>,
    /// For each entry, which it was among those before.
    kept: Vec<usize>,
    entries_before: usize,
}

impl Table {
    pub(super) fn parse(family: Family, info: &[u8], bytes: Vec<u8>) -> Result<Table, Malformed> {
        if info.len() != INFO {
            return Err(Malformed::Size { expected: INFO, found: info.len() });
        }
        let mut entries = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let entry = read_entry(Layout::of(family), &bytes, at)?;
            at = entry.end;
            entries.push(entry);
        }
        match entries.last().map(|entry| &entry.target) {
            Some(Target::Chain(_)) => Ok(Table { family, info: info.to_vec(), bytes, entries }),
            _ => Err(Malformed::Missing { what: "end of the table" }),
        }
    }

    /// The same for two readings if no rule was changed between them, whatever rules have counted meanwhile.
    pub fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for entry in &self.entries {
            // What it has counted is the end of its head.
            let head = entry.at + Layout::of(self.family).size;
            hasher.write(&self.bytes[entry.at..head - COUNTER]);
            hasher.write(&self.bytes[head..entry.end]);
        }
        hasher.finish()
    }

    /// The chains that are not built in.
    pub fn chains(&self) -> impl Iterator<Item = &str> {
        self.beginnings().map(|(name, _)| name)
    }

    /// Every rule that leads to such a chain.
    pub fn jumps(&self) -> Vec<Jump> {
        let chain_at: BTreeMap<usize, &str> =
            self.beginnings().map(|(name, first_rule)| (first_rule, name)).collect();
        let mut jumps = Vec::new();
        let mut from = None;
        for entry in &self.entries {
            match &entry.target {
                Target::Chain(name) => from = Some(name.clone()),
                Target::Jump(offset) => {
                    if let Some(to) = chain_at.get(offset) {
                        jumps.push(Jump { from: from.clone(), rule: entry.at as u64, to: (*to).to_owned() });
                    }
                }
                Target::Next | Target::Other => {}
            }
        }
        jumps
    }

    /// The table without these chains and rules. Whoever leads to such a chain must be among the rules.
    pub fn without(&self, chains: &BTreeSet<String>, rules: &BTreeSet<u64>) -> Replacement {
        let mut in_removed_chain = false;
        let last = self.entries.len() - 1;
        let mut keeps = |(index, entry): (usize, &Entry)| {
            if let Target::Chain(name) = &entry.target {
                in_removed_chain = index != last && chains.contains(name);
            }
            !in_removed_chain && !rules.contains(&(entry.at as u64))
        };
        let kept: Vec<usize> =
            (0..).zip(&self.entries).filter(|it| keeps(*it)).map(|(index, _)| index).collect();
        self.only(kept)
    }

    fn only(&self, kept: Vec<usize>) -> Replacement {
        let moves = Moves::new(kept.iter().map(|index| &self.entries[*index]));
        let mut bytes = Vec::new();
        for index in &kept {
            let entry = &self.entries[*index];
            let start = bytes.len();
            bytes.extend_from_slice(&self.bytes[entry.at..entry.end]);
            let goes_on_at = match entry.target {
                Target::Jump(offset) => moves.of(offset),
                Target::Next => bytes.len(),
                Target::Chain(_) | Target::Other => continue,
            };
            let verdict = start + target_offset(Layout::of(self.family), &bytes[start..]) + TARGET_DATA;
            bytes[verdict..verdict + 4].copy_from_slice(&(goes_on_at as i32).to_ne_bytes());
        }
        let mut info = self.info.clone();
        for hook in (0..HOOKS).filter(|hook| u32_at(&self.info, INFO_HOOKS) & (1 << hook) != 0) {
            for offsets in [INFO_ENTRIES, INFO_UNDERFLOWS] {
                let at = offsets + 4 * hook;
                let moved = moves.of(u32_at(&info, at) as usize) as u32;
                info[at..at + 4].copy_from_slice(&moved.to_ne_bytes());
            }
        }
        Replacement { info, bytes, kept, entries_before: self.entries.len() }
    }

    /// The chains of the user, and the offset of each one's first rule.
    fn beginnings(&self) -> impl Iterator<Item = (&str, usize)> {
        let chains = &self.entries[..self.entries.len() - 1];
        chains.iter().filter_map(|entry| match &entry.target {
            Target::Chain(name) => Some((name.as_str(), entry.end)),
            _ => None,
        })
    }
}

impl Replacement {
    pub(super) fn name(&self) -> String {
        text(&self.info[..NAME])
    }

    pub(crate) fn entries(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn entries_before(&self) -> usize {
        self.entries_before
    }

    /// `struct ipt_replace` up to its entries, with the address where the kernel puts what the old entries have counted.
    pub(crate) fn header(&self, counters: u64) -> Vec<u8> {
        let mut header = Vec::with_capacity(REPLACE_HEADER + self.bytes.len());
        header.extend_from_slice(&self.info[..NAME + 4]);
        header.extend((self.kept.len() as u32).to_ne_bytes());
        header.extend((self.bytes.len() as u32).to_ne_bytes());
        header.extend_from_slice(&self.info[INFO_ENTRIES..INFO_UNDERFLOWS + 4 * HOOKS]);
        header.extend((self.entries_before as u32).to_ne_bytes());
        header.extend(counters.to_ne_bytes());
        header
    }

    /// `struct xt_counters_info` with what the entries that stay had counted.
    pub(super) fn counters(&self, before: &[u8]) -> Vec<u8> {
        let mut message = self.info[..NAME].to_vec();
        message.extend((self.kept.len() as u32).to_ne_bytes());
        message.resize(COUNTERS_HEADER, 0);
        for index in &self.kept {
            message.extend_from_slice(&before[index * COUNTER..(index + 1) * COUNTER]);
        }
        message
    }
}

/// Where offsets of a table are in one that lacks some of its entries.
struct Moves {
    /// For each entry that stays: where it was, and where it is.
    places: Vec<(usize, usize)>,
    end: usize,
}

impl Moves {
    fn new<'a>(kept: impl Iterator<Item = &'a Entry>) -> Moves {
        let mut end = 0;
        let mut places = Vec::new();
        for entry in kept {
            places.push((entry.at, end));
            end += entry.end - entry.at;
        }
        Moves { places, end }
    }

    /// Of an entry that is gone: where the next one is that stays.
    fn of(&self, offset: usize) -> usize {
        let next = self.places.partition_point(|(before, _)| *before < offset);
        self.places.get(next).map_or(self.end, |(_, now)| *now)
    }
}

/// A header of this length that begins with a table's name.
pub(super) fn named_header(name: &str, length: usize) -> Result<Vec<u8>, Malformed> {
    if name.len() >= NAME {
        return Err(Malformed::Size { expected: NAME, found: name.len() });
    }
    let mut header = name.as_bytes().to_vec();
    header.resize(length, 0);
    Ok(header)
}

/// How many entries a table has.
pub(super) fn count_in(info: &[u8]) -> usize {
    u32_at(info, INFO_COUNT) as usize
}

/// How many bytes the entries of a table have.
pub(super) fn size_in(info: &[u8]) -> usize {
    u32_at(info, INFO_SIZE) as usize
}

fn read_entry(layout: Layout, bytes: &[u8], at: usize) -> Result<Entry, Malformed> {
    let rest = &bytes[at..];
    let cut = |expected| Malformed::Size { expected, found: rest.len() };
    if rest.len() < layout.size {
        return Err(cut(layout.size));
    }
    let (target, length) = (target_offset(layout, rest), usize::from(u16_at(rest, layout.next_offset)));
    if length < target + TARGET_DATA || target < layout.size || length > rest.len() {
        return Err(cut(length));
    }
    let end = at + length;
    Ok(Entry { at, end, target: read_target(&rest[target..length], end) })
}

fn read_target(target: &[u8], end: usize) -> Target {
    let verdict = target.get(TARGET_DATA..TARGET_DATA + 4).and_then(|bytes| bytes.try_into().ok());
    match text(&target[TARGET_NAME]).as_str() {
        "ERROR" => Target::Chain(target.get(ERROR_NAME).map(text).unwrap_or_default()),
        // The standard target has no name.
        "" => match verdict.map(i32::from_ne_bytes).and_then(|verdict| usize::try_from(verdict).ok()) {
            Some(offset) if offset == end => Target::Next,
            Some(offset) => Target::Jump(offset),
            // Accept, drop, return.
            None => Target::Other,
        },
        _ => Target::Other,
    }
}

fn target_offset(layout: Layout, entry: &[u8]) -> usize {
    usize::from(u16_at(entry, layout.target_offset))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Up to the first zero.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
mod tests;
