//! A dataplane whose kernel is a map in memory. Tests look into that map, change it behind the dataplane's back, and
//! keep it over a restart. A journal has all calls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ferroxy_core::{Cause, Diagnostic, Intent, NodeIntent, Object, ServiceIntent, ServiceName};

use crate::capability::{Changed, Drains, Notify, Persists, Tidies, Verifies, Watches};
use crate::{
    Acknowledged, Change, ChoiceOfEndpoints, Dataplane, Failure, Outcome, Preview, Programmed, Refusal,
    Repair,
};

/// The state that outlives the process. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Kernel {
    contents: Arc<Mutex<Contents>>,
}

#[derive(Default)]
struct Contents {
    node: Option<NodeIntent>,
    services: BTreeMap<ServiceName, Arc<ServiceIntent>>,
    journal: Vec<String>,
    notify: Option<Notify>,
    script: Script,
}

/// The faults that the test requests.
#[derive(Debug, Default)]
struct Script {
    failures: usize,
    refused: Vec<ServiceName>,
    unrepairable: Option<String>,
    draining: usize,
    tidying_finds_drift: bool,
    shortcoming: Option<String>,
}

impl std::fmt::Debug for Contents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Contents").field("services", &self.services).finish_non_exhaustive()
    }
}

impl Kernel {
    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A kernel in which something is in force already: a start is not a cold one.
    pub fn warm() -> Kernel {
        let kernel = Kernel::default();
        kernel.contents().node = Some(NodeIntent::default());
        kernel
    }

    /// The Intent in force now, whichever program changed it last.
    pub fn intent(&self) -> Intent {
        let contents = self.contents();
        Intent { node: contents.node.clone().unwrap_or_default(), services: contents.services.clone() }
    }

    /// The calls of the dataplane since the last `take_journal`, one line each.
    pub fn take_journal(&self) -> Vec<String> {
        std::mem::take(&mut self.contents().journal)
    }

    /// This many of the next attempts fail as a whole.
    pub fn fail_next(&self, attempts: usize) {
        self.contents().script.failures = attempts;
    }

    /// These Services are refused from now on.
    pub fn refuse(&self, services: &[ServiceName]) {
        self.contents().script.refused = services.to_vec();
    }

    /// No verification repairs this.
    pub fn break_for_good(&self, what: Option<&str>) {
        self.contents().script.unrepairable = what.map(str::to_owned);
    }

    /// After this many calls of `drain`, nothing drains any more.
    pub fn drain_for(&self, looks: usize) {
        self.contents().script.draining = looks;
    }

    pub fn let_tidying_find_drift(&self) {
        self.contents().script.tidying_finds_drift = true;
    }

    /// The dataplane reports this shortcoming for every Service.
    pub fn fall_short(&self, reason: &str) {
        self.contents().script.shortcoming = Some(reason.to_owned());
    }

    /// Another program removes a Service, and the watch is notified.
    pub fn tamper(&self, service: &ServiceName) {
        let mut contents = self.contents();
        contents.services.remove(service);
        if let Some(notify) = &contents.notify {
            notify("a Service was removed by another program");
        }
    }
}

#[derive(Debug, Default)]
pub struct Memory {
    kernel: Kernel,
    acknowledged: Acknowledged,
    keep_unknown: bool,
}

impl Memory {
    pub fn new(kernel: &Kernel) -> Memory {
        Memory { kernel: kernel.clone(), ..Memory::default() }
    }

    fn attempt<'n>(
        &self,
        what: &str,
        names: impl IntoIterator<Item = &'n ServiceName>,
    ) -> Result<MutexGuard<'_, Contents>, Failure> {
        let mut contents = self.kernel.contents();
        let names: Vec<String> = names.into_iter().map(ToString::to_string).collect();
        contents.journal.push(format!("{what} {}", names.join(" ")).trim_end().to_owned());
        if contents.script.failures > 0 {
            contents.script.failures -= 1;
            return Err(Failure::other("the test says no"));
        }
        Ok(contents)
    }

    fn program(&mut self, changes: Vec<Change>) -> Outcome {
        let mut outcome = Outcome::default();
        let mut contents = self.kernel.contents();
        for (name, service) in changes {
            if contents.script.refused.contains(&name) {
                outcome.refused.push(Refusal { service: name, reason: "the test refuses it".into() });
                continue;
            }
            if contents.services.get(&name) != service.as_ref() {
                outcome.operations += 1;
                match &service {
                    Some(service) => contents.services.insert(name.clone(), Arc::clone(service)),
                    None => contents.services.remove(&name),
                };
            }
            self.acknowledged.set_service(&name, service);
        }
        outcome.receipt.messages = outcome.operations;
        outcome
    }

    fn stale(&self, wanted: &BTreeMap<ServiceName, Arc<ServiceIntent>>) -> Vec<Change> {
        let contents = self.kernel.contents();
        let unknown =
            contents.services.keys().filter(|name| !self.keep_unknown && !wanted.contains_key(*name));
        unknown.map(|name| (name.clone(), None)).collect()
    }
}

