//! The running dataplane: keeps the proxy, and the addresses that it listens on, at what the Intent asks for.
//!
//! The [`Ledger`] has the wanted State, `in_force` the State of the engine and the interface. A change compares the two where it
//! affects them, so an attempt that fails half-way needs no bookkeeping. `capability.rs` has the capabilities.

mod apply;
mod capability;
pub mod interface;
pub mod journal;
mod observe;

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;

use ferroxy_core::{
    Cause, Diagnostic, Family, Intent, NodeIntent, Object, Protocol, ServiceIntent, ServiceName,
};
use ferroxy_dataplane::{
    Acknowledged, Change, CountsPackets, CountsTraffic, Dataplane, Ejects, Failure, FailureKind, HandsOver,
    Outcome, Persists, Preview, Refusal, Settings as Values, Verifies,
};
use ferroxy_pools::{Meter, Reader};
use ferroxy_proxy::Engine;

use self::apply::Applied;
use self::interface::Interface;
use self::journal::Journal;
use crate::diff::diff;
use crate::ledger::Ledger;
use crate::settings::Settings;
use crate::state::State;

#[derive(Debug)]
pub struct Winuserspace {
    /// For the next `start` or `change_node`. The ledger has those in force.
    settings: Settings,
    ledger: Ledger,
    interface: Box<dyn Interface>,
    journal: Journal,
    /// Started with the first listener.
    engine: Option<Arc<Engine>>,
    in_force: State,
    keep_unknown: bool,
    meter: Meter,
    traffic: Reader,
}

impl Winuserspace {
    /// `path`: the journal of our addresses.
    pub fn open(
        families: &[Family],
        values: &Values,
        interface: Box<dyn Interface>,
        path: &Path,
    ) -> Result<Winuserspace, Failure> {
        let settings = Settings::read(values);
        let journal = Journal::open(path, interface.name())
            .map_err(|error| failed("cannot read which addresses are ours", &error))?;
        let meter = Meter::default();
        Ok(Winuserspace {
            ledger: Ledger::new(families, NodeIntent::default(), settings.clone()),
            interface,
            journal,
            engine: None,
            in_force: State::default(),
            keep_unknown: false,
            traffic: Reader::new(&meter),
            meter,
            settings,
        })
    }

    /// The State of the engine and the interface.
    pub fn in_force(&self) -> &State {
        &self.in_force
    }

    fn started(&mut self) -> Result<&Engine, Failure> {
        if self.engine.is_none() {
            let engine = Engine::start(ferroxy_proxy::Settings::default()).map_err(Failure::other)?;
            let engine = Arc::new(engine);
            self.meter.read_from(&engine);
            self.engine = Some(engine);
        }
        self.engine.as_deref().ok_or_else(|| Failure::other("the proxy is not running"))
    }

    /// The wanted State, and addresses that must be kept besides.
    fn wanted(&self) -> State {
        let mut wanted = self.ledger.state();
        if self.keep_unknown {
            wanted.addresses.extend(self.journal.ours());
        }
        wanted
    }

    /// Brings everything to what the ledger says. The outcome lists these Services one by one.
    fn catch_up(&mut self, changes: &[Change]) -> Result<Outcome, Failure> {
        self.leave_other_interface()?;
        let wanted = self.wanted();
        self.look(&wanted)?;
        let applied = self.carry_out(&diff(&self.in_force, &wanted))?;
        Ok(self.outcome(changes, applied))
    }

    /// Records the Services that are in force.
    fn outcome(&mut self, changes: &[Change], applied: Applied) -> Outcome {
        let mut refused = Vec::new();
        for (name, service) in changes.iter().filter_map(|(name, it)| Some((name, it.as_ref()?))) {
            if let Some(reason) = applied.reason(&self.ledger.fragment(service)) {
                refused.push(Refusal { service: name.clone(), reason });
            }
        }
        let names: BTreeSet<ServiceName> = refused.iter().map(|it| it.service.clone()).collect();
        self.ledger.settle(changes.iter().map(|(name, _)| name), &names);
        Outcome { operations: applied.operations, refused, drift: applied.is_left, ..Outcome::default() }
    }

    /// Follows all Services again: counting may have been switched on or off.
    fn follow_traffic(&self) {
        let in_force = self.ledger.acknowledged();
        let services = in_force.services().filter(|_| in_force.node().count_traffic);
        self.traffic.follow_all(services.map(|(name, it)| (name, ServiceIntent::clone(&it))));
    }
}

fn failed(what: &str, error: &io::Error) -> Failure {
    let kind = match error.kind() {
        io::ErrorKind::PermissionDenied => FailureKind::NotPermitted,
        io::ErrorKind::Unsupported => FailureKind::Unsupported,
        _ => FailureKind::Other,
    };
    Failure::new(kind, format!("{what}: {error}"))
}

