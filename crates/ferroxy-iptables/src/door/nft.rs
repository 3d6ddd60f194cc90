//! The nft variant of iptables without its tool: reads and writes the rules of one family over netlink, in the tool's own
//! encoding, so that the host's `iptables` sees them as its own.
//!
//! A Plan is one transaction unless it is very large. Single rules of long chains are deleted and inserted by their handles:
//! rules that another program put between ours stay in place, and a missing rule makes the transaction fail.

use std::collections::HashMap;
use std::time::Instant;

use ferroxy_core::Family;
use ferroxy_netlink::error::Errno;
use ferroxy_netlink::nftables::{
    Batch, Chain, ChainType, CommitError, Connection, Hook, HookPoint, NewRule, Place, Table as NftTable,
};
use ferroxy_netlink::xtables;

use super::listing::{Listed, list_chain};
use crate::plan::{Op, Plan};
use crate::program::is_builtin;
use crate::state::{State, TableName};
use crate::tool::{Attendant, Error, Leftover, Receipt, Refusal, Variant};
use crate::watch::Owns;
use crate::xt::{Sets, Terms, expression, parse, why_unknown};

/// A larger Plan becomes several transactions, each safe on its own: the message and the kernel's copy of it take memory.
const LARGEST_BATCH: usize = 32 << 20;

#[derive(Debug)]
pub(super) struct NfTables {
    family: Family,
    connection: Connection,
    pub(super) sets: Sets,
    /// The rules of chains in which we changed single rules, as we left them.
    listed: HashMap<(TableName, Box<str>), Vec<Listed>>,
}

/// A batch under construction. The tag of a message is its index in `lines`.
struct Writing<'p> {
    batch: Batch,
    lines: Vec<Line<'p>>,
    receipt: Receipt,
}

/// The chain or rule that a message of a batch concerns.
#[derive(Clone, Copy)]
enum Line<'p> {
    Chain(&'p str),
    Rule(&'p str, &'p str),
}

impl NfTables {
    pub(super) fn open(family: Family) -> Result<NfTables, Error> {
        let (connection, sets, listed) = (Connection::open()?, Sets::default(), HashMap::new());
        Ok(NfTables { family, connection, sets, listed })
    }

    pub(super) fn probe(&mut self) -> Result<(), Error> {
        self.connection.generation()?;
        Ok(())
    }

    pub(super) fn observe(&mut self, owns: Owns) -> Result<State, Error> {
        self.listed.clear();
        let terms = Terms { family: self.family, sets: &self.sets };
        super::listing::observe(&mut self.connection, terms, owns)
    }

    /// After an error, transactions before the refused one are in force.
    pub(super) fn apply(&mut self, plan: &Plan, attendant: &dyn Attendant) -> Result<Receipt, Error> {
        let tables = plan.tables.iter().filter(|((family, _), _)| *family == self.family);
        let tables: Vec<(TableName, &[Op])> =
            tables.map(|((_, table), ops)| (*table, ops.as_slice())).collect();
        if tables.is_empty() {
            return Ok(Receipt::default());
        }
        attendant.started(self.connection.port_id());
        let began = Instant::now();
        let mut writing = Writing { batch: Batch::new(), lines: Vec::new(), receipt: Receipt::default() };
        let result = self.write(&tables, &mut writing, attendant);
        if result.is_err() {
            self.listed.clear();
        }
        result.map(|()| Receipt { runs: 1, tool_time: began.elapsed(), ..writing.receipt })
    }

    fn write<'p>(
        &mut self,
        tables: &[(TableName, &'p [Op])],
        writing: &mut Writing<'p>,
        attendant: &dyn Attendant,
    ) -> Result<(), Error> {
        // If the system limits socket buffers, for example in a user namespace, batches must be smaller.
        let largest = LARGEST_BATCH.min(self.connection.max_batch_bytes() / 2);
        for (table, ops) in tables {
            self.create_missing(*table, ops, writing)?;
        }
        for (table, ops) in tables {
            for op in *ops {
                self.op(*table, op, writing)?;
                if writing.batch.bytes() >= largest {
                    self.commit(writing)?;
                    attendant.waiting();
                }
            }
        }
        // Chains that refer to each other are emptied before any of them is removed.
        for (table, ops) in tables {
            self.remove(*table, ops, writing);
        }
        self.commit(writing)
    }

    /// Creates the table, the chains that get rules, and the base chains for our jumps, if they are missing.
    fn create_missing<'p>(
        &mut self,
        table: TableName,
        ops: &'p [Op],
        writing: &mut Writing<'p>,
    ) -> Result<(), Error> {
        let family = nft_family(self.family);
        if self.connection.table(family, table.as_str())?.is_none() {
            let name = table.as_str().to_owned();
            let tag = writing.tag(Line::Chain(table.as_str()));
            writing.batch.add_table(tag, family, &NftTable { name, comment: None });
        }
        let mut builtins: Vec<&str> = Vec::new();
        for op in ops {
            match op {
                Op::Write { chain, .. } => self.add_chain(table, chain, None, writing),
                Op::Insert { chain, .. } | Op::Append { chain, .. }
                    if is_builtin(chain) && !builtins.contains(&&**chain) =>
                {
                    builtins.push(chain);
                }
                _ => {}
            }
        }
        for builtin in builtins {
            if !self.connection.has_chain(family, table.as_str(), builtin)? {
                self.add_chain(table, builtin, hook(table, builtin), writing);
            }
        }
        Ok(())
    }

