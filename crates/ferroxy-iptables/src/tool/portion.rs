//! Arranges a restore text so that the nft variant of the tool is fast with it: a large table becomes several commits in
//! an order that packets do not notice. Pure; it runs nothing and changes no line.
//!
//! Why. For every command `iptables-nft-restore` enters the chain it names, and the one it jumps to, in a *sorted linked
//! list* of what it must ask the kernel about (`cache_chain_list_insert`, since 1.8.5 and still in 1.8.10), and forgets the
//! list at COMMIT. With n chains in one commit that is n² comparisons: 10,000 Services with 10 endpoints are 110,000 chains,
//! half a million commands and more than 10¹⁰ steps through a list that no cache holds. Commits of k chains make it n·k.
//!
//! They are not free: for each the kernel walks all chains of the table, twice, and validates every rule that packets can
//! reach. So portions are of two thousand chains, and what is new is filled *before* anything leads there:
//!
//! 1. chains all Services use (KUBE-MARK-MASQ, KUBE-POSTROUTING), in one commit;
//! 2. each Service's chains (KUBE-SVC-, -SVL-, -EXT-, -FW-, -SEP-), some Services to a commit and none cut in two;
//! 3. the chains that lead to Services, and everything else that was asked for, in one commit;
//! 4. chains that shall go: emptied first, since they may refer to each other, and then removed.
//!
//! A Service therefore changes at once: its own chains in one commit of step 2, or its place in step 3. A packet is at
//! no time sent to a chain that is missing or half filled.

use rustc_hash::FxHashMap;

use super::refusal::{chain, target};

/// Chains in one commit; a table with no more is not arranged. Measured with 10,000 Services (`benches/restore.rs`): to fill an
/// empty table takes the same with 500; to rewrite one that is in use takes more than twice as long with 500, for the
/// kernel then validates everything at each commit.
pub const CHAINS: usize = 2000;

const OF_A_SERVICE: [&str; 5] = ["KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-"];
const LEADING_TO_SERVICES: [&str; 2] = ["KUBE-SERVICES", "KUBE-NODEPORTS"];
const COMMIT: &str = "COMMIT";

/// Restore input, line by line, in the order in which the tool gets it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Portions<'a> {
    lines: Vec<&'a str>,
}

