//! Removes kube-proxy's chains from the tables of `iptables-nft`, which are nftables tables of well-known names.
//! kube-proxy's rules have matches that ferroxy-netlink cannot decode; only their jump targets matter here.

use ferroxy_dataplane::capability::leftovers::Leftovers;
use ferroxy_netlink::error::Error;
use ferroxy_netlink::nftables::{Batch, CommitError, Connection, Expr, Family, ObservedRule, Verdict};

use super::failed;
use super::names::{Spared, TABLES};
use super::removal::{Jump, Removal, plan};

pub(super) fn remove(spared: Spared, report: &mut Leftovers) {
    let mut connection = match Connection::open() {
        Ok(connection) => connection,
        Err(error) => return failed(report, &error),
    };
    for (family, word) in [(Family::Ip, "ip"), (Family::Ip6, "ip6")] {
        for table in TABLES {
            remove_from(&mut connection, (family, word), table, spared, report);
        }
    }
}

fn remove_from(
    connection: &mut Connection,
    (family, word): (Family, &str),
    table: &str,
    spared: Spared,
    report: &mut Leftovers,
) {
    let removal = match look(connection, family, table, spared) {
        Ok(removal) => removal,
        Err(error) => return failed(report, &error),
    };
    for (chain, by) in &removal.kept {
        report.kept.push(format!("chain {chain} of {word} {table} (chain {by} jumps to it)"));
    }
    if removal.is_empty() {
        return;
    }
    match carry_out(connection, family, table, &removal) {
        Ok(()) => report.removed.push(format!("{} chains of {word} {table}", removal.chains.len())),
        Err(error) => failed(report, &error),
    }
}

fn look(connection: &mut Connection, family: Family, table: &str, spared: Spared) -> Result<Removal, Error> {
    let chains = connection.chains(family, table)?.into_iter().map(|chain| chain.name);
    let jumps_of = |chain: &str| {
        let rules = connection.rules_of(family, table, chain)?;
        Ok(rules.into_iter().filter_map(jump).collect())
    };
    plan(table, &chains.collect::<Vec<_>>(), spared, jumps_of)
}

fn jump(observed: ObservedRule) -> Option<Jump> {
    let to = observed.rule.exprs.into_iter().find_map(|expr| match expr {
        Expr::Immediate(Verdict::Jump(chain) | Verdict::Goto(chain)) => Some(chain),
        _ => None,
    })?;
    Some(Jump { rule: observed.handle, to })
}

/// First removes all references to the chains, then the chains: kernels before 6.2 count a chain as used until the transaction
/// that removed its last user is over.
fn carry_out(
    connection: &mut Connection,
    family: Family,
    table: &str,
    removal: &Removal,
) -> Result<(), CommitError> {
    let mut steps = Steps { connection, batch: Batch::new() };
    for (chain, handle) in &removal.rules {
        steps.add(|batch| batch.delete_rule(0, family, table, chain, *handle))?;
    }
    for chain in &removal.chains {
        steps.add(|batch| batch.flush_chain(0, family, table, chain))?;
    }
    steps.commit()?;
    for chain in &removal.chains {
        steps.add(|batch| batch.delete_chain(0, family, table, chain))?;
    }
    steps.commit()
}

/// Collects operations and commits them in batches as large as the socket allows.
struct Steps<'a> {
    connection: &'a mut Connection,
    batch: Batch,
}

impl Steps<'_> {
    fn add(&mut self, operation: impl FnOnce(&mut Batch)) -> Result<(), CommitError> {
        /// The most bytes that one operation here takes.
        const LARGEST: usize = 512;
        operation(&mut self.batch);
        if self.batch.bytes() + LARGEST > self.connection.max_batch_bytes() { self.commit() } else { Ok(()) }
    }

    fn commit(&mut self) -> Result<(), CommitError> {
        self.connection.commit(&self.batch)?;
        self.batch.clear();
        Ok(())
    }
}
