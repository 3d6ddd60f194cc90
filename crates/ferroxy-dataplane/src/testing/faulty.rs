//! Makes any dataplane refuse Services, fail whole attempts, forget that it succeeded, and lose notifications. A seed decides:
//! the same seed gives the same faults.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferroxy_core::{Diagnostic, Intent, NodeIntent, ServiceIntent};

use crate::capability::{
    CountsPackets, CountsRefusals, CountsRules, CountsTraffic, Drains, Ejects, HandsOver, Notify, Persists,
    SignsOfLife, SweepsConnections, TakesOver, Tidies, TranslatesSockets, Verifies, Watches,
};
use crate::{
    Acknowledged, Change, ChoiceOfEndpoints, Dataplane, Failure, Outcome, Preview, Refusal, Settings,
};

/// How often something goes wrong, in percent.
#[derive(Debug, Clone, Copy)]
pub struct Faults {
    pub seed: u64,
    /// A Service of a change is refused.
    pub refuse: u8,
    /// An attempt fails before anything is done.
    pub fail: u8,
    /// An attempt succeeds, and is reported as failed.
    pub forget: u8,
    /// A notification of a foreign change is lost.
    pub lose: u8,
}

impl Faults {
    pub const NONE: Faults = Faults { seed: 0, refuse: 0, fail: 0, forget: 0, lose: 0 };

    /// The default faults of scenarios.
    pub fn usual(seed: u64) -> Faults {
        Faults { seed, refuse: 20, fail: 15, forget: 10, lose: 30 }
    }
}

/// How often each of [`Faults`] has happened.
#[derive(Debug, Default)]
pub struct Injected {
    refused: AtomicUsize,
    failed: AtomicUsize,
    forgotten: AtomicUsize,
    lost: AtomicUsize,
}

impl Injected {
    pub fn add(&self, more: &Injected) {
        for (sum, more) in self.all().into_iter().zip(more.all()) {
            sum.1.fetch_add(more.1.load(Relaxed), Relaxed);
        }
    }

    /// The kinds of faults that never happened.
    pub fn missing(&self) -> Vec<&'static str> {
        self.all().into_iter().filter(|(_, count)| count.load(Relaxed) == 0).map(|(kind, _)| kind).collect()
    }

    fn all(&self) -> [(&'static str, &AtomicUsize); 4] {
        [("refuse", &self.refused), ("fail", &self.failed), ("forget", &self.forgotten), ("lose", &self.lost)]
    }
}

#[derive(Debug)]
pub struct Faulty {
    inner: Box<dyn Dataplane>,
    faults: Faults,
    dice: Dice,
    injected: Arc<Injected>,
}

impl Faulty {
    pub fn new(inner: Box<dyn Dataplane>, faults: Faults) -> Faulty {
        Faulty { inner, faults, dice: Dice::new(faults.seed), injected: Arc::default() }
    }

    /// The faults so far. Counting continues while the dataplane is used.
    pub fn injected(&self) -> Arc<Injected> {
        Arc::clone(&self.injected)
    }

    fn attempt<T>(
        &mut self,
        call: impl FnOnce(&mut dyn Dataplane) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        if self.dice.shows(self.faults.fail) {
            self.injected.failed.fetch_add(1, Relaxed);
            return Err(Failure::other("injected: not done"));
        }
        let done = call(&mut *self.inner)?;
        if self.dice.shows(self.faults.forget) {
            self.injected.forgotten.fetch_add(1, Relaxed);
            return Err(Failure::other("injected: done and forgotten"));
        }
        Ok(done)
    }
}

impl Dataplane for Faulty {
    fn probe(&mut self, node: &NodeIntent) -> Result<(), Failure> {
        self.inner.probe(node)
    }

    fn configure(&mut self, settings: &Settings) {
        self.inner.configure(settings);
    }

    fn start(&mut self, intent: &Intent) -> Result<Outcome, Failure> {
        self.attempt(|inner| inner.start(intent))
    }

    fn change(&mut self, changes: Vec<Change>) -> Result<Outcome, Failure> {
        let refuse = self.faults.refuse;
        let (refused, taken): (Vec<Change>, Vec<Change>) =
            changes.into_iter().partition(|_| self.dice.shows(refuse));
        self.injected.refused.fetch_add(refused.len(), Relaxed);
        let mut outcome = self.attempt(|inner| inner.change(taken))?;
        let reason = |(service, _): Change| Refusal { service, reason: "injected".into() };
        outcome.refused.extend(refused.into_iter().map(reason));
        Ok(outcome)
    }

    fn change_node(&mut self, node: NodeIntent) -> Result<Outcome, Failure> {
        self.attempt(|inner| inner.change_node(node))
    }

    fn has_node(&mut self, node: &NodeIntent) -> Result<bool, Failure> {
        self.inner.has_node(node)
    }

