//! The legacy variant of iptables without its tool. The kernel replaces a table only as a whole: Ferroxy reads the table,
//! changes it and writes it back while holding the lock of the tools. Rules of other programs stay byte for byte as they were,
//! and keep their counters.

use std::time::Instant;

use ferroxy_core::Family;
use ferroxy_netlink::error::Errno;
use ferroxy_netlink::nftables;
use ferroxy_netlink::xtables::{self, ChainId, Connection, Goal, Leads, Parts, Rule, Unassembled};

use super::nft::nft_family;
use crate::plan::{Op, Plan};
use crate::program::is_builtin;
use crate::rule::target;
use crate::state::{Rules, State, Table, TableName};
use crate::tool::{Attendant, Error, Leftover, Limits, Lock, Receipt, Refusal, Variant};
use crate::watch::Owns;
use crate::xt::{Sets, Terms, entry, parse, unknown, why_unknown};

/// How often a table is read and replaced at most. The kernel returns EAGAIN if a program that ignores the lock changed the
/// table in between.
const ATTEMPTS: usize = 3;

#[derive(Debug)]
pub(super) struct Legacy {
    family: Family,
    connection: Connection,
    pub(super) sets: Sets,
}

impl Legacy {
    pub(super) fn open(family: Family) -> Result<Legacy, Error> {
        Ok(Legacy { family, connection: Connection::open(nft_family(family))?, sets: Sets::default() })
    }

    fn terms(&self) -> Terms<'_> {
        Terms { family: self.family, sets: &self.sets }
    }

    pub(super) fn probe(&self) -> Result<(), Error> {
        self.connection.size(TableName::Mangle.as_str())?;
        Ok(())
    }

    /// Reads only tables that exist, because reading a table creates it.
    pub(super) fn observe(&self, owns: Owns) -> Result<State, Error> {
        let mut state = State::default();
        for name in xtables::tables(nft_family(self.family))? {
            let Some(table) = TableName::parse(&name) else { continue };
            let found = self.observe_table(table, owns)?;
            if !found.is_empty() {
                state.tables.insert((self.family, table), found);
            }
        }
        Ok(state)
    }

    fn observe_table(&self, name: TableName, owns: Owns) -> Result<Table, Error> {
        let parts = self.read(name)?;
        let mut table = Table::default();
        for (id, chain, is_base) in parts.chains() {
            let is_ours = !is_base && owns(name, chain);
            if !(is_ours || is_base && is_builtin(chain)) {
                continue;
            }
            let mut rules = Rules::new();
            for (index, rule) in parts.rules(id).enumerate() {
                let text = text(self.terms(), &parts, rule, index);
                if is_ours || target(&text).is_some_and(|target| owns(name, target)) {
                    rules.push(format_args!("{text}"));
                }
            }
            rules.shrink();
            if is_ours {
                table.chains.insert(chain.into(), rules);
            } else if !rules.is_empty() {
                table.jumps.insert(chain.into(), rules);
            }
        }
        Ok(table)
    }

    fn read(&self, table: TableName) -> Result<Parts, Error> {
        let read = self.connection.read(table.as_str())?;
        let malformed = |found| ferroxy_netlink::Error::malformed("read table", table.as_str(), found);
        Ok(Parts::new(read).map_err(malformed)?)
    }

    pub(super) fn apply(
        &mut self,
        plan: &Plan,
        limits: &Limits,
        attendant: &dyn Attendant,
    ) -> Result<Receipt, Error> {
        let tables = plan.tables.iter().filter(|((family, _), _)| *family == self.family);
        let tables: Vec<(TableName, &[Op])> =
            tables.map(|((_, table), ops)| (*table, ops.as_slice())).collect();
        let mut receipt = Receipt::default();
        if tables.is_empty() {
            return Ok(receipt);
        }
        let (_lock, waited) = Lock::take(limits, attendant)?;
        let began = Instant::now();
        for (table, ops) in tables {
            self.replace(table, ops, &mut receipt)?;
            attendant.waiting();
        }
        Ok(Receipt { runs: 1, waited, tool_time: began.elapsed(), ..receipt })
    }

    fn replace(&self, table: TableName, ops: &[Op], receipt: &mut Receipt) -> Result<(), Error> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let mut parts = self.read(table)?;
            edit(self.terms(), &mut parts, ops)?;
            let replacement = parts.replacement().map_err(unassembled)?;
            let size = replacement.size();
            match self.connection.replace(replacement) {
                Ok(()) => {
                    receipt.commits += 1;
                    receipt.lines += ops.len();
                    receipt.bytes += size;
                    return Ok(());
                }
                Err(error) if error.errno == Errno::AGAIN && attempt < ATTEMPTS => {}
                Err(error) if matches!(error.errno, Errno::PERM | Errno::ACCESS | Errno::NOMEM) => {
                    return Err(error.into());
                }
                // The kernel does not say which rule it refused.
                Err(error) => return Err(refused(None, error.to_string())),
            }
        }
    }

    /// Warns about rules of a proxy in the nft variant: packets pass them, too.
    pub(super) fn warn_of_leftovers(&self) -> Result<(), Error> {
        let mut found: Option<Leftover> = None;
        let mut connection = nftables::Connection::open()?;
        connection.all_chains(nft_family(self.family), &mut |table, chain, _| {
            if found.is_none()
                && let Some(table) = TableName::parse(table)
                && Leftover::is_of_a_proxy(chain)
            {
                let (variant, table, chain) = (Variant::NfTables, table.as_str(), chain.to_owned());
                found = Some(Leftover { family: self.family, variant, table, chain });
            }
        })?;
        found.iter().for_each(Leftover::warn);
        Ok(())
    }
}

