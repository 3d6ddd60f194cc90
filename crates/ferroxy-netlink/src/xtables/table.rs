//! A table of legacy iptables as the kernel lays it out in memory, and the same table without some of its rules. Pure.
//!
//! A table is one list of entries. Built-in chains come first, at offsets that the header contains; a chain of the user
//! begins with an entry whose target is `ERROR` and contains the chain's name. A jump is the offset of the entry to go on
//! with, so removing entries requires rewriting all jumps. The last entry of the table is an `ERROR`, too.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher};
use std::ops::Range;

use crate::codec::Malformed;

use super::Family;

/// The size of `struct ipt_getinfo`, and the offsets of the lists in `ipt_get_entries`, `ipt_replace` and
/// `xt_counters_info`. Each struct starts with the table's name. IPv6 has the same sizes.
pub(super) const INFO: usize = 84;
pub(super) const ENTRIES_HEADER: usize = 40;
pub(super) const REPLACE_HEADER: usize = 96;
pub(super) const COUNTERS_HEADER: usize = 40;
/// Packets and bytes, eight bytes each.
pub(crate) const COUNTER: usize = 16;

const NAME: usize = 32;
pub(super) const INFO_HOOKS: usize = 32;
pub(super) const INFO_ENTRIES: usize = 36;
pub(super) const INFO_UNDERFLOWS: usize = 56;
const INFO_COUNT: usize = 76;
const INFO_SIZE: usize = 80;
pub(super) const ENTRIES_SIZE: Range<usize> = 32..36;
pub(super) const HOOKS: usize = 5;

/// `struct xt_entry_target`: size, name, revision; then, for a standard target, the verdict, for `ERROR` a name.
const TARGET_NAME: Range<usize> = 2..31;
pub(super) const TARGET_DATA: usize = 32;
const ERROR_NAME: Range<usize> = 32..62;
/// The size of a standard target, and the distance of its verdict from the end of the entry.
pub(super) const STANDARD_SIZE: usize = 40;
pub(super) const VERDICT_FROM_END: usize = STANDARD_SIZE - TARGET_DATA;

/// Offsets in the head of an entry: `struct ipt_entry` and `struct ip6t_entry`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    pub(super) target_offset: usize,
    pub(super) next_offset: usize,
    pub(super) size: usize,
}

impl Layout {
    pub(super) const fn of(family: Family) -> Layout {
        match family {
            Family::Ip => Layout { target_offset: 88, next_offset: 90, size: 112 },
            Family::Ip6 => Layout { target_offset: 140, next_offset: 142, size: 168 },
        }
    }
}

/// A table as it was read.
#[derive(Debug)]
pub struct Table {
    pub(super) family: Family,
    pub(super) info: Vec<u8>,
    /// The kernel's answer: the entries are what follows its header.
    block: Vec<u8>,
    start: usize,
    pub(super) entries: Vec<Entry>,
}

/// Small, because there can be half a million entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) at: u32,
    pub(super) end: u32,
    pub(super) target: Target,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// The entry begins a chain, and contains its name.
    Chain,
    /// Continues at this offset, which is another chain's first rule.
    Jump(u32),
    /// A rule without a verdict: continues with the next rule.
    Next,
    Other,
}

/// A rule that leads to a chain of the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Jump {
    /// `None` for a built-in chain.
    pub from: Option<String>,
    /// Identifies the rule in this [`Table`].
    pub rule: u64,
    pub to: String,
}

/// The new contents of a table.
#[derive(Debug)]
pub struct Replacement {
    pub(super) info: Vec<u8>,
    /// `struct ipt_replace` with all entries; the header is written when it is sent.
    pub(super) message: Vec<u8>,
    pub(super) runs: Vec<Run>,
    pub(super) entries_before: usize,
}

/// Adjacent entries that were also adjacent before, or a new entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) count: u32,
    /// The index of the first entry in the table that was read; `None` for a new entry.
    pub(super) before: Option<u32>,
}

impl Table {
    /// Parses an answer of the kernel, in which the entries begin at `start`.
    pub(super) fn parse(
        family: Family,
        info: &[u8],
        block: Vec<u8>,
        start: usize,
    ) -> Result<Table, Malformed> {
        if info.len() != INFO {
            return Err(Malformed::Size { expected: INFO, found: info.len() });
        }
        let bytes = block.get(start..).unwrap_or_default();
        u32::try_from(bytes.len()).map_err(|_| Malformed::Size { expected: 0, found: bytes.len() })?;
        // Limits a wrong count in the header to the entries that fit into the bytes.
        let mut entries = Vec::with_capacity(count_in(info).min(bytes.len() / Layout::of(family).size));
        let mut at = 0;
        while at < bytes.len() {
            let entry = read_entry(Layout::of(family), bytes, at)?;
            at = entry.end as usize;
            entries.push(entry);
        }
        match entries.last().map(|entry| &entry.target) {
            Some(Target::Chain) => Ok(Table { family, info: info.to_vec(), block, start, entries }),
            _ => Err(Malformed::Missing { what: "end of the table" }),
        }
    }

