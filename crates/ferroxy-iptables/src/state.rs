//! Our ruleset as a value: our chains, and our jumps in built-in chains. Rules of others are not part of it.
//!
//! A cluster of 10,000 Services with 10 endpoints each has 130,000 chains and 350,000 rules. Therefore a rule is not an
//! object: the rules of a chain are one text, as `iptables-save` prints them. Equal chains have equal texts.

use std::collections::BTreeMap;
use std::fmt;

use ferroxy_core::Family;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct State {
    /// Only tables that contain chains or jumps of ours.
    pub tables: BTreeMap<(Family, TableName), Table>,
}

/// The tables we have chains in, in the order in which they are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TableName {
    Mangle,
    Filter,
    Nat,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Table {
    pub chains: BTreeMap<Box<str>, Rules>,
    /// Our rules in the built-in chains, top-down. Rules of others between them are left out.
    pub jumps: BTreeMap<Box<str>, Rules>,
}

/// Rules in order, each as the arguments that follow `-A CHAIN`. A rule has no line break in it.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Rules {
    /// Each rule ends with a line break.
    text: String,
}

impl State {
    /// Tables of the host without chains and jumps of ours do not count.
    pub fn is_empty(&self) -> bool {
        self.tables.values().all(Table::is_empty)
    }

    pub fn table(&self, family: Family, table: TableName) -> Option<&Table> {
        self.tables.get(&(family, table))
    }
}

impl TableName {
    pub const ALL: [TableName; 3] = [TableName::Mangle, TableName::Filter, TableName::Nat];

    pub fn as_str(self) -> &'static str {
        match self {
            TableName::Mangle => "mangle",
            TableName::Filter => "filter",
            TableName::Nat => "nat",
        }
    }

    pub fn parse(text: &str) -> Option<TableName> {
        TableName::ALL.into_iter().find(|table| table.as_str() == text)
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Table {
    pub fn is_empty(&self) -> bool {
        self.chains.is_empty() && self.jumps.values().all(Rules::is_empty)
    }
}

impl Rules {
    pub fn new() -> Rules {
        Rules::default()
    }

    pub fn push(&mut self, rule: fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = fmt::Write::write_fmt(&mut self.text, rule);
        self.text.push('\n');
    }

    pub fn append(&mut self, others: &Rules) {
        self.text.push_str(&others.text);
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.text.lines()
    }

    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Counts lines: not free.
    pub fn len(&self) -> usize {
        self.text.bytes().filter(|byte| *byte == b'\n').count()
    }

    /// Frees unused capacity.
    pub fn shrink(&mut self) {
        self.text.shrink_to_fit();
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'a> FromIterator<&'a str> for Rules {
    fn from_iter<T: IntoIterator<Item = &'a str>>(rules: T) -> Rules {
        let mut all = Rules::new();
        rules.into_iter().for_each(|rule| all.push(format_args!("{rule}")));
        all
    }
}