impl<'a> Portions<'a> {
    /// Tables with more than [`CHAINS`] chains are arranged; all others, and so every everyday change, are one commit each,
    /// as given.
    pub fn of(text: &'a str) -> Portions<'a> {
        Portions::with_limit(text, CHAINS)
    }

    /// For the legacy variant, which hands over each table as one piece: every further commit would rewrite all of it. It
    /// finds chains in a sorted list with an index, which is a third faster when they are declared in order.
    pub fn for_legacy(text: &'a str) -> Portions<'a> {
        let mut portions = Portions::as_given(text);
        let declares = |line: &&str| line.starts_with(':');
        let runs = portions.lines.chunk_by_mut(|one, next| declares(one) && declares(next));
        runs.for_each(<[&str]>::sort_unstable);
        portions
    }

    pub fn as_given(text: &'a str) -> Portions<'a> {
        Portions { lines: text.lines().collect() }
    }

    pub fn with_limit(text: &'a str, limit: usize) -> Portions<'a> {
        let mut portions = Portions { lines: Vec::with_capacity(text.len() / 100) };
        let mut rest: Vec<&'a str> = text.lines().collect();
        while let Some(end) = rest.iter().position(|line| *line == COMMIT) {
            let after = rest.split_off(end + 1);
            match Table::read(&rest[..end]) {
                Some(table) if table.chains.len() > limit => table.arrange(limit.max(1), &mut portions.lines),
                _ => portions.lines.append(&mut rest),
            }
            rest = after;
        }
        // What is not closed by COMMIT is an error, and the tool's to tell.
        portions.lines.append(&mut rest);
        portions
    }

    pub fn lines(&self) -> &[&'a str] {
        &self.lines
    }

    pub fn commits(&self) -> usize {
        self.lines.iter().filter(|line| **line == COMMIT).count()
    }
}

/// One table's lines, sorted by what they are about.
struct Table<'a> {
    /// `*nat`
    head: &'a str,
    chains: Vec<Chain<'a>>,
    by_name: FxHashMap<&'a str, usize>,
    /// Whatever is done to chains that are not declared here, in the order given.
    edits: Vec<&'a str>,
    removals: Vec<&'a str>,
}

struct Chain<'a> {
    name: &'a str,
    declaration: &'a str,
    rules: Vec<&'a str>,
    doomed: bool,
}

impl<'a> Table<'a> {
    /// `None` for what is unusual, such as a chain that is declared twice: it is not arranged, and so means what it meant.
    fn read(lines: &[&'a str]) -> Option<Table<'a>> {
        let mut lines = lines.iter().copied().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let head = lines.next().filter(|head| head.starts_with('*'))?;
        let (chains, by_name) = (Vec::new(), FxHashMap::default());
        let mut table = Table { head, chains, by_name, edits: Vec::new(), removals: Vec::new() };
        lines.try_for_each(|line| table.take(line))?;
        let filled_in_vain = table.chains.iter().any(|chain| chain.doomed && !chain.rules.is_empty());
        (!filled_in_vain).then_some(table)
    }

    fn take(&mut self, line: &'a str) -> Option<()> {
        let name = chain(line)?;
        let known = self.by_name.get(name).and_then(|index| self.chains.get_mut(*index));
        let command = if line.starts_with('[') { line.split_once(' ')?.1 } else { line };
        match known {
            None if line.starts_with(':') => {
                self.by_name.insert(name, self.chains.len());
                self.chains.push(Chain { name, declaration: line, rules: Vec::new(), doomed: false });
            }
            Some(chain) if command.starts_with("-A ") => chain.rules.push(line),
            Some(chain) if line.starts_with("-X ") && !chain.doomed => {
                chain.doomed = true;
                self.removals.push(line);
            }
            None => self.edits.push(line),
            Some(_) => return None,
        }
        Some(())
    }

    fn arrange(&self, limit: usize, out: &mut Vec<&'a str>) {
        let mut shared = Vec::new();
        let mut leading = Vec::new();
        let mut doomed = Vec::new();
        for chain in &self.chains {
            match chain {
                Chain { doomed: true, .. } => doomed.push(chain),
                Chain { name, .. } if is_of_a_service(name) => {}
                Chain { name, .. } if LEADING_TO_SERVICES.contains(name) => leading.push(chain),
                _ => shared.push(chain),
            }
        }
        self.commit(out, |out| put_chains(&shared, out));
        for portion in self.services().pack(limit) {
            self.commit(out, |out| portion.iter().for_each(|service| put_chains(service, out)));
        }
        self.commit(out, |out| {
            put_chains(&leading, out);
            out.extend(&self.edits);
        });
        for portion in doomed.chunks(limit) {
            self.commit(out, |out| put_chains(portion, out));
        }
        for portion in self.removals.chunks(limit) {
            self.commit(out, |out| out.extend(portion));
        }
    }

    fn commit(&self, out: &mut Vec<&'a str>, put: impl FnOnce(&mut Vec<&'a str>)) {
        out.push(self.head);
        let empty = out.len();
        put(out);
        if out.len() == empty {
            out.pop();
        } else {
            out.push(COMMIT);
        }
    }

    /// The chains of Services that stay, those together that jump to one another, in the order in which they are declared.
    fn services(&self) -> Services<'_, 'a> {
        let mut groups = Groups::new(self.chains.len());
        let ours = |chain: &Chain<'_>| !chain.doomed && is_of_a_service(chain.name);
        for (index, chain) in self.chains.iter().enumerate().filter(|(_, chain)| ours(chain)) {
            let targets = chain.rules.iter().filter_map(|rule| target(rule));
            for other in targets.filter_map(|name| self.by_name.get(name).copied()) {
                if ours(&self.chains[other]) {
                    groups.join(index, other);
                }
            }
        }
        let mut place: FxHashMap<usize, usize> = FxHashMap::default();
        let mut services: Vec<Vec<&Chain<'a>>> = Vec::new();
        for (index, chain) in self.chains.iter().enumerate().filter(|(_, chain)| ours(chain)) {
            let at = *place.entry(groups.leader(index)).or_insert(services.len());
            if at == services.len() {
                services.push(Vec::new());
            }
            services[at].push(chain);
        }
        Services(services)
    }
}

/// All declarations before any rule, for rules jump ahead.
fn put_chains<'a>(chains: &[&Chain<'a>], out: &mut Vec<&'a str>) {
    out.extend(chains.iter().map(|chain| chain.declaration));
    out.extend(chains.iter().flat_map(|chain| &chain.rules));
}

fn is_of_a_service(name: &str) -> bool {
    OF_A_SERVICE.iter().any(|prefix| name.starts_with(prefix))
}

struct Services<'t, 'a>(Vec<Vec<&'t Chain<'a>>>);

impl<'t, 'a> Services<'t, 'a> {
    /// As many Services to a portion as there is room for `limit` chains; a larger one is a portion of its own.
    fn pack(&self, limit: usize) -> Vec<&[Vec<&'t Chain<'a>>]> {
        let (mut portions, mut start, mut count) = (Vec::new(), 0, 0);
        for (index, service) in self.0.iter().enumerate() {
            if count > 0 && count + service.len() > limit {
                portions.push(&self.0[start..index]);
                (start, count) = (index, 0);
            }
            count += service.len();
        }
        portions.push(&self.0[start..]);
        portions
    }
}

/// Disjoint groups of chains, joined pair by pair.
struct Groups(Vec<usize>);

impl Groups {
    fn new(count: usize) -> Groups {
        Groups((0..count).collect())
    }

    fn leader(&mut self, mut index: usize) -> usize {
        while self.0[index] != index {
            self.0[index] = self.0[self.0[index]];
            index = self.0[index];
        }
        index
    }

    fn join(&mut self, one: usize, other: usize) {
        let (one, other) = (self.leader(one), self.leader(other));
        self.0[one.max(other)] = one.min(other);
    }
}

#[cfg(test)]
mod tests {
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
        for line in ["nonsense", ":KUBE-SVC-A - [0:0]", "-X KUBE-SVC-A", "-I KUBE-SVC-A -j RETURN", "*filter"]
        {
            let text = TWO_SERVICES.replace("-X KUBE-SEP-OLD", line);
            assert_eq!(Portions::with_limit(&text, 3), Portions::as_given(&text), "{line:?}");
        }
    }

    /// What a restore does to chains and jumps. An error for what the kernel would refuse.
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
        /// Portions end where the whole ends, the kernel takes each, and after each every Service is as it was or as it
        /// shall be.
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
}