    /// All entries.
    pub(super) fn bytes(&self) -> &[u8] {
        self.block.get(self.start..).unwrap_or_default()
    }

    pub(super) fn entry_bytes(&self, entry: u32) -> &[u8] {
        let found = self.entries.get(entry as usize);
        found.and_then(|it| self.bytes().get(it.at as usize..it.end as usize)).unwrap_or_default()
    }

    /// The name in the entry that begins a chain.
    pub(super) fn name_at(&self, entry: u32) -> &[u8] {
        let bytes = self.entry_bytes(entry);
        let name = bytes.get(target_offset(Layout::of(self.family), bytes)..);
        let name = name.and_then(|target| target.get(ERROR_NAME)).unwrap_or_default();
        name.split(|byte| *byte == 0).next().unwrap_or_default()
    }

    /// The same for two readings if no rule was changed between them. Counters are ignored.
    pub fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for entry in &self.entries {
            // The counters are at the end of the head.
            let head = entry.at as usize + Layout::of(self.family).size;
            hasher.write(&self.bytes()[entry.at as usize..head - COUNTER]);
            hasher.write(&self.bytes()[head..entry.end as usize]);
        }
        hasher.finish()
    }

    /// The chains that are not built in.
    pub fn chains(&self) -> impl Iterator<Item = &str> {
        self.beginnings().map(|(name, _)| name)
    }

    /// Every rule that leads to a chain that is not built in.
    pub fn jumps(&self) -> Vec<Jump> {
        let chain_at: BTreeMap<u32, &str> =
            self.beginnings().map(|(name, first_rule)| (first_rule, name)).collect();
        let mut jumps = Vec::new();
        let mut from: Option<&str> = None;
        for entry in &self.entries {
            match &entry.target {
                Target::Chain => from = chain_at.get(&entry.end).copied(),
                Target::Jump(offset) => {
                    if let Some(to) = chain_at.get(offset) {
                        let (from, rule) = (from.map(str::to_owned), u64::from(entry.at));
                        jumps.push(Jump { from, rule, to: (*to).to_owned() });
                    }
                }
                Target::Next | Target::Other => {}
            }
        }
        jumps
    }

    /// The table without these chains and rules. Rules of other chains that lead to the removed chains must be in `rules`.
    pub fn without(&self, chains: &BTreeSet<String>, rules: &BTreeSet<u64>) -> Replacement {
        let mut in_removed_chain = false;
        let last = self.entries.len() - 1;
        let mut keeps = |(index, entry): (usize, &Entry)| {
            if entry.target == Target::Chain {
                let name = String::from_utf8_lossy(self.name_at(index as u32));
                in_removed_chain = index != last && chains.contains(&*name);
            }
            !in_removed_chain && !rules.contains(&u64::from(entry.at))
        };
        let kept: Vec<usize> =
            (0..).zip(&self.entries).filter(|it| keeps(*it)).map(|(index, _)| index).collect();
        self.only(&kept)
    }

    fn only(&self, kept: &[usize]) -> Replacement {
        let moves = Moves::new(kept.iter().map(|index| &self.entries[*index]));
        let mut message = vec![0; REPLACE_HEADER];
        let mut runs = Vec::new();
        for index in kept {
            let entry = &self.entries[*index];
            message.extend_from_slice(self.entry_bytes(*index as u32));
            runs.push(Run { count: 1, before: Some(*index as u32) });
            let goes_on_at = match entry.target {
                Target::Jump(offset) => moves.of(offset as usize),
                Target::Next => message.len() - REPLACE_HEADER,
                Target::Chain | Target::Other => continue,
            };
            let verdict = message.len() - VERDICT_FROM_END;
            put_u32(&mut message, verdict, goes_on_at as u32);
        }
        let mut info = self.info.clone();
        for hook in (0..HOOKS).filter(|hook| u32_at(&self.info, INFO_HOOKS) & (1 << hook) != 0) {
            for offsets in [INFO_ENTRIES, INFO_UNDERFLOWS] {
                let at = offsets + 4 * hook;
                let moved = moves.of(u32_at(&info, at) as usize) as u32;
                info[at..at + 4].copy_from_slice(&moved.to_ne_bytes());
            }
        }
        Replacement { info, message, runs, entries_before: self.entries.len() }
    }

    /// The chains of the user, and the offset of each one's first rule.
    fn beginnings(&self) -> impl Iterator<Item = (&str, u32)> {
        let chains = &self.entries[..self.entries.len() - 1];
        (0..).zip(chains).filter(|(_, entry)| entry.target == Target::Chain).map(|(index, entry)| {
            // A name that is not valid UTF-8 is read as empty: it is never ours.
            (std::str::from_utf8(self.name_at(index)).unwrap_or_default(), entry.end)
        })
    }
}