impl Dataplane for Memory {
    fn start(&mut self, intent: &Intent) -> Result<Outcome, Failure> {
        self.attempt("start", intent.services.keys())?.node = Some(intent.node.clone());
        self.acknowledged = Acknowledged::new(intent.node.clone());
        let wanted = intent.services.iter().map(|(name, service)| (name.clone(), Some(Arc::clone(service))));
        let stale = self.stale(&intent.services);
        Ok(self.program(wanted.chain(stale).collect()))
    }

    fn change(&mut self, changes: Vec<Change>) -> Result<Outcome, Failure> {
        drop(self.attempt("change", changes.iter().map(|(name, _)| name))?);
        Ok(self.program(changes))
    }

    fn change_node(&mut self, node: NodeIntent) -> Result<Outcome, Failure> {
        self.attempt("node", [])?.node = Some(node.clone());
        self.acknowledged.set_node(node);
        Ok(Outcome { operations: 1, ..Outcome::default() })
    }

    fn acknowledged(&self) -> &Acknowledged {
        &self.acknowledged
    }

    fn preview(&mut self, intent: &Intent) -> Result<Preview, Failure> {
        let in_force = self.kernel.intent();
        let all = intent.services.keys().chain(in_force.services.keys()).collect::<BTreeSet<_>>();
        let differs = |name: &&ServiceName| intent.services.get(*name) != in_force.services.get(*name);
        let mut names: Vec<String> = all.into_iter().filter(differs).map(ToString::to_string).collect();
        if intent.node != in_force.node {
            names.push("the node's own settings".into());
        }
        Ok(Preview { text: names.join("\n"), operations: names })
    }

    fn cleanup(&mut self) -> Result<Vec<String>, Failure> {
        let mut contents = self.attempt("cleanup", [])?;
        let removed = contents.services.keys().map(ToString::to_string).collect();
        (contents.node, contents.services) = (None, BTreeMap::new());
        Ok(removed)
    }

    fn shortcomings(&self, service: &ServiceIntent) -> Vec<Diagnostic> {
        let diagnostic = |reason| Diagnostic {
            object: Object::service(&service.name),
            field: "spec".to_owned(),
            reason,
            effect: "it is left out".to_owned(),
            cause: Cause::Field,
        };
        self.kernel.contents().script.shortcoming.clone().map(diagnostic).into_iter().collect()
    }

    fn choice_of_endpoints(&self) -> Option<ChoiceOfEndpoints> {
        Some(ChoiceOfEndpoints::ByClient)
    }

    fn persists(&mut self) -> Option<&mut dyn Persists> {
        Some(self)
    }

    fn verifies(&mut self) -> Option<&mut dyn Verifies> {
        Some(self)
    }

    fn watches(&mut self) -> Option<&mut dyn Watches> {
        Some(self)
    }

    fn tidies(&mut self) -> Option<&mut dyn Tidies> {
        Some(self)
    }

    fn drains(&mut self) -> Option<&mut dyn Drains> {
        Some(self)
    }
}

impl Persists for Memory {
    fn is_cold(&mut self) -> Result<bool, Failure> {
        Ok(self.kernel.contents().node.is_none())
    }

    fn keep_unknown(&mut self, keep: bool) {
        self.keep_unknown = keep;
    }

    fn programmed(&mut self, _: &Intent, service: &Arc<ServiceIntent>) -> Result<Programmed, Failure> {
        let contents = self.kernel.contents();
        let right = usize::from(contents.services.get(&service.name) == Some(service));
        Ok(if contents.node.is_none() { Programmed::Nothing } else { Programmed::Parts { right, wanted: 1 } })
    }
}

impl Verifies for Memory {
    fn changed_by_others(&mut self) -> Result<Changed, Failure> {
        let wanted = self.acknowledged.services();
        let is_same = wanted.eq(self.kernel.contents().services.iter().map(|(name, it)| (name, it.clone())));
        Ok(if is_same { Changed::Nothing } else { Changed::Ours })
    }

    fn verify(&mut self) -> Result<Repair, Failure> {
        drop(self.attempt("verify", [])?);
        let wanted: BTreeMap<_, _> =
            self.acknowledged.services().map(|(name, service)| (name.clone(), service)).collect();
        let mut repair = self.stale(&wanted);
        repair.extend(wanted.into_iter().map(|(name, service)| (name, Some(service))));
        let Outcome { receipt, operations, .. } = self.program(repair);
        let unrepaired = self.kernel.contents().script.unrepairable.clone();
        Ok(Repair { receipt, operations, examples: Vec::new(), unrepaired })
    }
}

impl Watches for Memory {
    fn watch(&mut self, notify: Notify) -> Result<(), Failure> {
        self.kernel.contents().notify = Some(notify);
        Ok(())
    }
}

impl Tidies for Memory {
    fn tidy(&mut self) -> Result<Outcome, Failure> {
        let contents = self.attempt("tidy", [])?;
        match contents.script.tidying_finds_drift {
            true => Err(Failure::new(crate::FailureKind::Drift, "not as expected")),
            false => Ok(Outcome::default()),
        }
    }
}

impl Drains for Memory {
    fn drain(&mut self) -> Result<Outcome, Failure> {
        let mut contents = self.attempt("drain", [])?;
        contents.script.draining = contents.script.draining.saturating_sub(1);
        Ok(Outcome::default())
    }

    fn next_look(&self) -> Option<Duration> {
        (self.kernel.contents().script.draining > 0).then_some(Duration::from_secs(5))
    }
}
