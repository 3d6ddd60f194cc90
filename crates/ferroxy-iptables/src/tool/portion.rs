//! Arranges a restore text so that the nft variant of the tool is fast with it: a large table becomes several commits in
//! an order that packets do not notice. Pure; it runs nothing and changes no line.
//!
//! Why. For every command `iptables-nft-restore` enters its chain, and the chain that it jumps to, into a *sorted linked
//! list* of chains to fetch from the kernel (`cache_chain_list_insert`, since 1.8.5 and still in 1.8.10), and forgets the
//! list at COMMIT. With n chains in one commit that is n² comparisons: 10,000 Services with 10 endpoints are 110,000 chains,
//! half a million commands and more than 10¹⁰ steps through a list that no cache holds. Commits of k chains make it n·k.
//!
//! Commits are not free: for each one, the kernel walks all chains of the table twice, and validates every rule that packets
//! can reach. Therefore portions have two thousand chains, and new chains are filled *before* any rule leads to them:
//!
//! 1. chains all Services use (KUBE-MARK-MASQ, KUBE-POSTROUTING), in one commit;
//! 2. each Service's chains (KUBE-SVC-, -SVL-, -EXT-, -FW-, -SEP-), some Services to a commit and none cut in two;
//! 3. the chains that lead to Services, and all other edits, in one commit;
//! 4. chains to remove: emptied first, since they may refer to each other, and then removed.
//!
//! A Service therefore changes at once: its own chains in one commit of step 2, or its place in step 3. A packet is at
//! no time sent to a chain that is missing or half filled.

use std::collections::HashMap;

use super::refusal::{chain, target};

/// The largest number of chains in one commit; a table with at most this many is not arranged. Measured with 10,000 Services
/// (`benches/restore.rs`): filling an empty table takes as long with 500; rewriting a table that is in use takes more than
/// twice as long with 500, because the kernel then validates everything at each commit.
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
    /// Tables with more than [`CHAINS`] chains are arranged. All other tables, and so all usual changes, are one commit each, as
    /// given.
    pub fn of(text: &'a str) -> Portions<'a> {
        Portions::with_limit(text, CHAINS)
    }

    /// For the legacy tool, which gives each table to the kernel as a whole: every further commit would rewrite all of it. The
    /// tool finds chains in a sorted list with an index, which is a third faster when they are declared in order.
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
        // A missing COMMIT is an error, which the tool reports.
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
    by_name: HashMap<&'a str, usize>,
    /// Commands on chains that are not declared here, in the order given.
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
    /// `None` for unusual input, such as a chain that is declared twice. Such a table is not arranged, and so keeps its meaning.
    fn read(lines: &[&'a str]) -> Option<Table<'a>> {
        let mut lines = lines.iter().copied().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let head = lines.next().filter(|head| head.starts_with('*'))?;
        let (chains, by_name) = (Vec::new(), HashMap::new());
        let mut table = Table { head, chains, by_name, edits: Vec::new(), removals: Vec::new() };
        lines.try_for_each(|line| table.take(line))?;
        let fills_a_doomed_chain = table.chains.iter().any(|chain| chain.doomed && !chain.rules.is_empty());
        (!fills_a_doomed_chain).then_some(table)
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

    /// The chains of Services that stay, in the order of their declarations. Chains that jump to one another form one group.
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
        let mut place: HashMap<usize, usize> = HashMap::new();
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

/// Puts all declarations before the rules, because rules jump to chains that are declared later.
fn put_chains<'a>(chains: &[&Chain<'a>], out: &mut Vec<&'a str>) {
    out.extend(chains.iter().map(|chain| chain.declaration));
    out.extend(chains.iter().flat_map(|chain| &chain.rules));
}

fn is_of_a_service(name: &str) -> bool {
    OF_A_SERVICE.iter().any(|prefix| name.starts_with(prefix))
}

struct Services<'t, 'a>(Vec<Vec<&'t Chain<'a>>>);

impl<'t, 'a> Services<'t, 'a> {
    /// Puts as many Services into a portion as fit into `limit` chains; a larger Service is a portion of its own.
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
mod tests;