impl Replacement {
    /// The size in bytes.
    pub fn size(&self) -> usize {
        self.message.len()
    }

    pub(super) fn name(&self) -> String {
        text(&self.info[..NAME])
    }

    pub(crate) fn entries_before(&self) -> usize {
        self.entries_before
    }

    fn count(&self) -> u32 {
        self.runs.iter().map(|run| run.count).sum()
    }

    /// `struct ipt_replace`, with the address to which the kernel writes the counters of the old entries.
    pub(crate) fn message(&mut self, counters: u64) -> &[u8] {
        let mut header = Vec::with_capacity(REPLACE_HEADER);
        header.extend_from_slice(&self.info[..NAME + 4]);
        header.extend(self.count().to_ne_bytes());
        header.extend(((self.message.len() - REPLACE_HEADER) as u32).to_ne_bytes());
        header.extend_from_slice(&self.info[INFO_ENTRIES..INFO_UNDERFLOWS + 4 * HOOKS]);
        header.extend((self.entries_before as u32).to_ne_bytes());
        header.extend(counters.to_ne_bytes());
        self.message[..REPLACE_HEADER].copy_from_slice(&header);
        &self.message
    }

    /// `struct xt_counters_info` with the old counters of the entries that stay.
    pub(super) fn counters(&self, before: &[u8]) -> Vec<u8> {
        let mut message = self.info[..NAME].to_vec();
        let count = self.count();
        message.reserve_exact(COUNTERS_HEADER - NAME + count as usize * COUNTER);
        message.extend(count.to_ne_bytes());
        message.resize(COUNTERS_HEADER, 0);
        for run in &self.runs {
            let (first, length) = (run.before.map(|it| it as usize * COUNTER), run.count as usize * COUNTER);
            match first.and_then(|first| before.get(first..first + length)) {
                Some(counted) => message.extend_from_slice(counted),
                None => message.resize(message.len() + length, 0),
            }
        }
        message
    }
}

/// Maps offsets of a table to offsets of the same table without some of its entries.
struct Moves {
    /// For each entry that stays: its offset before, and its offset now.
    places: Vec<(usize, usize)>,
    end: usize,
}

impl Moves {
    fn new<'a>(kept: impl Iterator<Item = &'a Entry>) -> Moves {
        let mut end = 0;
        let mut places = Vec::new();
        for entry in kept {
            places.push((entry.at as usize, end));
            end += (entry.end - entry.at) as usize;
        }
        Moves { places, end }
    }

    /// The offset now. For a removed entry: the offset now of the next entry that stays.
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
    let end = (at + length) as u32;
    Ok(Entry { at: at as u32, end, target: read_target(&rest[target..length], end) })
}

fn read_target(target: &[u8], end: u32) -> Target {
    let name = &target[TARGET_NAME];
    // The standard target has no name, and the kernel refuses a standard target of another size.
    if name[0] == 0 && target.len() == STANDARD_SIZE {
        let verdict = target[TARGET_DATA..].first_chunk().map_or(-1, |bytes| i32::from_ne_bytes(*bytes));
        return match u32::try_from(verdict) {
            Ok(offset) if offset == end => Target::Next,
            Ok(offset) => Target::Jump(offset),
            // Accept, drop, return.
            Err(_) => Target::Other,
        };
    }
    if name.starts_with(b"ERROR\0") { Target::Chain } else { Target::Other }
}

fn target_offset(layout: Layout, entry: &[u8]) -> usize {
    usize::from(u16_at(entry, layout.target_offset))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

pub(super) fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    if let Some(place) = bytes.get_mut(at..at + 4) {
        place.copy_from_slice(&value.to_ne_bytes());
    }
}

/// Up to the first zero.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
pub(super) mod tests;
