//! Takes a table of legacy iptables apart into chains and rules, and edits them. Entries that are not edited keep their bytes and
//! counters. Pure; `assembly.rs` puts the table together again.
//!
//! A table can have half a million entries, and a change concerns a dozen of them: nothing is allocated for an entry or a chain
//! that stays.

use std::collections::BTreeMap;

use crate::codec::Malformed;

use super::table::{
    HOOKS, INFO_ENTRIES, INFO_HOOKS, INFO_UNDERFLOWS, Layout, STANDARD_SIZE, TARGET_DATA, Table, Target,
    put_u32, u32_at,
};

/// The names of built-in chains, by the number of their hook.
const BUILTINS: [&str; HOOKS] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];
/// `XT_RETURN`, the end of every chain of the user.
const RETURN: i32 = -5;
const ERROR: &str = "ERROR";
/// The size of `struct xt_error_target`.
const ERROR_SIZE: usize = 64;

#[derive(Debug)]
pub struct Parts {
    pub(super) table: Table,
    /// In the order of the table: built-in ones first.
    pub(super) chains: Vec<Chain>,
    /// The hooks of the built-in chains, which come first in `chains`.
    pub(super) hooks: Vec<usize>,
    /// The chains of the user, by name.
    pub(super) by_name: Vec<u32>,
    /// Chains of the table whose rules were changed; `None` if the chain was removed.
    pub(super) edits: BTreeMap<u32, Option<Vec<Rule>>>,
    pub(super) created: Vec<Created>,
    pub(super) created_by_name: BTreeMap<Box<str>, ChainId>,
    /// New entries, one after the other.
    pub(super) new_bytes: Vec<u8>,
}

/// A chain of the table, as indexes of entries.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chain {
    /// The entry with the name of a chain of the user; the first rule of a built-in one.
    pub(super) begin: u32,
    pub(super) first: u32,
    /// The last entry: the policy of a built-in chain, the return of a chain of the user.
    pub(super) foot: u32,
}

#[derive(Debug)]
pub(super) struct Created {
    pub(super) head: Rule,
    /// `None` if the chain was removed again.
    pub(super) rules: Option<Vec<Rule>>,
    pub(super) foot: Rule,
}

/// Identifies a chain in these [`Parts`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChainId(pub(super) u32);

/// Identifies a rule in these [`Parts`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule(pub(super) Source);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// An entry of the table.
    Old(u32),
    /// A part of the new bytes.
    New { start: u32, end: u32, goal: Goal },
}

/// Where a packet goes on after a new rule that matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    Chain(ChainId),
    /// The next rule.
    On,
    /// The target decides.
    Nowhere,
}

/// Like [`Goal`], but for reading any rule: names the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leads<'p> {
    Chain(&'p str),
    On,
    Nowhere,
}

impl Parts {
    pub fn new(table: Table) -> Result<Parts, Malformed> {
        let (chains, hooks) = find_chains(&table)?;
        let mut by_name: Vec<u32> = (hooks.len() as u32..chains.len() as u32).collect();
        let name = |chain: &u32| table.name_at(chains[*chain as usize].begin);
        if !by_name.is_sorted_by_key(name) {
            by_name.sort_by_key(name);
        }
        Ok(Parts {
            table,
            chains,
            hooks,
            by_name,
            edits: BTreeMap::new(),
            created: Vec::new(),
            created_by_name: BTreeMap::new(),
            new_bytes: Vec::new(),
        })
    }

    /// Every chain of the table with its name, and whether it is built in.
    pub fn chains(&self) -> impl Iterator<Item = (ChainId, &str, bool)> {
        let ids = (0..self.chains.len() as u32).map(ChainId);
        ids.map(|id| (id, self.chain_name(id), (id.0 as usize) < self.hooks.len()))
    }

    /// The chain of this name, unless it was removed.
    pub fn find(&self, name: &str) -> Option<ChainId> {
        if let Some(id) = self.created_by_name.get(name) {
            return self.created.get(self.place(*id)).is_some_and(|it| it.rules.is_some()).then_some(*id);
        }
        let id = self.find_in_table(name)?;
        (self.edits.get(&id.0) != Some(&None)).then_some(id)
    }

    fn find_in_table(&self, name: &str) -> Option<ChainId> {
        if let Some(builtin) = self.hooks.iter().position(|hook| BUILTINS[*hook] == name) {
            return Some(ChainId(builtin as u32));
        }
        let name_of = |chain: &u32| self.table.name_at(self.chains[*chain as usize].begin);
        let place = self.by_name.binary_search_by(|chain| name_of(chain).cmp(name.as_bytes())).ok()?;
        Some(ChainId(self.by_name[place]))
    }

