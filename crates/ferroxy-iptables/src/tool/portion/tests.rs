//! Tests that portions lead to the same rules as the whole input, and that no Service is ever half changed.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const TWO_SERVICES: &str = "\
*filter
:KUBE-FORWARD - [0:0]
-A KUBE-FORWARD -j ACCEPT
COMMIT
*nat
:KUBE-SERVICES - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-SVC-A - [0:0]
:KUBE-SVC-B - [0:0]
:KUBE-SEP-A1 - [0:0]
:KUBE-SEP-B1 - [0:0]
:KUBE-SEP-OLD - [0:0]
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-A KUBE-SVC-A -m comment --comment \"a -> 1\" -j KUBE-SEP-A1
-A KUBE-SVC-B -j KUBE-SEP-B1
-A KUBE-SEP-A1 -s 10.0.0.1 -j KUBE-MARK-MASQ
-A KUBE-SEP-A1 -p tcp -j DNAT --to-destination 10.0.0.1:80
-A KUBE-SEP-B1 -p tcp -j DNAT --to-destination 10.0.0.2:80
-A KUBE-SERVICES -d 10.96.0.1 -j KUBE-SVC-A
-A KUBE-SERVICES -d 10.96.0.2 -j KUBE-SVC-B
-I PREROUTING -j KUBE-SERVICES
-X KUBE-SEP-OLD
COMMIT
";

#[test]
fn a_large_table_is_filled_from_its_leaves() {
    let expected = "\
*filter
:KUBE-FORWARD - [0:0]
-A KUBE-FORWARD -j ACCEPT
COMMIT
*nat
:KUBE-MARK-MASQ - [0:0]
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
COMMIT
*nat
:KUBE-SVC-A - [0:0]
:KUBE-SEP-A1 - [0:0]
-A KUBE-SVC-A -m comment --comment \"a -> 1\" -j KUBE-SEP-A1
-A KUBE-SEP-A1 -s 10.0.0.1 -j KUBE-MARK-MASQ
-A KUBE-SEP-A1 -p tcp -j DNAT --to-destination 10.0.0.1:80
COMMIT
*nat
:KUBE-SVC-B - [0:0]
:KUBE-SEP-B1 - [0:0]
-A KUBE-SVC-B -j KUBE-SEP-B1
-A KUBE-SEP-B1 -p tcp -j DNAT --to-destination 10.0.0.2:80
COMMIT
*nat
:KUBE-SERVICES - [0:0]
-A KUBE-SERVICES -d 10.96.0.1 -j KUBE-SVC-A
-A KUBE-SERVICES -d 10.96.0.2 -j KUBE-SVC-B
-I PREROUTING -j KUBE-SERVICES
COMMIT
*nat
:KUBE-SEP-OLD - [0:0]
COMMIT
*nat
-X KUBE-SEP-OLD
COMMIT
";
    let portions = Portions::with_limit(TWO_SERVICES, 3);
    assert_eq!(portions.lines().join("\n") + "\n", expected);
    assert_eq!(portions.commits(), 7);
}

#[test]
fn an_everyday_table_is_left_as_it_is() {
    assert_eq!(Portions::of(TWO_SERVICES).lines().join("\n") + "\n", TWO_SERVICES);
}

#[test]
fn legacy_tools_get_declarations_in_order_and_everything_else_as_it_is() {
    let text = "*nat\n:B - [0:0]\n:A - [0:0]\n-A B -j A\n-A A -j RETURN\nCOMMIT\n";
    let expected = "*nat\n:A - [0:0]\n:B - [0:0]\n-A B -j A\n-A A -j RETURN\nCOMMIT\n";
    assert_eq!(Portions::for_legacy(text).lines().join("\n") + "\n", expected);
}

#[test]
fn what_is_broken_reaches_the_tool() {
    for text in ["", "nonsense", "*nat\n:A - [0:0]\n", "COMMIT\nCOMMIT", ":A\n*nat\n:B\n:C\nCOMMIT"] {
        let portions = Portions::with_limit(text, 1);
        assert_eq!(portions.lines().join("\n"), text.trim_end(), "{text:?}");
    }
}

#[test]
fn what_is_unusual_is_left_as_it_is() {
    for line in ["nonsense", ":KUBE-SVC-A - [0:0]", "-X KUBE-SVC-A", "-I KUBE-SVC-A -j RETURN", "*filter"] {
        let text = TWO_SERVICES.replace("-X KUBE-SEP-OLD", line);
        assert_eq!(Portions::with_limit(&text, 3), Portions::as_given(&text), "{line:?}");
    }
}

/// A model of what a restore does to chains and jumps. Returns an error where the kernel would refuse.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Kernel(BTreeMap<String, Vec<String>>);

