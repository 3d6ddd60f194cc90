//! States as text: reads our part of the output of `iptables-save`, and prints a State in the same format.
//!
//! The input may contain anything: chains of others, lines of newer versions, garbage. What is not ours, or not understood,
//! is skipped.

use std::fmt;

use ferroxy_core::Family;

use crate::program::{is_builtin, owns};
use crate::rule::target;
use crate::state::{State, Table, TableName};

/// Reads what one family's `iptables-save` printed.
pub fn parse(family: Family, text: &str) -> State {
    let mut reader = Reader::new(family);
    text.lines().for_each(|line| reader.line(line));
    reader.finish()
}

/// Reads the output line by line, because it can be too large to be kept.
#[derive(Debug)]
pub struct Reader {
    family: Family,
    /// Which chains are ours.
    owns: fn(TableName, &str) -> bool,
    /// The table that the current lines belong to, if it is in [`TableName`].
    table: Option<(TableName, Table)>,
    state: State,
}

impl Reader {
    pub fn new(family: Family) -> Reader {
        Reader::of(family, owns)
    }

    /// For a mode that owns other chains.
    pub fn of(family: Family, owns: fn(TableName, &str) -> bool) -> Reader {
        Reader { family, owns, table: None, state: State::default() }
    }

    pub fn line(&mut self, line: &str) {
        let line = line.trim_end();
        if let Some(name) = line.strip_prefix('*') {
            self.end_table();
            self.table = TableName::parse(name).map(|name| (name, Table::default()));
        } else if line == "COMMIT" {
            self.end_table();
        } else if let Some((name, table)) = &mut self.table {
            match line.strip_prefix(':') {
                Some(declaration) => declare(self.owns, *name, table, declaration),
                None => add(self.owns, *name, table, without_counters(line)),
            }
        }
    }

    pub fn finish(mut self) -> State {
        self.end_table();
        self.state
    }

    fn end_table(&mut self) {
        let Some((name, mut table)) = self.table.take() else { return };
        table.chains.values_mut().chain(table.jumps.values_mut()).for_each(|rules| rules.shrink());
        if !table.is_empty() {
            self.state.tables.insert((self.family, name), table);
        }
    }
}

/// `KUBE-SERVICES - [0:0]`
fn declare(owns: fn(TableName, &str) -> bool, name: TableName, table: &mut Table, declaration: &str) {
    let chain = declaration.split(' ').next().unwrap_or_default();
    if owns(name, chain) {
        table.chains.entry(chain.into()).or_default();
    }
}

/// `-A KUBE-SERVICES -d …`
fn add(owns: fn(TableName, &str) -> bool, name: TableName, table: &mut Table, line: &str) {
    let Some(rule) = line.strip_prefix("-A ") else { return };
    let (chain, rule) = rule.split_once(' ').unwrap_or((rule, ""));
    let rules = match table.chains.get_mut(chain) {
        Some(rules) => rules,
        // `iptables-save` declares every chain; a rule of an undeclared chain is skipped.
        None if is_builtin(chain) && target(rule).is_some_and(|target| owns(name, target)) => {
            table.jumps.entry(chain.into()).or_default()
        }
        None => return,
    };
    rules.push(format_args!("{rule}"));
}

/// `iptables-save -c` prints `[12:3456]` before a rule.
fn without_counters(line: &str) -> &str {
    match line.strip_prefix('[').and_then(|counters| counters.split_once("] ")) {
        Some((_, rule)) => rule,
        None => line,
    }
}

/// In the format of `iptables-save` and `ip6tables-save`: our chains and jumps only, without counters.
impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for family in Family::ALL {
            let tables: Vec<_> = self.tables.iter().filter(|((of, _), _)| *of == family).collect();
            if !tables.is_empty() {
                writeln!(f, "# {}-save", tool(family))?;
            }
            for ((_, name), table) in tables {
                write!(f, "*{name}\n{table}COMMIT\n")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chain in self.chains.keys() {
            writeln!(f, ":{chain} -")?;
        }
        for (chain, rules) in self.jumps.iter().chain(&self.chains) {
            for rule in rules.iter() {
                writeln!(f, "{}", AddRule(chain, rule))?;
            }
        }
        Ok(())
    }
}

/// `-A CHAIN rule`: a rule may be empty.
pub(crate) struct AddRule<'a>(pub(crate) &'a str, pub(crate) &'a str);

impl fmt::Display for AddRule<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AddRule(chain, rule) = self;
        let space = if rule.is_empty() { "" } else { " " };
        write!(f, "-A {chain}{space}{rule}")
    }
}

/// The name all tools of a family begin with.
pub fn tool(family: Family) -> &'static str {
    match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAVED: &str = r#"# Generated by iptables-nft-save v1.8.9 (nf_tables)
*nat
:PREROUTING ACCEPT [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-LOLE4ISW44XBNF3G - [0:0]
:KUBE-SVCX - [0:0]
:cali-PREROUTING - [0:0]
[1:60] -A PREROUTING -m comment --comment "cali:-j KUBE-SERVICES" -j cali-PREROUTING
[7:420] -A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-SERVICES -d 10.96.0.80/32 -p tcp -m comment --comment "a \"quoted\" ] comment" -m tcp --dport 80 -j KUBE-SVC-LOLE4ISW44XBNF3G
-A KUBE-SVCX -j ACCEPT
-A cali-PREROUTING -j KUBE-SERVICES
-A KUBE-SVC-LOLE4ISW44XBNF3G
COMMIT
*raw
:PREROUTING ACCEPT [0:0]
:KUBE-SERVICES - [0:0]
COMMIT
# Completed
*filter
:INPUT ACCEPT [0:0]
-A INPUT -j DROP
COMMIT
"#;

    #[test]
    fn ours_is_read_and_the_rest_is_not() {
        let state = parse(Family::V4, SAVED);
        let expected = r#"# iptables-save
*nat
:KUBE-SERVICES -
:KUBE-SVC-LOLE4ISW44XBNF3G -
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-SERVICES -d 10.96.0.80/32 -p tcp -m comment --comment "a \"quoted\" ] comment" -m tcp --dport 80 -j KUBE-SVC-LOLE4ISW44XBNF3G
-A KUBE-SVC-LOLE4ISW44XBNF3G
COMMIT
"#;
        assert_eq!(state.to_string(), expected);
        assert_eq!(parse(Family::V4, expected), state);
    }

    #[test]
    fn garbage_is_passed_over() {
        let garbage = [
            "*",
            ":",
            "[",
            "[]",
            "] ",
            "-A",
            "-A ",
            "-A  ",
            "*nat",
            ":KUBE-SERVICES",
            "-A KUBE-SERVICES \"",
            "-A PREROUTING -j",
            "-A PREROUTING \"-j KUBE-SERVICES",
            "\u{0}é*nat",
            "COMMIT",
            "*nat\r",
        ];
        for first in garbage {
            for second in garbage {
                parse(Family::V6, &format!("{first}\n*nat\n:KUBE-SERVICES\n{second}\n{first}{second}"));
            }
        }
    }
}