    /// Creates a chain without rules, unless it exists.
    pub fn create(&mut self, name: &str) -> ChainId {
        if let Some(id) = self.find(name) {
            return id;
        }
        let known = self.created_by_name.get(name).copied().or_else(|| self.find_in_table(name));
        if let Some(id) = known {
            *self.rules_mut(id) = Vec::new();
            return id;
        }
        let layout = Layout::of(self.table.family);
        let head = self.add(Goal::Nowhere, |bytes| {
            let entry = put_entry(layout, bytes, ERROR, ERROR_SIZE);
            let length = name.len().min(29);
            entry[layout.size + TARGET_DATA..][..length].copy_from_slice(&name.as_bytes()[..length]);
        });
        let foot = self.add(Goal::Nowhere, |bytes| {
            let entry = put_entry(layout, bytes, "", STANDARD_SIZE);
            put_u32(entry, layout.size + TARGET_DATA, RETURN.cast_unsigned());
        });
        let id = ChainId((self.chains.len() + self.created.len()) as u32);
        self.created.push(Created { head, rules: Some(Vec::new()), foot });
        self.created_by_name.insert(name.into(), id);
        id
    }

    /// Removes a chain with its rules. All rules that lead to it must be removed before the table is put together.
    pub fn remove(&mut self, id: ChainId) {
        let place = self.place(id);
        match self.created.get_mut(place) {
            Some(created) if id.0 as usize >= self.chains.len() => created.rules = None,
            _ => drop(self.edits.insert(id.0, None)),
        }
    }

    /// Creates a rule that is in no chain yet. `write` appends it as a `struct ipt_entry`; if it jumps, `assembly.rs` fills in the
    /// offset later.
    pub fn add(&mut self, goal: Goal, write: impl FnOnce(&mut Vec<u8>)) -> Rule {
        // If the offset does not fit, putting the table together fails.
        let end = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let start = end(&self.new_bytes);
        write(&mut self.new_bytes);
        Rule(Source::New { start, end: end(&self.new_bytes), goal })
    }

    /// The rules of a chain, to be changed.
    pub fn rules_mut(&mut self, id: ChainId) -> &mut Vec<Rule> {
        let place = self.place(id);
        match self.chains.get(id.0 as usize) {
            Some(chain) => {
                let old = || Some((chain.first..chain.foot).map(|entry| Rule(Source::Old(entry))).collect());
                self.edits.entry(id.0).or_insert_with(old).get_or_insert_default()
            }
            None => self.created[place].rules.get_or_insert_default(),
        }
    }

    /// The rules of a chain, in order.
    pub fn rules(&self, id: ChainId) -> impl ExactSizeIterator<Item = Rule> {
        let edited = match self.chains.get(id.0 as usize) {
            Some(_) => self.edits.get(&id.0).map(|rules| rules.as_deref().unwrap_or_default()),
            None => self.created.get(self.place(id)).map(|it| it.rules.as_deref().unwrap_or_default()),
        };
        let (first, count) = match (edited, self.chains.get(id.0 as usize)) {
            (Some(rules), _) => (0, rules.len()),
            (None, Some(chain)) => (chain.first, (chain.foot - chain.first) as usize),
            (None, None) => (0, 0),
        };
        (0..count).map(move |index| match edited {
            Some(rules) => rules[index],
            None => Rule(Source::Old(first + index as u32)),
        })
    }

    pub fn bytes(&self, rule: Rule) -> &[u8] {
        match rule.0 {
            Source::Old(entry) => self.table.entry_bytes(entry),
            Source::New { start, end, .. } => {
                self.new_bytes.get(start as usize..end as usize).unwrap_or_default()
            }
        }
    }

