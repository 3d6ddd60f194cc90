//! Computes the Plan that turns one State into another.
//!
//! A chain that differs is rewritten, unless it is long and only a few of its rules differ: KUBE-SERVICES has a rule for
//! every frontend of the cluster, and a change of one Service must not rewrite all of them.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use crate::plan::{Op, Plan};
use crate::program::is_shared;
use crate::rule::target;
use crate::state::{Rules, State, Table};

/// How many single rules are edited at most before the chain is rewritten instead. To delete a rule, the tool compares it with
/// all rules before it; to rewrite a chain, it reads and sends every rule, and each costs about ten comparisons.
pub(crate) const MOST_EDITS: usize = 10;

/// The Plan that turns `seen` into `wanted`; empty if they are equal. A chain that the kubelet uses, too, stays as it is if
/// we have no rule for it (see [`is_shared`]).
pub fn diff(seen: &State, wanted: &State) -> Plan {
    let mut plan = Plan::default();
    let nothing = Table::default();
    let places: BTreeSet<_> = seen.tables.keys().chain(wanted.tables.keys()).copied().collect();
    for (family, name) in places {
        let seen = seen.table(family, name).unwrap_or(&nothing);
        let wanted = wanted.table(family, name).unwrap_or(&nothing);
        plan.add(family, name, table(seen, wanted));
    }
    plan
}

/// `wanted`, plus all other chains of `seen` and the rules that jump to them: turning `seen` into the result removes no Service.
pub fn keeping_the_unknown(seen: &State, mut wanted: State) -> State {
    for (place, table) in &mut wanted.tables {
        let Some(seen) = seen.tables.get(place) else { continue };
        let is_unknown = |chain: &str| seen.chains.contains_key(chain) && !table.chains.contains_key(chain);
        let unknown: HashSet<&str> =
            seen.chains.keys().map(AsRef::as_ref).filter(|it| is_unknown(it)).collect();
        let leads_there = |rule: &&str| target(rule).is_some_and(|it| unknown.contains(it));
        for (chain, rules) in &mut table.chains {
            let Some(seen) = seen.chains.get(chain) else { continue };
            let mut kept: Rules = seen.iter().filter(leads_there).collect();
            if !kept.is_empty() {
                // At the top: the last rule of KUBE-SERVICES must stay the last.
                kept.append(rules);
                *rules = kept;
            }
        }
        let unknown = unknown.into_iter().filter_map(|chain| seen.chains.get_key_value(chain));
        table.chains.extend(unknown.map(|(chain, rules)| (chain.clone(), rules.clone())));
    }
    wanted
}

fn table(seen: &Table, wanted: &Table) -> Vec<Op> {
    let mut ops = Vec::new();
    for (chain, rules) in &wanted.chains {
        match seen.chains.get(chain) {
            Some(present) if present == rules => {}
            Some(_) if is_shared(chain) && rules.is_empty() => {}
            Some(present) => ops.extend(rewrite(chain, present, rules)),
            None => ops.push(Op::Write { chain: chain.clone(), rules: rules.clone() }),
        }
    }
    let builtins: BTreeSet<_> = seen.jumps.keys().chain(wanted.jumps.keys()).collect();
    for builtin in builtins {
        let rules = |jumps: &'_ BTreeMap<Box<str>, Rules>| jumps.get(builtin).cloned().unwrap_or_default();
        ops.extend(jumps(builtin, &rules(&seen.jumps), &rules(&wanted.jumps)));
    }
    for chain in seen.chains.keys() {
        if !wanted.chains.contains_key(chain) && !is_shared(chain) {
            ops.push(Op::Remove { chain: chain.clone() });
        }
    }
    ops
}

fn rewrite(chain: &str, seen: &Rules, wanted: &Rules) -> Vec<Op> {
    edits(chain, seen, wanted)
        .unwrap_or_else(|| vec![Op::Write { chain: chain.into(), rules: wanted.clone() }])
}

