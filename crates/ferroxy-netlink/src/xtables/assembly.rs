//! Puts an edited table together. Pure.
//!
//! Entries that stay are copied in long pieces. A jump contains the offset of the chain that it leads to, so every jump is
//! rewritten with the chain's offset in the new table.

use super::parts::{ChainId, Goal, Parts, Rule, Source};
use super::table::{
    INFO_ENTRIES, INFO_UNDERFLOWS, REPLACE_HEADER, Replacement, Run, Target, VERDICT_FROM_END, put_u32,
};

/// Why the table cannot be put together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unassembled {
    /// Rule number `rule` (counted from 0) of `chain` leads to a chain that does not exist.
    Dangling { chain: String, rule: usize },
    /// Offsets have 32 bits.
    TooLarge,
}

/// A piece of the new table: old entries that were adjacent before, or one new entry.
#[derive(Debug, Clone, Copy)]
enum Piece {
    /// Entries of the old table: the first one, and the one after the last.
    Old(u32, u32),
    New(Rule),
}

/// The new table, before its bytes are copied.
struct Assembly<'p> {
    parts: &'p Parts,
    pieces: Vec<Piece>,
    /// Where the next entry will be.
    end: u32,
    info: Vec<u8>,
    /// The offsets of the first rules of edited chains, before and now.
    edited: Vec<(u32, u32)>,
    /// The offsets of the first rules of created chains, by their place.
    created: Vec<u32>,
}

impl Parts {
    /// The table after all edits. Chains of the user are sorted by name, as the `iptables` tool writes them.
    pub fn replacement(&self) -> Result<Replacement, Unassembled> {
        if u32::try_from(self.table.bytes().len() + self.new_bytes.len()).is_err() {
            return Err(Unassembled::TooLarge);
        }
        let mut assembly = Assembly {
            parts: self,
            pieces: Vec::new(),
            end: 0,
            info: self.table.info.clone(),
            edited: Vec::new(),
            created: vec![0; self.created.len()],
        };
        (0..self.hooks.len() as u32).for_each(|builtin| assembly.builtin(ChainId(builtin)));
        let mut created = self.created_by_name.iter().peekable();
        for &old in &self.by_name {
            let name = self.table.name_at(self.chains[old as usize].begin);
            while let Some((_, id)) = created.next_if(|(new, _)| new.as_bytes() < name) {
                assembly.created(*id);
            }
            assembly.user(ChainId(old));
        }
        created.for_each(|(_, id)| assembly.created(*id));
        let last = self.table.entries.len() as u32;
        assembly.keep(last - 1, last);
        assembly.copy()
    }
}

