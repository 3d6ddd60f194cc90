//! The capabilities of iptables mode.
//!
//! Rules of the nft variant belong to nf_tables, whose notifications name the chain: a change of a chain of ours, or of one
//! that contains our jumps, is reported at once. Legacy tables send no notifications: `changed_by_others` compares fingerprints.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferroxy_core::{Family, Intent, ServiceIntent};
use ferroxy_dataplane::capability::leftovers::{Established, InForce, Leftovers};
use ferroxy_dataplane::capability::{Notify, RuleCount};
use ferroxy_dataplane::{
    Changed, CountsRules, Failure, Persists, Programmed, Repair, SignsOfLife, TakesOver, Verifies, Watches,
};
use ferroxy_netfilter::leftovers::{self, Own};

use super::{Iptables, examples, kernel_generation};
use crate::plan::Plan;
use crate::program::owns;
use crate::render::{ClusterSize, Surroundings, fragment};
use crate::state::{Rules, TableName};
use crate::tool::{Error, Variant};
use crate::watch::{Seen, watch_chains};

/// The fingerprint of a very large legacy table misses a rule that was replaced with one of the same size: after this many
/// checks everything is compared.
const LOOKS_BEFORE_COMPARISON: u32 = 20;

impl Persists for Iptables {
    fn is_cold(&mut self) -> Result<bool, Failure> {
        let observed = self.observe()?;
        let is_cold = observed.is_empty();
        self.observed = Some(observed);
        Ok(is_cold)
    }

    fn keep_unknown(&mut self, keep: bool) {
        self.keep_unknown = keep;
    }

    /// Parts are the Service's own chains, and its rules in shared chains.
    fn programmed(&mut self, intent: &Intent, service: &Arc<ServiceIntent>) -> Result<Programmed, Failure> {
        let observed = self.observe()?;
        if observed.is_empty() {
            return Ok(Programmed::Nothing);
        }
        let size = ClusterSize::of(intent.services.values().map(AsRef::as_ref));
        let surroundings = Surroundings { node: &intent.node, parameters: self.parameters()?, size };
        let expected = fragment(service, surroundings, &self.families());
        let chain = |family, table, chain: &str| observed.table(family, table)?.chains.get(chain);
        let (mut right, mut wanted) = (0, 0);
        for ((family, name), rules) in &expected.chains {
            wanted += 1;
            right += usize::from(chain(*family, TableName::Nat, name) == Some(rules));
        }
        for ((family, dispatch), rules) in &expected.dispatch {
            let present = chain(*family, dispatch.table(), dispatch.chain());
            wanted += rules.len();
            right += rules.iter().filter(|rule| present.is_some_and(|it| contains(it, rule))).count();
        }
        Ok(Programmed::Parts { right, wanted })
    }
}

impl Verifies for Iptables {
    fn changed_by_others(&mut self) -> Result<Changed, Failure> {
        self.looks += 1;
        let sees_every_change = self.fingerprints.iter().all(|fingerprint| fingerprint.is_exact());
        let is_time = self.looks >= LOOKS_BEFORE_COMPARISON && !sees_every_change;
        let legacy = self.uses(Variant::Legacy) && (is_time || self.have_fingerprints_changed()?);
        // Notifications can be lost; the generation counts the commits of all programs.
        let missed =
            self.uses(Variant::NfTables) && kernel_generation()? != self.generation.load(Ordering::Relaxed);
        let ours = legacy || missed || self.is_unrepaired || self.is_touched.load(Ordering::SeqCst);
        Ok(if ours { Changed::Ours } else { Changed::Nothing })
    }

    fn verify(&mut self) -> Result<Repair, Failure> {
        self.looks = 0;
        // Read first: a change during the comparison then causes another comparison in the next period.
        let generation = kernel_generation().unwrap_or_default();
        self.is_touched.store(false, Ordering::SeqCst);
        let plan = self.plan_repair()?;
        let receipt = self.carry_out(&plan)?;
        // A repair fails to help if another program writes at the same time, or if the tool prints a rule differently.
        let remaining = if plan.is_empty() { Plan::default() } else { self.plan_repair()? };
        self.generation.store(generation.wrapping_add(receipt.commits as u32), Ordering::Relaxed);
        self.is_unrepaired = !remaining.is_empty();
        Ok(Repair {
            receipt,
            operations: plan.len(),
            examples: examples(&plan),
            unrepaired: self.is_unrepaired.then(|| examples(&remaining).join("; ")),
        })
    }
}

impl Iptables {
    fn plan_repair(&mut self) -> Result<Plan, Error> {
        let observed = self.observe()?;
        Ok(self.difference(&observed, self.ledger.state()))
    }
}

impl Watches for Iptables {
    fn watch(&mut self, notify: Notify) -> Result<(), Failure> {
        let (generation, is_touched) = (Arc::clone(&self.generation), Arc::clone(&self.is_touched));
        let seen = move |seen| match seen {
            // Remembered until the next verification, even if the notification gets lost.
            Seen::Ours => is_touched.store(true, Ordering::SeqCst),
            // Commits are reported in order, without ours: all commits up to this one were noticed.
            Seen::Commit(id) => drop(generation.fetch_max(id, Ordering::SeqCst)),
        };
        self.bystander.listener = Some(watch_chains(owns, seen, notify)?);
        Ok(())
    }
}

impl CountsRules for Iptables {
    fn rule_counts(&self) -> Vec<RuleCount> {
        let tables = |family: &Family| TableName::ALL.map(|table| (*family, table));
        let count = |(family, table): (Family, TableName)| RuleCount {
            family,
            group: table.as_str(),
            total: self.ledger.rule_count(family, table),
            last: self.rules_written.get(&(family, table)).copied().unwrap_or_default(),
        };
        self.ledger.families().iter().flat_map(tables).map(count).collect()
    }
}

impl SignsOfLife for Iptables {
    fn show_life(&mut self, alive: Box<dyn Fn() + Send>) {
        self.bystander.sign_of_life = Some(alive);
    }
}

impl TakesOver for Iptables {
    fn remove_leftovers(&mut self, in_force: InForce, established: Established) -> Leftovers {
        let own = (in_force == InForce::Yes).then_some(Own::Iptables);
        leftovers::remove(own, established)
    }
}

fn contains(rules: &Rules, wanted: &str) -> bool {
    rules.iter().any(|rule| rule == wanted)
}