/// Edits of single rules; `None` if many rules differ, or if rules that stay would have to change their order.
fn edits(chain: &str, seen: &Rules, wanted: &Rules) -> Option<Vec<Op>> {
    let (before, after): (HashSet<&str>, HashSet<&str>) = (seen.iter().collect(), wanted.iter().collect());
    let count = before.symmetric_difference(&after).count();
    // Duplicates of a rule are ambiguous. No proxy writes them.
    let has_twins = before.len() != seen.len() || after.len() != wanted.len();
    if has_twins || count > MOST_EDITS || count * 4 > wanted.len() {
        return None;
    }
    let staying = || seen.iter().filter(|rule| after.contains(rule));
    if !staying().eq(wanted.iter().filter(|rule| before.contains(rule))) {
        return None;
    }
    let gone = seen.iter().filter(|rule| !after.contains(rule));
    let mut ops: Vec<Op> = gone.map(|rule| Op::Delete { chain: chain.into(), rule: rule.into() }).collect();
    let mut gaps: Vec<Gap> = Vec::new();
    let mut place = 1;
    for rule in wanted.iter() {
        if before.contains(rule) {
            place += 1;
        } else {
            match gaps.last_mut().filter(|gap| gap.place == place) {
                Some(gap) => gap.rules.push(rule.into()),
                None => gaps.push(Gap { place, rules: vec![rule.into()] }),
            }
        }
    }
    ops.extend(fill(chain, gaps, place));
    Some(ops)
}

/// Rules to insert before the rule that is at `place` now.
#[derive(Debug)]
pub(crate) struct Gap {
    pub(crate) place: usize,
    pub(crate) rules: Vec<Box<str>>,
}

/// Inserts the rules of `gaps`, which are sorted from top to bottom. Works from bottom to top, so that an insertion does not
/// move the places of later ones; within a gap downwards, so that each rule is inserted before one that exists. `end` is the
/// place after the last existing rule.
pub(crate) fn fill(chain: &str, gaps: Vec<Gap>, end: usize) -> impl Iterator<Item = Op> {
    gaps.into_iter().rev().flat_map(move |gap| {
        let rules = gap.rules.into_iter().enumerate();
        rules.map(move |(index, rule)| match gap.place == end {
            true => Op::Append { chain: chain.into(), rule },
            false => Op::Insert { chain: chain.into(), place: gap.place + index, rule },
        })
    })
}

/// Corrects our jumps in a built-in chain without touching rules of others. From the last wanted jump upwards, jumps stay as
/// long as they exist in order. The first missing jump and all above it are inserted at the top, where the original puts its own.
fn jumps(chain: &str, seen: &Rules, wanted: &Rules) -> Vec<Op> {
    if seen == wanted {
        return Vec::new();
    }
    let wanted: Vec<&str> = wanted.iter().collect();
    let mut surplus: Vec<Option<&str>> = seen.iter().map(Some).collect();
    let (mut above, mut missing) = (surplus.len(), wanted.len());
    // `-D` deletes the first of two equal rules, perhaps the one that should stay: with duplicates, all jumps are inserted again.
    let has_twins = seen.iter().collect::<HashSet<_>>().len() != surplus.len();
    while missing > 0
        && !has_twins
        && let Some(found) = surplus[..above].iter().rposition(|rule| *rule == Some(wanted[missing - 1]))
    {
        surplus[found] = None;
        above = found;
        missing -= 1;
    }
    // Jumps to a shared chain may belong to the kubelet.
    let is_ours = |rule: &&str| wanted.contains(rule) || !target(rule).is_some_and(is_shared);
    let gone = surplus.into_iter().flatten().filter(is_ours);
    let mut ops: Vec<Op> = gone.map(|rule| Op::Delete { chain: chain.into(), rule: rule.into() }).collect();
    let at_the_top = |rule: &&str| Op::Insert { chain: chain.into(), place: 1, rule: (*rule).into() };
    ops.extend(wanted[..missing].iter().rev().map(at_the_top));
    ops
}

#[cfg(test)]
mod tests {
    use ferroxy_core::Family;

    use super::*;
    use crate::state::TableName;