impl Assembly<'_> {
    fn builtin(&mut self, id: ChainId) {
        let start = self.end;
        let chain = self.parts.chains[id.0 as usize];
        match self.parts.edits.get(&id.0) {
            None => self.keep(chain.begin, chain.foot),
            Some(rules) => rules.iter().flatten().for_each(|rule| self.rule(*rule)),
        }
        if let Some(hook) = self.parts.hooks.get(id.0 as usize) {
            put_u32(&mut self.info, INFO_ENTRIES + 4 * hook, start);
            put_u32(&mut self.info, INFO_UNDERFLOWS + 4 * hook, self.end);
        }
        self.keep(chain.foot, chain.foot + 1);
    }

    fn user(&mut self, id: ChainId) {
        let chain = self.parts.chains[id.0 as usize];
        match self.parts.edits.get(&id.0) {
            None => self.keep(chain.begin, chain.foot + 1),
            Some(None) => {}
            Some(Some(rules)) => {
                self.keep(chain.begin, chain.first);
                self.edited.push((self.parts.table.entries[chain.first as usize].at, self.end));
                rules.iter().for_each(|rule| self.rule(*rule));
                self.keep(chain.foot, chain.foot + 1);
            }
        }
    }

    fn created(&mut self, id: ChainId) {
        let place = self.parts.place(id);
        let Some(chain) = self.parts.created.get(place) else { return };
        let Some(rules) = &chain.rules else { return };
        self.rule(chain.head);
        self.created[place] = self.end;
        rules.iter().for_each(|rule| self.rule(*rule));
        self.rule(chain.foot);
    }

    fn rule(&mut self, rule: Rule) {
        match rule.0 {
            Source::Old(entry) => self.keep(entry, entry + 1),
            Source::New { start, end, .. } => {
                self.end += end - start;
                self.pieces.push(Piece::New(rule));
            }
        }
    }

    fn keep(&mut self, first: u32, end: u32) {
        if first == end {
            return;
        }
        let entries = &self.parts.table.entries;
        self.end += entries[end as usize - 1].end - entries[first as usize].at;
        match self.pieces.last_mut() {
            Some(Piece::Old(_, before)) if *before == first => *before = end,
            _ => self.pieces.push(Piece::Old(first, end)),
        }
    }

    fn copy(mut self) -> Result<Replacement, Unassembled> {
        self.edited.sort_unstable();
        let moved = self.moved();
        let table = &self.parts.table;
        let mut message = Vec::with_capacity(REPLACE_HEADER + self.end as usize);
        message.resize(REPLACE_HEADER, 0);
        let mut runs = Vec::with_capacity(self.pieces.len());
        for piece in &self.pieces {
            let start = message.len();
            match *piece {
                Piece::Old(first, end) => {
                    let (from, to) = (table.entries[first as usize].at, table.entries[end as usize - 1].end);
                    message.extend_from_slice(&table.bytes()[from as usize..to as usize]);
                    runs.push(Run { count: end - first, before: Some(first) });
                    self.lead_anew(&mut message[start..], start - REPLACE_HEADER, (first, end), &moved)?;
                }
                Piece::New(rule) => {
                    message.extend_from_slice(self.parts.bytes(rule));
                    runs.push(Run { count: 1, before: None });
                    if let Some(goal) = self.goal(rule, message.len() - REPLACE_HEADER, &moved)? {
                        let verdict = message.len() - VERDICT_FROM_END;
                        put_u32(&mut message, verdict, goal);
                    }
                }
            }
        }
        Ok(Replacement { info: self.info, message, runs, entries_before: table.entries.len() })
    }

    /// For each piece of old entries: start and end before, start now. Sorted by the start before.
    fn moved(&self) -> Vec<(u32, u32, u32)> {
        let entries = &self.parts.table.entries;
        let mut now = 0;
        let mut moved = Vec::new();
        for piece in &self.pieces {
            match *piece {
                Piece::Old(first, end) => {
                    let (from, to) = (entries[first as usize].at, entries[end as usize - 1].end);
                    moved.push((from, to, now));
                    now += to - from;
                }
                Piece::New(rule) => now += self.parts.bytes(rule).len() as u32,
            }
        }
        moved.sort_unstable();
        moved
    }

    /// Rewrites the jumps in a copy of old entries. `start` is the offset of the copy in the new table.
    fn lead_anew(
        &self,
        copy: &mut [u8],
        start: usize,
        (first, end): (u32, u32),
        moved: &[(u32, u32, u32)],
    ) -> Result<(), Unassembled> {
        let entries = &self.parts.table.entries[first as usize..end as usize];
        let before = entries.first().map_or(0, |entry| entry.at);
        for (index, entry) in (first..).zip(entries) {
            let place = (entry.end - before) as usize;
            let goal = match entry.target {
                Target::Jump(offset) => self.now(offset, moved).ok_or_else(|| self.dangling(index))?,
                Target::Next => (start + place) as u32,
                Target::Chain | Target::Other => continue,
            };
            put_u32(copy, place - VERDICT_FROM_END, goal);
        }
        Ok(())
    }

    /// The offset that a new rule leads to, if the rule ends at `end`. `None` if its target decides.
    fn goal(&self, rule: Rule, end: usize, moved: &[(u32, u32, u32)]) -> Result<Option<u32>, Unassembled> {
        let Source::New { goal, .. } = rule.0 else { return Ok(None) };
        let id = match goal {
            Goal::Chain(id) => id,
            Goal::On => return Ok(Some(end as u32)),
            Goal::Nowhere => return Ok(None),
        };
        let now = match self.parts.chains.get(id.0 as usize) {
            Some(chain) => self.now(self.parts.table.entries[chain.first as usize].at, moved),
            None => {
                let place = self.parts.place(id);
                let exists = self.parts.created.get(place).is_some_and(|it| it.rules.is_some());
                self.created.get(place).copied().filter(|_| exists)
            }
        };
        now.map(Some).ok_or_else(|| self.dangling_new(rule))
    }

    /// The offset now of a chain's first rule that was at `offset` before. `None` if the chain was removed.
    fn now(&self, offset: u32, moved: &[(u32, u32, u32)]) -> Option<u32> {
        if let Ok(place) = self.edited.binary_search_by_key(&offset, |(before, _)| *before) {
            return Some(self.edited[place].1);
        }
        let (from, to, now) =
            *moved.get(moved.partition_point(|(from, ..)| *from <= offset).checked_sub(1)?)?;
        (offset < to).then(|| now + (offset - from))
    }

    fn dangling(&self, entry: u32) -> Unassembled {
        let chains = &self.parts.chains;
        let chain = chains.partition_point(|chain| chain.begin <= entry).saturating_sub(1);
        let first = chains.get(chain).map_or(entry, |chain| chain.first);
        let name = self.parts.chain_name(ChainId(chain as u32)).to_owned();
        Unassembled::Dangling { chain: name, rule: (entry - first) as usize }
    }

    fn dangling_new(&self, rule: Rule) -> Unassembled {
        let ids = (0..(self.parts.chains.len() + self.parts.created.len()) as u32).map(ChainId);
        let found =
            ids.into_iter().find_map(|id| Some((id, self.parts.rules(id).position(|it| it == rule)?)));
        let (chain, rule) =
            found.map_or_else(Default::default, |(id, rule)| (self.parts.chain_name(id).to_owned(), rule));
        Unassembled::Dangling { chain, rule }
    }
}