/// Applies the operations of a Plan to a table.
fn edit(terms: Terms<'_>, parts: &mut Parts, ops: &[Op]) -> Result<(), Error> {
    for op in ops {
        if let Op::Write { chain, .. } = op {
            parts.create(chain);
        }
    }
    for op in ops {
        match op {
            Op::Write { chain, rules } => {
                let id = find(parts, chain, ":")?;
                let new: Result<Vec<Rule>, Error> =
                    rules.iter().map(|rule| new_rule(terms, parts, chain, rule)).collect();
                *parts.rules_mut(id) = new?;
            }
            Op::Delete { chain, rule } => {
                let id = find(parts, chain, rule)?;
                let Some(index) = position(terms, parts, id, rule) else {
                    return Err(refused(Some((chain, rule)), "the chain does not have this rule".into()));
                };
                parts.rules_mut(id).remove(index);
            }
            Op::Insert { chain, place, rule } => {
                let new = new_rule(terms, parts, chain, rule)?;
                let id = find(parts, chain, rule)?;
                let rules = parts.rules_mut(id);
                rules.insert((*place - 1).min(rules.len()), new);
            }
            Op::Append { chain, rule } => {
                let new = new_rule(terms, parts, chain, rule)?;
                let id = find(parts, chain, rule)?;
                parts.rules_mut(id).push(new);
            }
            Op::Remove { chain } => {
                if let Some(id) = parts.find(chain) {
                    parts.remove(id);
                }
            }
        }
    }
    Ok(())
}

fn unassembled(why: Unassembled) -> Error {
    let said = match why {
        Unassembled::Dangling { chain, rule } => {
            format!("rule {} of {chain} leads to a chain that shall be removed", rule + 1)
        }
        Unassembled::TooLarge => "the table would be larger than 4 GiB".to_owned(),
    };
    refused(None, said)
}

fn new_rule(terms: Terms<'_>, parts: &mut Parts, chain: &str, rule: &str) -> Result<Rule, Error> {
    let refuse = |why: &str| refused(Some((chain, rule)), why.into());
    let spec = parse(terms, rule).ok_or_else(|| refuse(why_unknown(rule)))?;
    let goal = match entry::leads(&spec) {
        Leads::Chain(to) => Goal::Chain(parts.find(to).ok_or_else(|| refuse("there is no such chain"))?),
        Leads::On => Goal::On,
        Leads::Nowhere => Goal::Nowhere,
    };
    Ok(parts.add(goal, |bytes| entry::write(&spec, terms.family, bytes)))
}

fn find(parts: &Parts, chain: &str, rule: &str) -> Result<ChainId, Error> {
    parts.find(chain).ok_or_else(|| refused(Some((chain, rule)), "there is no such chain".into()))
}

/// The index of a rule in a chain. A rule that we can parse is compared as bytes, so that a long chain is not printed.
fn position(terms: Terms<'_>, parts: &Parts, id: ChainId, rule: &str) -> Option<usize> {
    let Some(spec) = parse(terms, rule) else {
        let mut rules = parts.rules(id).enumerate();
        return rules.position(|(index, it)| text(terms, parts, it, index) == rule);
    };
    let leads = entry::leads(&spec);
    let mut bytes = Vec::new();
    entry::write(&spec, terms.family, &mut bytes);
    parts.rules(id).position(|it| {
        parts.leads(it) == leads
            && entry::is_same(terms.family, &bytes, parts.bytes(it), leads != Leads::Nowhere)
    })
}

/// The rule as `iptables-save` prints it. A rule that we cannot read is identified by its index in the chain.
fn text(terms: Terms<'_>, parts: &Parts, rule: Rule, index: usize) -> String {
    let leads = parts.leads(rule);
    match (entry::read(terms, parts.bytes(rule), leads), leads) {
        (Some(spec), _) => spec.display(terms.family).to_string(),
        (None, Leads::Chain(to)) => unknown(index as u64, Some(to)),
        (None, _) => unknown(index as u64, None),
    }
}

fn refused(line: Option<(&str, &str)>, said: String) -> Error {
    let (line, chain) = match line {
        Some((chain, rule)) => (Some(format!("-A {chain} {rule}")), Some(chain.to_owned())),
        None => (None, None),
    };
    Error::Refused(Box::new(Refusal { tool: "the kernel".into(), status: 0, said, line, chain }))
}