impl Kernel {
    fn restore(&mut self, lines: &[&str], mut each: impl FnMut(&Kernel)) -> Result<(), String> {
        for line in lines {
            let name = chain(line).unwrap_or_default().to_owned();
            if line.starts_with(':') {
                self.0.insert(name, Vec::new());
            } else if line.starts_with("-A ") {
                self.0.get_mut(&name).ok_or(format!("no {name}"))?.push((*line).to_owned());
            } else if line.starts_with("-X ") {
                if self.0.values().flatten().any(|rule| target(rule) == Some(&name)) {
                    return Err(format!("{name} is referred to"));
                }
                self.0
                    .remove(&name)
                    .filter(Vec::is_empty)
                    .ok_or(format!("{name} is not there or not empty"))?;
            } else if *line == COMMIT {
                let targets = self.0.values().flatten().filter_map(|rule| target(rule));
                if let Some(gone) =
                    targets.into_iter().find(|t| t.starts_with("KUBE") && !self.0.contains_key(*t))
                {
                    return Err(format!("a jump to {gone}"));
                }
                each(self);
            }
        }
        Ok(())
    }

    /// All rules a packet for one Service can meet, if anything leads there.
    fn seen_by(&self, service: usize) -> Option<BTreeSet<String>> {
        let entry = format!("-A KUBE-SERVICES -j KUBE-SVC-{service}");
        self.0.get("KUBE-SERVICES")?.iter().find(|rule| **rule == entry)?;
        let (mut seen, mut next) = (BTreeSet::new(), vec![format!("KUBE-SVC-{service}")]);
        while let Some(name) = next.pop() {
            for rule in &self.0[&name] {
                if let Some(name) = target(rule).filter(|name| name.starts_with("KUBE-SEP")) {
                    next.push(name.to_owned());
                }
                seen.insert(rule.clone());
            }
        }
        Some(seen)
    }
}

/// A cluster: for each Service its endpoints, each with a number that stands for the content of its chain.
type Cluster = Vec<BTreeMap<u8, u8>>;

fn clusters() -> impl Strategy<Value = Cluster> {
    prop::collection::vec(prop::collection::btree_map(0..6u8, 0..2u8, 0..4), 6)
}

fn chains_of(cluster: &Cluster) -> BTreeSet<String> {
    let services = cluster.iter().enumerate().filter(|(_, endpoints)| !endpoints.is_empty());
    services
        .flat_map(|(s, endpoints)| {
            let endpoints = endpoints.keys().map(move |e| format!("KUBE-SEP-{s}-{e}"));
            endpoints.chain([format!("KUBE-SVC-{s}")])
        })
        .collect()
}

/// Everything of `cluster`, and removal of what only `before` has.
fn full_text(before: &Cluster, cluster: &Cluster) -> String {
    let (wanted, old) = (chains_of(cluster), chains_of(before));
    let mut text = String::from("*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n");
    wanted.union(&old).for_each(|name| text += &format!(":{name} - [0:0]\n"));
    for (s, endpoints) in cluster.iter().enumerate().filter(|(_, endpoints)| !endpoints.is_empty()) {
        text += &format!("-A KUBE-SERVICES -j KUBE-SVC-{s}\n");
        for (e, content) in endpoints {
            text += &format!("-A KUBE-SVC-{s} -j KUBE-SEP-{s}-{e}\n");
            text += &format!("-A KUBE-SEP-{s}-{e} -m mark --mark {content} -j KUBE-MARK-MASQ\n");
        }
    }
    old.difference(&wanted).for_each(|name| text += &format!("-X {name}\n"));
    text + "COMMIT\n"
}

proptest! {
    /// Portions lead to the same rules as the whole input, the kernel accepts each portion, and after each portion every Service
    /// is in its old or in its new state.
    #[test]
    fn no_service_is_ever_half_changed(before in clusters(), after in clusters(), limit in 1..20usize) {
        let mut kernel = Kernel::default();
        kernel.restore(Portions::as_given(&full_text(&vec![], &before)).lines(), |_| {}).unwrap();
        let text = full_text(&before, &after);
        let mut whole = kernel.clone();
        whole.restore(Portions::as_given(&text).lines(), |_| {}).unwrap();

        let start = kernel.clone();
        let mut halves = Vec::new();
        let portions = Portions::with_limit(&text, limit);
        let result = kernel.restore(portions.lines(), |now| {
            halves.extend((0..6).filter(|s| {
                let seen = now.seen_by(*s);
                seen != start.seen_by(*s) && seen != whole.seen_by(*s)
            }));
        });
        prop_assert_eq!(result, Ok(()));
        prop_assert_eq!(kernel, whole);
        prop_assert!(halves.is_empty(), "{:?} in {:?}", halves, portions.lines());
    }

    #[test]
    fn no_line_is_lost_or_made_up(text in "(([*:]|-[AXI] )[AB]{0,2}( -j [AB])?\n|COMMIT\n|#\n){0,30}", limit in 0..4usize) {
        let portions = Portions::with_limit(&text, limit);
        let count = |lines: &mut dyn Iterator<Item = &str>| {
            let mut counts = BTreeMap::new();
            lines.filter(|l| !l.is_empty() && !l.starts_with(['*', '#']) && *l != COMMIT)
                .for_each(|line| *counts.entry(line.to_owned()).or_insert(0) += 1);
            counts
        };
        prop_assert_eq!(count(&mut portions.lines().iter().copied()), count(&mut text.lines()));
    }
}
