//! Operations on the kernel's tables, as input for `iptables-restore --noflush`.
//!
//! The operations on a table are one transaction: the tool applies all of them at `COMMIT`, or none. They are in a safe
//! order all the same (referenced chains are written first and removed last), so that a large Plan can be split into
//! several commits.

use std::collections::BTreeMap;
use std::fmt;

use ferroxy_core::Family;

use crate::name;
use crate::state::{Rules, TableName};
use crate::text::{AddRule, tool};

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// None of the lists is empty.
    pub tables: BTreeMap<(Family, TableName), Vec<Op>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Creates a chain, or replaces all its rules.
    Write {
        chain: Box<str>,
        rules: Rules,
    },
    /// Deletes a rule by its text, not by its position: if another program changed the chain, this fails and deletes no other
    /// rule.
    Delete {
        chain: Box<str>,
        rule: Box<str>,
    },
    /// Inserts a rule before the rule that is at this position now. The first position is 1.
    Insert {
        chain: Box<str>,
        place: usize,
        rule: Box<str>,
    },
    Append {
        chain: Box<str>,
        rule: Box<str>,
    },
    /// Removes a chain with its rules.
    Remove {
        chain: Box<str>,
    },
}

impl Plan {
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// How many operations there are.
    pub fn len(&self) -> usize {
        self.tables.values().map(Vec::len).sum()
    }

    pub fn ops(&self) -> impl Iterator<Item = (Family, TableName, &Op)> {
        self.tables.iter().flat_map(|((family, table), ops)| ops.iter().map(|op| (*family, *table, op)))
    }

    /// Adds operations on a table, and sorts them into the safe order; those of one rank keep their order.
    pub fn add(&mut self, family: Family, table: TableName, ops: impl IntoIterator<Item = Op>) {
        let mut ops = ops.into_iter().peekable();
        if ops.peek().is_some() {
            let all = self.tables.entry((family, table)).or_default();
            all.extend(ops);
            all.sort_by_key(Op::rank);
        }
    }

    /// The removals as text for users: `14 chains of ip nat`, or `2 rules of ip filter` if only jumps are removed.
    pub fn removals(&self) -> Vec<String> {
        let removal = |(&(family, table), ops): (&(Family, TableName), &Vec<Op>)| {
            let family = if family == Family::V4 { "ip" } else { "ip6" };
            let chains = ops.iter().filter(|op| matches!(op, Op::Remove { .. })).count();
            let rules = ops.iter().filter(|op| matches!(op, Op::Delete { .. })).count();
            let (count, kind) = if chains > 0 { (chains, "chain") } else { (rules, "rule") };
            let plural = if count == 1 { "" } else { "s" };
            (count > 0).then(|| format!("{count} {kind}{plural} of {family} {table}"))
        };
        self.tables.iter().filter_map(removal).collect()
    }

    /// The input for the restore tool of a family; empty if there is nothing to do.
    pub fn restore_input(&self, family: Family) -> String {
        self.tables
            .iter()
            .filter(|((of, _), _)| *of == family)
            .map(|((_, table), ops)| TableInput { table: *table, ops }.to_string())
            .collect()
    }
}

impl Op {
    pub fn chain(&self) -> &str {
        match self {
            Op::Write { chain, .. }
            | Op::Delete { chain, .. }
            | Op::Insert { chain, .. }
            | Op::Append { chain, .. }
            | Op::Remove { chain } => chain,
        }
    }

    /// Chains of endpoints, then chains that jump to them, then chains that jump to those. Rules are deleted before others are
    /// added: the positions of added rules are counted after the deletions.
    fn rank(&self) -> u8 {
        match self {
            Op::Write { chain, .. } => written_as(chain),
            Op::Delete { .. } => 5,
            Op::Insert { .. } | Op::Append { .. } => 6,
            Op::Remove { .. } => 7,
        }
    }
}

fn written_as(chain: &str) -> u8 {
    match chain {
        _ if chain.starts_with(name::ENDPOINT) => 0,
        _ if chain.starts_with(name::CLUSTER) || chain.starts_with(name::LOCAL) => 1,
        _ if chain.starts_with(name::EXTERNAL) => 2,
        _ if chain.starts_with(name::FIREWALL) => 3,
        _ => 4,
    }
}

/// One table's part of the input.
struct TableInput<'a> {
    table: TableName,
    ops: &'a [Op],
}

impl fmt::Display for TableInput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "*{}", self.table)?;
        // A declaration creates a chain or empties it. A removed chain is emptied first: its targets may be removed, too.
        for op in self.ops {
            if let Op::Write { chain, .. } | Op::Remove { chain } = op {
                writeln!(f, ":{chain} - [0:0]")?;
            }
        }
        for op in self.ops {
            write!(f, "{op}")?;
        }
        writeln!(f, "COMMIT")
    }
}

/// The lines of the operation, without the declaration of its chain.
impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Write { chain, rules } => {
                rules.iter().try_for_each(|rule| writeln!(f, "{}", AddRule(chain, rule)))
            }
            Op::Delete { chain, rule } => writeln!(f, "-D {chain} {rule}"),
            Op::Insert { chain, place, rule } => writeln!(f, "-I {chain} {place} {rule}"),
            Op::Append { chain, rule } => writeln!(f, "{}", AddRule(chain, rule)),
            Op::Remove { chain } => writeln!(f, "-X {chain}"),
        }
    }
}

/// The input for each restore tool.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for family in Family::ALL {
            let input = self.restore_input(family);
            if !input.is_empty() {
                write!(f, "# {}-restore --noflush\n{input}", tool(family))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removals_are_counted_by_table() {
        let mut plan = Plan::default();
        let remove = |chain: &str| Op::Remove { chain: chain.into() };
        let jump = || Op::Delete { chain: "INPUT".into(), rule: "-j KUBE-SERVICES".into() };
        plan.add(Family::V4, TableName::Nat, [remove("KUBE-SVC-A"), remove("KUBE-SVC-B"), jump()]);
        plan.add(Family::V4, TableName::Mangle, [remove("KUBE-PROXY-CANARY")]);
        plan.add(Family::V6, TableName::Filter, [jump(), jump()]);
        plan.add(Family::V6, TableName::Nat, [Op::Write { chain: "KUBE-SVC-A".into(), rules: Rules::new() }]);
        let expected = ["1 chain of ip mangle", "2 chains of ip nat", "2 rules of ip6 filter"];
        assert_eq!(plan.removals(), expected);
    }
}