    fn acknowledged(&self) -> &Acknowledged {
        self.inner.acknowledged()
    }

    fn preview(&mut self, intent: &Intent) -> Result<Preview, Failure> {
        self.inner.preview(intent)
    }

    fn cleanup(&mut self) -> Result<Vec<String>, Failure> {
        self.inner.cleanup()
    }

    fn shortcomings(&self, service: &ServiceIntent) -> Vec<Diagnostic> {
        self.inner.shortcomings(service)
    }

    fn choice_of_endpoints(&self) -> Option<ChoiceOfEndpoints> {
        self.inner.choice_of_endpoints()
    }

    fn persists(&mut self) -> Option<&mut dyn Persists> {
        self.inner.persists()
    }

    fn verifies(&mut self) -> Option<&mut dyn Verifies> {
        self.inner.verifies()
    }

    fn watches(&mut self) -> Option<&mut dyn Watches> {
        self.inner.watches().is_some().then_some(self)
    }

    fn tidies(&mut self) -> Option<&mut dyn Tidies> {
        self.inner.tidies()
    }

    fn drains(&mut self) -> Option<&mut dyn Drains> {
        self.inner.drains()
    }

    fn takes_over(&mut self) -> Option<&mut dyn TakesOver> {
        self.inner.takes_over()
    }

    fn hands_over(&mut self) -> Option<&mut dyn HandsOver> {
        self.inner.hands_over()
    }

    fn counts_rules(&self) -> Option<&dyn CountsRules> {
        self.inner.counts_rules()
    }

    fn counts_refusals(&self) -> Option<&dyn CountsRefusals> {
        self.inner.counts_refusals()
    }

    fn signs_of_life(&mut self) -> Option<&mut dyn SignsOfLife> {
        self.inner.signs_of_life()
    }

    fn counts_traffic(&self) -> Option<Box<dyn CountsTraffic>> {
        self.inner.counts_traffic()
    }

    fn counts_packets(&self) -> Option<Box<dyn CountsPackets>> {
        self.inner.counts_packets()
    }

    fn translates_sockets(&self) -> Option<Box<dyn TranslatesSockets>> {
        self.inner.translates_sockets()
    }

    fn sweeps_connections(&self) -> Option<Box<dyn SweepsConnections>> {
        self.inner.sweeps_connections()
    }

    fn ejects(&self) -> Option<Box<dyn Ejects>> {
        self.inner.ejects()
    }
}

impl Watches for Faulty {
    fn watch(&mut self, notify: Notify) -> Result<(), Failure> {
        let (dice, lose, injected) = (self.dice.clone(), self.faults.lose, self.injected());
        let Some(watches) = self.inner.watches() else { return Ok(()) };
        let lost = move || {
            let is_lost = dice.shows(lose);
            injected.lost.fetch_add(usize::from(is_lost), Relaxed);
            is_lost
        };
        watches.watch(Box::new(move |what| lost() || notify(what)))
    }
}

/// A random number generator that clones share (splitmix64).
#[derive(Debug, Clone)]
struct Dice {
    state: Arc<Mutex<u64>>,
}

impl Dice {
    fn new(seed: u64) -> Dice {
        Dice { state: Arc::new(Mutex::new(seed)) }
    }

    fn shows(&self, percent: u8) -> bool {
        let mut state: MutexGuard<'_, u64> = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = *state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % 100 < u64::from(percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A method with a default is easily forgotten here. This wrapper then hides what the dataplane below can do.
    #[test]
    fn every_method_of_the_contract_is_forwarded() {
        let methods = |text: &'static str| text.lines().filter_map(|it| it.strip_prefix("    fn "));
        let name = |line: &'static str| line.split('(').next().unwrap_or_default();
        let (contract, here) = (include_str!("../dataplane.rs"), include_str!("faulty.rs"));
        let forwarded: Vec<&str> = methods(here).map(name).collect();
        let missing: Vec<&str> = methods(contract).map(name).filter(|it| !forwarded.contains(it)).collect();
        assert_eq!(missing, [""; 0]);
        assert!(methods(contract).count() > 20);
    }

    #[test]
    fn the_same_seed_gives_the_same_faults() {
        let rolls = |seed| {
            let dice = Dice::new(seed);
            (0..1000).map(|_| dice.shows(20)).collect::<Vec<_>>()
        };
        assert_eq!(rolls(7), rolls(7));
        assert_ne!(rolls(7), rolls(8));
        let hits = rolls(7).into_iter().filter(|hit| *hit).count();
        assert!((150..250).contains(&hits), "{hits} of 1000 at 20 percent");
    }

    #[test]
    fn no_faults_are_no_faults() {
        let dice = Dice::new(1);
        assert!((0..1000).all(|_| !dice.shows(0)));
    }
}
