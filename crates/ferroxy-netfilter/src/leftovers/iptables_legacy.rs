//! Removes kube-proxy's chains from the tables of `iptables-legacy`. Such a table can only be replaced as a whole; the
//! new one keeps the rules of other programs, with their counters.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fs;
use std::iter;
use std::path::Path;

use ferroxy_dataplane::capability::leftovers::Leftovers;
use ferroxy_netlink::error::Error;
use ferroxy_netlink::xtables::{self, Connection, Family, Table};
use rustix::io::Errno;

use super::failed;
use super::names::{self, Spared, TABLES};
use super::removal::{Jump, Removal, plan};
use super::xtables_lock::{self, Lock, State};

/// How often to try when another program changes the table between reading and replacing.
const ATTEMPTS: usize = 5;

pub(super) fn remove(spared: Spared, report: &mut Leftovers) {
    // One lock for all tables: if another program holds it, the wait is the same for six tables as for one.
    let mut lock = Lock::new(Path::new(xtables_lock::PATH), xtables_lock::PATIENCE);
    for (family, word) in [(Family::Ip, "ip"), (Family::Ip6, "ip6")] {
        match xtables::tables(family) {
            Ok(present) => {
                for table in TABLES.into_iter().filter(|table| present.iter().any(|it| it == table)) {
                    if let Err(error) = remove_from(family, word, table, spared, &mut lock, report) {
                        failed(report, &error);
                    }
                }
            }
            // Only root may read that list. Without the modules there are no tables.
            Err(error) if error.errno == Errno::ACCESS && !may_be_in_use(word) => {}
            Err(error) => report.failed.push(format!(
                "{error}; if kube-proxy used legacy iptables, run `iptables-legacy-save` as root to see what it left"
            )),
        }
    }
}

/// Whether legacy iptables may have tables in this kernel: whether its modules are loaded. A kernel with legacy iptables built
/// in is so unusual that it needs no warning.
fn may_be_in_use(word: &str) -> bool {
    let prefix = format!("{word}table_");
    fs::read_to_string("/proc/modules").is_ok_and(|modules| modules.lines().any(|it| it.starts_with(&prefix)))
}

fn remove_from(
    family: Family,
    word: &str,
    table: &str,
    spared: Spared,
    lock: &mut Lock,
    report: &mut Leftovers,
) -> Result<(), Error> {
    let connection = Connection::open(family)?;
    for attempt in 1.. {
        let read = connection.read(table)?;
        let removal = look(&read, table, spared);
        if !removal.is_empty() && !lock.was_tried() {
            // The lock is taken only when there is something to remove. Read the table again while holding it.
            lock.take();
            continue;
        }
        for (chain, by) in &removal.kept {
            report.kept.push(format!("chain {chain} of legacy {word} {table} (chain {by} jumps to it)"));
        }
        if removal.is_empty() {
            break;
        }
        let chains = format!("{} chains of legacy {word} {table}", removal.chains.len());
        let note = match lock.state() {
            State::Held => String::new(),
            State::Absent(why) => format!(" (without the lock: {why})"),
            State::Busy(why) => {
                report.failed.push(format!("{chains} stay until the next attempt: {why}"));
                break;
            }
        };
        let rules: BTreeSet<u64> = removal.rules.iter().map(|(_, rule)| *rule).collect();
        match connection.replace(read.without(&removal.chains, &rules)) {
            Ok(()) => {
                report.removed.push(format!("{chains}{note}"));
                break;
            }
            Err(error) if error.errno == Errno::AGAIN && attempt < ATTEMPTS => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn look(read: &Table, table: &str, spared: Spared) -> Removal {
    // Which built-in chain a rule is in does not matter.
    const BUILT_IN: &str = names::BUILT_IN[0];
    let mut jumps: BTreeMap<String, Vec<Jump>> = BTreeMap::new();
    for jump in read.jumps() {
        let from = jump.from.unwrap_or_else(|| BUILT_IN.to_owned());
        jumps.entry(from).or_default().push(Jump { rule: jump.rule, to: jump.to });
    }
    let chains: Vec<String> = iter::once(BUILT_IN).chain(read.chains()).map(str::to_owned).collect();
    let jumps_of = |chain: &str| Ok(jumps.get(chain).cloned().unwrap_or_default());
    let Ok(removal) = plan::<Infallible>(table, &chains, spared, jumps_of);
    removal
}