    pub fn leads(&self, rule: Rule) -> Leads<'_> {
        match rule.0 {
            Source::Old(entry) => match self.table.entries[entry as usize].target {
                Target::Jump(offset) => match self.chain_at(offset) {
                    Some(chain) => Leads::Chain(self.chain_name(chain)),
                    None => Leads::Nowhere,
                },
                Target::Next => Leads::On,
                Target::Chain | Target::Other => Leads::Nowhere,
            },
            Source::New { goal, .. } => match goal {
                Goal::Chain(chain) => Leads::Chain(self.chain_name(chain)),
                Goal::On => Leads::On,
                Goal::Nowhere => Leads::Nowhere,
            },
        }
    }

    /// The chain of the table whose first rule is at this offset.
    fn chain_at(&self, offset: u32) -> Option<ChainId> {
        let users = &self.chains[self.hooks.len()..];
        let place = users.partition_point(|chain| self.table.entries[chain.first as usize].at < offset);
        let chain = users.get(place)?;
        let is_it = self.table.entries[chain.first as usize].at == offset;
        is_it.then_some(ChainId((self.hooks.len() + place) as u32))
    }

    pub(super) fn chain_name(&self, id: ChainId) -> &str {
        let index = id.0 as usize;
        let name: &[u8] = match (self.hooks.get(index), self.chains.get(index)) {
            (Some(hook), _) => return BUILTINS[*hook],
            (None, Some(chain)) => self.table.name_at(chain.begin),
            (None, None) => {
                let head = self.created.get(self.place(id)).map(|it| self.bytes(it.head)).unwrap_or_default();
                let name = head.get(Layout::of(self.table.family).size + TARGET_DATA..).unwrap_or_default();
                name.split(|byte| *byte == 0).next().unwrap_or_default()
            }
        };
        // A name that is not valid UTF-8 is never ours.
        std::str::from_utf8(name).unwrap_or_default()
    }

    /// The index among the created chains.
    pub(super) fn place(&self, id: ChainId) -> usize {
        (id.0 as usize).wrapping_sub(self.chains.len())
    }
}

/// The chains of a table, built-in chains first, and the hooks of the built-in chains.
fn find_chains(table: &Table) -> Result<(Vec<Chain>, Vec<usize>), Malformed> {
    let info = &table.info;
    let present = || (0..HOOKS).filter(|hook| u32_at(info, INFO_HOOKS) & (1 << hook) != 0);
    let mut chains = Vec::new();
    let mut hooks = Vec::new();
    let last = table.entries.len() as u32 - 1;
    // The first entry of the chain that is being read.
    let mut begin: Option<u32> = None;
    for (index, entry) in (0..).zip(&table.entries) {
        match (entry.target, begin) {
            (Target::Chain, begin) => {
                match begin {
                    Some(begin) => chains.push(user_chain(begin, index)?),
                    // Every entry before the first chain of the user belongs to a built-in one.
                    None if chains.last().map_or(0, |chain: &Chain| chain.foot + 1) == index => {}
                    None => return Err(Malformed::Missing { what: "end of a built-in chain" }),
                }
                if index == last {
                    return Ok((chains, hooks));
                }
            }
            (_, Some(_)) => continue,
            // In a built-in chain, whose end is in the header.
            (_, None) => {
                let first = chains.last().map_or(0, |chain: &Chain| chain.foot + 1);
                if present().any(|hook| u32_at(info, INFO_UNDERFLOWS + 4 * hook) == entry.at) {
                    let start = table.entries[first as usize].at;
                    let hook = present().find(|hook| u32_at(info, INFO_ENTRIES + 4 * hook) == start);
                    hooks.push(hook.ok_or(Malformed::Missing { what: "built-in chain" })?);
                    chains.push(Chain { begin: first, first, foot: index });
                }
                continue;
            }
        }
        begin = Some(index);
    }
    Err(Malformed::Missing { what: "end of the table" })
}

/// The chain from entry `begin`, which has its name, to the entry before `next`.
fn user_chain(begin: u32, next: u32) -> Result<Chain, Malformed> {
    match next - begin {
        0 | 1 => Err(Malformed::Missing { what: "end of a chain" }),
        _ => Ok(Chain { begin, first: begin + 1, foot: next - 1 }),
    }
}

/// Appends an entry without matches, whose target has this name and size.
fn put_entry<'b>(layout: Layout, bytes: &'b mut Vec<u8>, name: &str, target: usize) -> &'b mut [u8] {
    let start = bytes.len();
    bytes.resize(start + layout.size + target, 0);
    let entry = &mut bytes[start..];
    let size = entry.len() as u16;
    entry[layout.target_offset..][..2].copy_from_slice(&(layout.size as u16).to_ne_bytes());
    entry[layout.next_offset..][..2].copy_from_slice(&size.to_ne_bytes());
    entry[layout.size..][..2].copy_from_slice(&(target as u16).to_ne_bytes());
    entry[layout.size + 2..][..name.len()].copy_from_slice(name.as_bytes());
    entry
}

#[cfg(test)]
mod tests;
