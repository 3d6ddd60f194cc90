//! What the tests share: a model of a kernel's tables as `iptables-restore --noflush` treats them (the host's own chains
//! and other programs' rules included).

#![allow(dead_code, reason = "not every test file uses all of it")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use ferroxy_core::{Family, Intent};
use ferroxy_dataplane::Change;
use ferroxy_iptables::program::FIREWALL;
use ferroxy_iptables::state::Rules;
use ferroxy_iptables::text::parse;
use ferroxy_iptables::{Plan, State, TableName};

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Kernel {
    tables: BTreeMap<(Family, TableName), BTreeMap<String, Vec<String>>>,
}

/// What others have on the host: rules in the host's chains, and a chain of their own.
pub const FOREIGN: &str = "foreign";

impl Kernel {
    pub fn new() -> Kernel {
        let mut tables = BTreeMap::new();
        for family in Family::ALL {
            for table in TableName::ALL {
                let foreign = || vec![format!("-j {FOREIGN}"), "-p icmp -j ACCEPT".to_owned()];
                let mut chains: BTreeMap<String, Vec<String>> =
                    ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"]
                        .map(|chain| (chain.to_owned(), foreign()))
                        .into();
                chains.insert(FOREIGN.to_owned(), Vec::new());
                tables.insert((family, table), chains);
            }
        }
        Kernel { tables }
    }

    /// Carries out a Plan with the restore tool of each family.
    pub fn carry_out(&mut self, plan: &Plan) -> Result<(), String> {
        Family::ALL.into_iter().try_for_each(|family| self.restore(family, &plan.restore_input(family)))
    }

    /// Our part of the tables, read like the output of the save tool.
    pub fn state(&self) -> State {
        let mut state = State::default();
        for family in Family::ALL {
            state.tables.extend(parse(family, &self.save(family)).tables);
        }
        state
    }

    /// The rules that are not ours, in order.
    pub fn foreign(&self) -> Vec<String> {
        let rules = self.tables.iter().flat_map(|(place, chains)| {
            chains.iter().flat_map(move |(chain, rules)| {
                rules.iter().map(move |rule| format!("{place:?} {chain} {rule}"))
            })
        });
        rules.filter(|rule| !rule.contains("KUBE-")).collect()
    }

    pub fn restore(&mut self, family: Family, input: &str) -> Result<(), String> {
        let mut open: Option<(TableName, BTreeMap<String, Vec<String>>)> = None;
        for line in input.lines() {
            match (&mut open, line.strip_prefix('*')) {
                (None, Some(name)) => {
                    let name = TableName::parse(name).ok_or(line)?;
                    open = Some((name, self.tables[&(family, name)].clone()));
                }
                (Some((name, chains)), None) if line == "COMMIT" => {
                    self.tables.insert((family, *name), chains.clone());
                    open = None;
                }
                (Some((_, chains)), None) => {
                    obey(chains, line).map_err(|error| format!("{line}: {error}"))?
                }
                _ => return Err(format!("misplaced: {line}")),
            }
        }
        if open.is_some() { Err("no COMMIT".into()) } else { Ok(()) }
    }

    fn save(&self, family: Family) -> String {
        let mut text = String::new();
        for ((_, name), chains) in self.tables.iter().filter(|((of, _), _)| *of == family) {
            writeln!(text, "*{name}").unwrap();
            for chain in chains.keys() {
                writeln!(text, ":{chain} - [0:0]").unwrap();
            }
            for (chain, rules) in chains {
                rules.iter().for_each(|rule| writeln!(text, "[1:2] -A {chain} {rule}").unwrap());
            }
            text.push_str("COMMIT\n");
        }
        text
    }
}

fn obey(chains: &mut BTreeMap<String, Vec<String>>, line: &str) -> Result<(), String> {
    if let Some(declaration) = line.strip_prefix(':') {
        let (chain, rest) = declaration.split_once(' ').ok_or("what?")?;
        assert_eq!(rest, "- [0:0]");
        chains.insert(chain.to_owned(), Vec::new());
        return Ok(());
    }
    let (command, rest) = line.split_once(' ').ok_or("what?")?;
    let (chain, rule) = rest.split_once(' ').unwrap_or((rest, ""));
    if command == "-X" {
        let targets: BTreeSet<&str> =
            chains.values().flatten().filter_map(|rule| ferroxy_iptables::rule::target(rule)).collect();
        return match chains.get(chain) {
            None => Err("no such chain".into()),
            Some(rules) if !rules.is_empty() => Err("not empty".into()),
            Some(_) if targets.contains(chain) => Err("in use".into()),
            Some(_) => {
                chains.remove(chain);
                Ok(())
            }
        };
    }
    let target = ferroxy_iptables::rule::target(rule);
    if command != "-D" && target.is_some_and(|it| it.starts_with("KUBE-") && !chains.contains_key(it)) {
        return Err("leads nowhere".into());
    }
    let rules = chains.get_mut(chain).ok_or("no such chain")?;
    match command {
        "-A" => rules.push(rule.to_owned()),
        "-I" => {
            let (place, rule) = rule.split_once(' ').ok_or("no place")?;
            let place: usize = place.parse().map_err(|_| "no place")?;
            if place == 0 || place > rules.len() {
                return Err("no rule there".into());
            }
            rules.insert(place - 1, rule.to_owned());
        }
        "-D" => drop(rules.remove(rules.iter().position(|other| other == rule).ok_or("no such rule")?)),
        _ => return Err("what?".into()),
    }
    Ok(())
}

/// The result of applying the diff from `seen` to `wanted`: `wanted`, plus the shared chain of `seen` if `wanted` has no rule
/// for it.
pub fn turned_into(seen: &State, wanted: &State) -> State {
    let mut state = wanted.clone();
    for (place, table) in &seen.tables {
        let Some(rules) = table.chains.get(FIREWALL) else { continue };
        let wanted = state.tables.entry(*place).or_default();
        if wanted.chains.get(FIREWALL).is_none_or(Rules::is_empty) {
            wanted.chains.insert(FIREWALL.into(), rules.clone());
        }
        for builtin in ["INPUT", "OUTPUT"] {
            let jump = format!("-j {FIREWALL}");
            let jumps = wanted.jumps.entry(builtin.into()).or_default();
            if !jumps.iter().any(|rule| rule == jump) {
                jumps.push(format_args!("{jump}"));
            }
        }
    }
    state
}

/// The changes between two Intents, as the agent would pass them.
pub fn changes(before: &Intent, after: &Intent) -> Vec<Change> {
    let names: BTreeSet<_> = before.services.keys().chain(after.services.keys()).cloned().collect();
    let differs = |name: &_| before.services.get(name) != after.services.get(name);
    names.into_iter().filter(differs).map(|name| (name.clone(), after.services.get(&name).cloned())).collect()
}