    fn add_chain<'p>(&self, table: TableName, name: &'p str, hook: Option<Hook>, writing: &mut Writing<'p>) {
        let tag = writing.tag(Line::Chain(name));
        let chain = Chain { name: name.to_owned(), hook, comment: None };
        writing.batch.add_chain(tag, nft_family(self.family), table.as_str(), &chain);
    }

    fn op<'p>(&mut self, table: TableName, op: &'p Op, writing: &mut Writing<'p>) -> Result<(), Error> {
        match op {
            Op::Write { chain, rules } => {
                self.listed.remove(&(table, chain.clone()));
                let tag = writing.tag(Line::Chain(chain));
                writing.batch.flush_chain(tag, nft_family(self.family), table.as_str(), chain);
                for rule in rules.iter() {
                    self.rule(table, chain, Place::Last, rule, false, writing)?;
                }
                Ok(())
            }
            Op::Delete { chain, rule } => self.delete(table, chain, rule, writing),
            Op::Insert { chain, place, rule } => self.insert(table, chain, *place - 1, rule, writing),
            Op::Append { chain, rule } => self.insert(table, chain, usize::MAX, rule, writing),
            Op::Remove { .. } => Ok(()),
        }
    }

    /// Adds one rule. Returns the tag that identifies the rule in the kernel's answer.
    fn rule<'p>(
        &self,
        table: TableName,
        chain: &'p str,
        place: Place,
        rule: &'p str,
        echo: bool,
        writing: &mut Writing<'p>,
    ) -> Result<u32, Error> {
        let line = Line::Rule(chain, rule);
        let terms = Terms { family: self.family, sets: &self.sets };
        let Some(spec) = parse(terms, rule) else { return Err(refused(line, why_unknown(rule).into())) };
        let tag = writing.tag(line);
        let protocol = spec.protocol.map(|it| (it.protocol.number(), it.negated));
        let family = nft_family(self.family);
        let new = NewRule { family, table: table.as_str(), chain, place, protocol, echo };
        writing.batch.add_compat_rule(tag, &new, |out| expression::write(&spec, self.family, out));
        Ok(tag)
    }

    fn delete<'p>(
        &mut self,
        table: TableName,
        chain: &'p str,
        rule: &'p str,
        writing: &mut Writing<'p>,
    ) -> Result<(), Error> {
        let rules = self.list(table, chain)?;
        let wanted = Listed::digest_of(rule);
        let found = rules.iter().position(|it| it.digest == wanted && it.handle.is_some());
        let Some(handle) = found.and_then(|index| rules.remove(index).handle) else {
            return Err(refused(Line::Rule(chain, rule), "the chain does not have this rule".into()));
        };
        let tag = writing.tag(Line::Rule(chain, rule));
        writing.batch.delete_rule(tag, nft_family(self.family), table.as_str(), chain, handle);
        Ok(())
    }

    /// Inserts a rule before the rule at this index, or at the end.
    fn insert<'p>(
        &mut self,
        table: TableName,
        chain: &'p str,
        index: usize,
        rule: &'p str,
        writing: &mut Writing<'p>,
    ) -> Result<(), Error> {
        let rules = self.list(table, chain)?;
        let index = index.min(rules.len());
        let place = match (index, rules.get(index)) {
            (_, None) => Place::Last,
            (0, _) => Place::First,
            (_, Some(Listed { handle: Some(handle), .. })) => Place::Before(*handle),
            // A rule that this batch adds has no handle yet. Plans do not insert before such a rule.
            (_, Some(_)) => {
                return Err(refused(Line::Rule(chain, rule), "the rule after it has no handle yet".into()));
            }
        };
        let tag = self.rule(table, chain, place, rule, true, writing)?;
        let new = Listed { handle: None, tag, digest: Listed::digest_of(rule) };
        self.list(table, chain)?.insert(index, new);
        Ok(())
    }

    /// All rules of a chain, including those of other programs. Built-in chains are listed again after each commit.
    fn list(&mut self, table: TableName, chain: &str) -> Result<&mut Vec<Listed>, Error> {
        let key = (table, chain.into());
        if !self.listed.contains_key(&key) {
            let terms = Terms { family: self.family, sets: &self.sets };
            let rules = list_chain(&mut self.connection, terms, table, chain)?;
            self.listed.insert(key.clone(), rules);
        }
        Ok(self.listed.entry(key).or_default())
    }

    fn remove<'p>(&mut self, table: TableName, ops: &'p [Op], writing: &mut Writing<'p>) {
        let family = nft_family(self.family);
        let removed = || {
            ops.iter().filter_map(|op| match op {
                Op::Remove { chain } => Some(chain),
                _ => None,
            })
        };
        for chain in removed() {
            self.listed.remove(&(table, chain.clone()));
            let tag = writing.tag(Line::Chain(chain));
            writing.batch.flush_chain(tag, family, table.as_str(), chain);
        }
        for chain in removed() {
            let tag = writing.tag(Line::Chain(chain));
            writing.batch.delete_chain(tag, family, table.as_str(), chain);
        }
    }

    fn commit(&mut self, writing: &mut Writing<'_>) -> Result<(), Error> {
        if writing.batch.is_empty() {
            return Ok(());
        }
        let made = match self.connection.commit_echoed(&writing.batch) {
            Ok((receipt, made)) => {
                writing.receipt.commits += 1;
                writing.receipt.lines += receipt.messages;
                writing.receipt.bytes += receipt.bytes;
                made.into_iter().collect()
            }
            Err(error) => return Err(writing.explain(error)),
        };
        self.learn(&made);
        writing.batch.clear();
        writing.lines.clear();
        Ok(())
    }

    /// Records the handles of new rules. Built-in chains, and chains with missing handles, are listed again next time.
    fn learn(&mut self, made: &HashMap<u32, u64>) {
        self.listed.retain(|(_, chain), rules| {
            for rule in rules.iter_mut().filter(|rule| rule.handle.is_none()) {
                rule.handle = made.get(&rule.tag).copied();
            }
            !is_builtin(chain) && rules.iter().all(|rule| rule.handle.is_some())
        });
    }

    /// Warns about rules of a proxy in legacy tables: packets pass them, too.
    pub(super) fn warn_of_leftovers(&self) -> Result<(), Error> {
        let family = nft_family(self.family);
        let existing = xtables::tables(family)?;
        for table in TableName::ALL.iter().rev().map(|table| table.as_str()) {
            if !existing.iter().any(|name| name == table) {
                continue;
            }
            let found = xtables::Connection::open(family)?.read(table)?;
            if let Some(chain) = found.chains().find(|chain| Leftover::is_of_a_proxy(chain)) {
                let (variant, chain) = (Variant::Legacy, chain.to_owned());
                Leftover { family: self.family, variant, table, chain }.warn();
                break;
            }
        }
        Ok(())
    }
}