impl Dataplane for Winuserspace {
    fn probe(&mut self, _: &NodeIntent) -> Result<(), Failure> {
        self.present().map(drop)
    }

    /// Only the idle time of UDP sessions changes while we run.
    fn configure(&mut self, values: &Values) {
        self.settings.udp_idle = Settings::read(values).udp_idle;
    }

    fn start(&mut self, intent: &Intent) -> Result<Outcome, Failure> {
        self.ledger.set_node(intent.node.clone(), self.settings.clone());
        let gone = self.ledger.wanted_names().filter(|name| !intent.services.contains_key(*name));
        let mut changes: Vec<Change> = gone.map(|name| (name.clone(), None)).collect();
        changes.extend(intent.services.iter().map(|(name, it)| (name.clone(), Some(it.clone()))));
        self.ledger.want(&changes);
        let outcome = self.catch_up(&changes)?;
        self.follow_traffic();
        Ok(outcome)
    }

    fn change(&mut self, changes: Vec<Change>) -> Result<Outcome, Failure> {
        let touched = self.ledger.want(&changes);
        let plan = diff(&touched.part_of(&self.in_force), &touched.wanted);
        let applied = self.carry_out(&plan)?;
        if self.ledger.acknowledged().node().count_traffic {
            let served = |service: &Arc<ServiceIntent>| ServiceIntent::clone(service);
            self.traffic.follow(changes.iter().map(|(name, it)| (name, it.as_ref().map(served))));
        }
        Ok(self.outcome(&changes, applied))
    }

    fn change_node(&mut self, node: NodeIntent) -> Result<Outcome, Failure> {
        self.ledger.set_node(node, self.settings.clone());
        let services = self.ledger.acknowledged().services();
        let changes: Vec<Change> = services.map(|(name, it)| (name.clone(), Some(it))).collect();
        let outcome = self.catch_up(&changes)?;
        self.follow_traffic();
        Ok(outcome)
    }

    fn has_node(&mut self, node: &NodeIntent) -> Result<bool, Failure> {
        Ok(self.ledger.has_node(node, &self.settings))
    }

    fn acknowledged(&self) -> &Acknowledged {
        self.ledger.acknowledged()
    }

    /// Addresses are compared. Listeners belong to the running process and are not compared.
    fn preview(&mut self, intent: &Intent) -> Result<Preview, Failure> {
        let wanted = crate::render(intent, &self.settings, self.ledger.families());
        let present = self.present()?;
        let known = self.journal.ours().union(&wanted.addresses);
        let addresses = known.filter(|ip| present.contains(*ip)).copied().collect();
        let plan = diff(&State { addresses, ..wanted.clone() }, &wanted);
        Ok(Preview {
            text: plan.to_string(),
            operations: plan.ops().iter().map(ToString::to_string).collect(),
        })
    }

    fn cleanup(&mut self) -> Result<Vec<String>, Failure> {
        self.close_everything();
        let present = if self.journal.ours().is_empty() { BTreeSet::new() } else { self.present()? };
        let ours: Vec<_> = self.journal.ours().iter().copied().collect();
        let mut applied = Applied::default();
        self.remove_addresses(ours.clone(), &mut applied);
        if let Some(reason) = applied.addresses.into_values().next() {
            return Err(Failure::other(reason));
        }
        self.journal.delete().map_err(|error| failed("cannot remove the list of our addresses", &error))?;
        let families = self.ledger.families().to_vec();
        self.ledger = Ledger::new(&families, NodeIntent::default(), self.settings.clone());
        self.in_force = State::default();
        let removed = ours.into_iter().filter(|ip| present.contains(ip));
        Ok(removed.map(|ip| format!("address {ip}")).collect())
    }

    fn shortcomings(&self, service: &ServiceIntent) -> Vec<Diagnostic> {
        let has_sctp = service.ports.iter().any(|port| port.protocol == Protocol::Sctp);
        let sctp = has_sctp.then(|| Diagnostic {
            object: Object::service(&service.name),
            field: "spec.ports[*].protocol".to_owned(),
            reason: "Windows has no SCTP".to_owned(),
            effect: "the port is not served".to_owned(),
            cause: Cause::Field,
        });
        sctp.into_iter().collect()
    }

    fn persists(&mut self) -> Option<&mut dyn Persists> {
        Some(self)
    }

    fn verifies(&mut self) -> Option<&mut dyn Verifies> {
        Some(self)
    }

    fn hands_over(&mut self) -> Option<&mut dyn HandsOver> {
        Some(self)
    }

    fn counts_packets(&self) -> Option<Box<dyn CountsPackets>> {
        Some(Box::new(self.meter.clone()))
    }

    fn counts_traffic(&self) -> Option<Box<dyn CountsTraffic>> {
        Some(Box::new(self.traffic.clone()))
    }

    fn ejects(&self) -> Option<Box<dyn Ejects>> {
        Some(Box::new(self.meter.clone()))
    }
}