    fn rules(text: &str) -> Rules {
        text.split_whitespace().collect()
    }

    fn ops(ops: Vec<Op>) -> Vec<String> {
        ops.iter().map(|op| op.to_string().trim_end().to_owned()).collect()
    }

    #[test]
    fn a_few_rules_of_a_long_chain_are_edited() {
        let long: String = ('a'..='z').map(|letter| format!("{letter} ")).collect();
        let changed = long.replace("c ", "").replace("m ", "m 1 2 ").replace("z ", "z 3 4 ");
        let found = edits("C", &rules(&long), &rules(&changed)).unwrap();
        assert_eq!(ops(found), ["-D C c", "-A C 3", "-A C 4", "-I C 13 1", "-I C 14 2"]);
    }

    #[test]
    fn short_chains_large_changes_and_other_orders_are_written_anew() {
        let long: String = ('a'..='z').map(|letter| format!("{letter} ")).collect();
        assert!(edits("C", &rules("a b c"), &rules("a b d")).is_none());
        assert!(edits("C", &rules(&long), &rules(&long.replace("a b ", "b a "))).is_none());
        assert!(edits("C", &rules(&long), &rules(&(long.clone() + "1 2 3 4 5 6 7 8 9 10 11"))).is_none());
        assert!(edits("C", &rules(&long), &rules(&(long.clone() + "a"))).is_none());
    }

    #[test]
    fn jumps_that_are_right_stay_and_the_others_go_to_the_top() {
        let check = |seen: &str, wanted: &str, expected: &[&str]| {
            assert_eq!(ops(jumps("INPUT", &rules(seen), &rules(wanted))), expected, "{seen}");
        };
        check("a b c", "a b c", &[]);
        check("a b a", "a b a", &[]);
        check("", "a b", &["-I INPUT 1 b", "-I INPUT 1 a"]);
        check("b c", "a b c", &["-I INPUT 1 a"]);
        check("a c", "a b c", &["-D INPUT a", "-I INPUT 1 b", "-I INPUT 1 a"]);
        check("c a b", "a b c", &["-D INPUT a", "-D INPUT b", "-I INPUT 1 b", "-I INPUT 1 a"]);
        check("a b x", "a b", &["-D INPUT x"]);
        check("a b a", "a b", &["-D INPUT a", "-D INPUT b", "-D INPUT a", "-I INPUT 1 b", "-I INPUT 1 a"]);
        check("a b", "", &["-D INPUT a", "-D INPUT b"]);
    }

    #[test]
    fn what_is_not_known_can_be_kept() {
        let nat = |chains: &[(&str, &str)]| {
            let chains =
                chains.iter().map(|(chain, rules)| ((*chain).into(), rules.lines().collect())).collect();
            let table = Table { chains, ..Table::default() };
            State { tables: BTreeMap::from([((Family::V4, TableName::Nat), table)]) }
        };
        let seen = nat(&[
            ("KUBE-SERVICES", "-j KUBE-SVC-A\n-j KUBE-SVC-B\n-j OLD"),
            ("KUBE-SVC-A", "x"),
            ("KUBE-SVC-B", "y"),
        ]);
        let wanted = nat(&[("KUBE-SERVICES", "-j KUBE-SVC-B\n-j LAST"), ("KUBE-SVC-B", "z")]);
        let kept = keeping_the_unknown(&seen, wanted);
        let expected = [
            ("KUBE-SERVICES", "-j KUBE-SVC-A\n-j KUBE-SVC-B\n-j LAST"),
            ("KUBE-SVC-A", "x"),
            ("KUBE-SVC-B", "z"),
        ];
        assert_eq!(kept, nat(&expected));
    }

    #[test]
    fn jumps_to_a_shared_chain_are_never_removed() {
        let seen: Rules = ["-j KUBE-FIREWALL", "-j KUBE-SERVICES"].into_iter().collect();
        assert_eq!(ops(jumps("INPUT", &seen, &Rules::new())), ["-D INPUT -j KUBE-SERVICES"]);
    }
}