impl<'p> Writing<'p> {
    fn tag(&mut self, line: Line<'p>) -> u32 {
        self.lines.push(line);
        u32::try_from(self.lines.len() - 1).unwrap_or(u32::MAX)
    }

    /// Names the line of the first refused message. Without such a line, a lack of privileges or buffers is an error of the
    /// kernel, and any other failure is a refusal of the whole batch.
    fn explain(&self, error: CommitError) -> Error {
        let said = error.to_string();
        let of_a_line = |tag: Option<u32>| self.lines.get(tag? as usize).copied();
        if let Some(line) = error.failures.iter().find_map(|failure| of_a_line(failure.tag)) {
            return refused(line, said);
        }
        match error.cause {
            Some(cause)
                if matches!(cause.errno, Errno::PERM | Errno::ACCESS | Errno::NOBUFS | Errno::MSGSIZE) =>
            {
                Error::Kernel(cause)
            }
            _ => Error::Refused(Box::new(Refusal {
                tool: "the kernel".into(),
                status: 0,
                said,
                line: None,
                chain: None,
            })),
        }
    }
}

fn refused(line: Line<'_>, said: String) -> Error {
    let (text, chain) = match line {
        Line::Chain(chain) => (format!(":{chain} - [0:0]"), chain),
        Line::Rule(chain, rule) => (format!("-A {chain} {rule}"), chain),
    };
    let (tool, chain) = ("the kernel".into(), Some(chain.to_owned()));
    Error::Refused(Box::new(Refusal { tool, status: 0, said, line: Some(text), chain }))
}

/// The hook of a built-in chain, as the tool creates it.
fn hook(table: TableName, chain: &str) -> Option<Hook> {
    let point = match chain {
        "PREROUTING" => HookPoint::Prerouting,
        "INPUT" => HookPoint::Input,
        "FORWARD" => HookPoint::Forward,
        "OUTPUT" => HookPoint::Output,
        "POSTROUTING" => HookPoint::Postrouting,
        _ => return None,
    };
    let kind = if table == TableName::Nat { ChainType::Nat } else { ChainType::Filter };
    let priority = match (table, point) {
        (TableName::Filter, _) => 0,
        (TableName::Mangle, _) => -150,
        (TableName::Nat, HookPoint::Prerouting | HookPoint::Output) => -100,
        (TableName::Nat, _) => 100,
    };
    Some(Hook { kind, point, priority })
}

pub(super) fn nft_family(family: Family) -> ferroxy_netlink::nftables::Family {
    match family {
        Family::V4 => ferroxy_netlink::nftables::Family::Ip,
        Family::V6 => ferroxy_netlink::nftables::Family::Ip6,
    }
}
