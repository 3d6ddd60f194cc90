//! What to do to the kernel's tables, as input for `iptables-restore --noflush`.
//!
//! What a table needs is one transaction: the tool carries out all of it at `COMMIT`, or nothing. The operations are
//! in a safe order all the same (what is referred to is written first and removed last), so that a large Plan can
//! be cut into several runs.

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
    /// Makes a chain, or replaces all that is in it.
    Write {
        chain: Box<str>,
        rules: Rules,
    },
    /// Deletes a rule by what it says, not by its place: whoever changed the chain behind our back makes this fail,
    /// instead of hitting another rule.
    Delete {
        chain: Box<str>,
        rule: Box<str>,
    },
    /// Before the rule that has this place now. The first place is 1.
    Insert {
        chain: Box<str>,
        place: usize,
        rule: Box<str>,
    },
    Append {
        chain: Box<str>,
        rule: Box<str>,
    },
    /// Removes a chain, whatever is in it.
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

    /// Adds the operations for a table. They are brought into the safe order; those of one rank stay as they are.
    pub fn add(&mut self, family: Family, table: TableName, ops: impl IntoIterator<Item = Op>) {
        let mut ops = ops.into_iter().peekable();
        if ops.peek().is_some() {
            let all = self.tables.entry((family, table)).or_default();
            all.extend(ops);
            all.sort_by_key(Op::rank);
        }
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

    /// Endpoints, then what leads to them, then what leads to that; rules that go before rules that come, for the
    /// places of the latter are counted after that.
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
        // A declaration makes a chain or empties it. A chain that goes is emptied first: what it leads to may go too.
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

/// What would be fed to which tool.
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
