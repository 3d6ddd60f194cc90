//! The running wrapper, on Linux: the packets' dataplane does everything, and sockets follow what it has in force.
//!
//! Order of a change: first, outdated frontends are removed, then the dataplane below changes, then slots and frontends are
//! written. So packets can reach every endpoint that sockets can. Failures of sockets are never failures of the dataplane.

mod generation;
mod ground;
mod hook;
mod report;
mod self_test;
mod sockets;
mod traffic;

use std::path::Path;
use std::sync::Arc;

use ferroxy_core::{Diagnostic, Intent, NodeIntent, ServiceIntent, ServiceName};
use tracing::warn;

use ferroxy_dataplane::{
    Acknowledged, Change, Changed, ChoiceOfEndpoints, CountsPackets, CountsRefusals, CountsRules,
    CountsTraffic, Dataplane, Drains, Ejects, Failure, HandsOver, Outcome, Persists, Preview, Programmed,
    Repair, Settings, SignsOfLife, SweepsConnections, TakesOver, Tidies, TranslatesSockets, Verifies,
    Watches,
};

use self::hook::Hook;
use self::sockets::Sockets;
use crate::diff::Unknown;
use crate::options::Options;

/// A dataplane that serves packets, with sockets translated above it.
#[derive(Debug)]
pub struct Accelerated {
    packets: Box<dyn Dataplane>,
    sockets: Sockets,
    /// The node as the agent passed it. The dataplane below gets it without the addresses of the host.
    node: NodeIntent,
}

impl Accelerated {
    pub fn new(packets: Box<dyn Dataplane>, options: Options) -> Accelerated {
        Accelerated { packets, sockets: Sockets::new(options), node: NodeIntent::default() }
    }

    fn choice(&self) -> Option<ChoiceOfEndpoints> {
        self.packets.choice_of_endpoints()
    }
}

/// The node without the fields that only sockets use.
fn for_packets(node: &NodeIntent) -> NodeIntent {
    NodeIntent { host_addresses: Default::default(), ..node.clone() }
}

impl Dataplane for Accelerated {
    fn probe(&mut self, node: &NodeIntent) -> Result<(), Failure> {
        // Sockets that cannot be translated do not prevent the start, which logs the reason.
        self.packets.probe(&for_packets(node))
    }

    fn configure(&mut self, settings: &Settings) {
        self.packets.configure(settings);
    }

    fn start(&mut self, intent: &Intent) -> Result<Outcome, Failure> {
        self.node = intent.node.clone();
        let below = Intent { node: for_packets(&intent.node), services: intent.services.clone() };
        let mut outcome = self.packets.start(&below)?;
        outcome.operations += self.sockets.start(self.packets.acknowledged(), &self.node, self.choice());
        Ok(outcome)
    }

    fn change(&mut self, changes: Vec<Change>) -> Result<Outcome, Failure> {
        let names: Vec<ServiceName> = changes.iter().map(|(name, _)| name.clone()).collect();
        let mut before = self.sockets.before(self.packets.acknowledged(), &names);
        let wanted = changes.iter().filter_map(|(_, service)| service.as_ref());
        let mut writes = self.sockets.withdraw(&mut before, wanted);
        let outcome = self.packets.change(changes);
        // Even after a failure: sockets follow what the dataplane below has in force.
        writes += self.sockets.publish(self.packets.acknowledged(), &names, &before);
        let mut outcome = outcome?;
        outcome.operations += writes;
        Ok(outcome)
    }

    fn change_node(&mut self, node: NodeIntent) -> Result<Outcome, Failure> {
        let below = for_packets(&node);
        let mut outcome = match self.packets.has_node(&below)? {
            true => Outcome::default(),
            false => self.packets.change_node(below)?,
        };
        outcome.operations += self.sockets.change_node(self.packets.acknowledged(), &node, self.choice());
        self.node = node;
        Ok(outcome)
    }

    fn has_node(&mut self, node: &NodeIntent) -> Result<bool, Failure> {
        Ok(self.node.host_addresses == node.host_addresses && self.packets.has_node(&for_packets(node))?)
    }

    fn acknowledged(&self) -> &Acknowledged {
        self.packets.acknowledged()
    }

    fn preview(&mut self, intent: &Intent) -> Result<Preview, Failure> {
        let below = Intent { node: for_packets(&intent.node), services: intent.services.clone() };
        let mut preview = self.packets.preview(&below)?;
        let plan = self.sockets.preview(intent, self.choice());
        preview.operations.extend(plan.ops().map(ToString::to_string));
        preview.text.push_str(&plan.to_string());
        Ok(preview)
    }

    fn cleanup(&mut self) -> Result<Vec<String>, Failure> {
        let mut removed = remove_pins(self.sockets.pins()).map_err(Failure::other)?;
        removed.extend(self.packets.cleanup()?);
        Ok(removed)
    }

    fn choice_of_endpoints(&self) -> Option<ChoiceOfEndpoints> {
        self.choice()
    }

    fn shortcomings(&self, service: &ServiceIntent) -> Vec<Diagnostic> {
        self.packets.shortcomings(service)
    }

    fn persists(&mut self) -> Option<&mut dyn Persists> {
        self.packets.persists().is_some().then_some(self)
    }

    fn verifies(&mut self) -> Option<&mut dyn Verifies> {
        Some(self)
    }

    fn watches(&mut self) -> Option<&mut dyn Watches> {
        self.packets.watches()
    }

    fn tidies(&mut self) -> Option<&mut dyn Tidies> {
        self.packets.tidies()
    }

    fn drains(&mut self) -> Option<&mut dyn Drains> {
        self.packets.drains()
    }

    fn takes_over(&mut self) -> Option<&mut dyn TakesOver> {
        self.packets.takes_over()
    }

    fn hands_over(&mut self) -> Option<&mut dyn HandsOver> {
        self.packets.hands_over()
    }

    fn counts_refusals(&self) -> Option<&dyn CountsRefusals> {
        self.packets.counts_refusals()
    }

    fn counts_rules(&self) -> Option<&dyn CountsRules> {
        self.packets.counts_rules()
    }

    fn signs_of_life(&mut self) -> Option<&mut dyn SignsOfLife> {
        self.packets.signs_of_life()
    }

    fn counts_traffic(&self) -> Option<Box<dyn CountsTraffic>> {
        let packets = self.packets.counts_traffic()?;
        Some(Box::new(traffic::Reader { packets, report: self.sockets.report() }))
    }

    fn counts_packets(&self) -> Option<Box<dyn CountsPackets>> {
        self.packets.counts_packets()
    }

    fn translates_sockets(&self) -> Option<Box<dyn TranslatesSockets>> {
        Some(Box::new(self.sockets.report()))
    }

    fn sweeps_connections(&self) -> Option<Box<dyn SweepsConnections>> {
        self.packets.sweeps_connections()
    }

    fn ejects(&self) -> Option<Box<dyn Ejects>> {
        self.packets.ejects()
    }
}

/// Only if the dataplane below has this capability.
impl Persists for Accelerated {
    fn is_cold(&mut self) -> Result<bool, Failure> {
        self.packets.persists().map_or(Ok(true), |it| it.is_cold())
    }

    fn keep_unknown(&mut self, keep: bool) {
        self.sockets.unknown = if keep { Unknown::Keep } else { Unknown::Remove };
        if let Some(persists) = self.packets.persists() {
            persists.keep_unknown(keep);
        }
    }

    fn programmed(&mut self, intent: &Intent, service: &Arc<ServiceIntent>) -> Result<Programmed, Failure> {
        let below = Intent { node: for_packets(&intent.node), services: intent.services.clone() };
        self.packets.persists().map_or(Ok(Programmed::Nothing), |it| it.programmed(&below, service))
    }
}

impl Verifies for Accelerated {
    /// Nothing notifies about changes of maps and links: everything is compared.
    fn changed_by_others(&mut self) -> Result<Changed, Failure> {
        let below = self.packets.verifies().map_or(Ok(Changed::Nothing), |it| it.changed_by_others())?;
        if let Err(error) = self.sockets.forget_flows(self.packets.acknowledged()) {
            warn!("cannot delete unused connection counters of accelerated sockets: {error}");
        }
        let differs =
            self.sockets.differences(self.packets.acknowledged()).map_or(true, |found| !found.is_empty());
        Ok(if differs || self.sockets.has_more_ground() { Changed::Ours } else { below })
    }

    fn verify(&mut self) -> Result<Repair, Failure> {
        let mut repair = self.packets.verifies().map_or(Ok(Repair::default()), |it| it.verify())?;
        let repaired =
            self.sockets.repair(self.packets.acknowledged(), &self.node, self.packets.choice_of_endpoints());
        repair.operations += repaired.operations;
        repair.examples.extend(repaired.examples);
        Ok(repair)
    }
}

/// Removes everything that is pinned in this directory: first the links, so that nothing is translated any more, then the
/// rest. Returns what was removed, in words. A start without sockets calls it, too: pins of an earlier run would stay unchanged.
pub fn remove_pins(pins: &Path) -> Result<Vec<String>, generation::GenerationError> {
    let mut removed = Vec::new();
    for hook in Hook::ALL {
        if hook.remove(pins)? {
            removed.push(format!("program {} for sockets", hook.name()));
        }
    }
    generation::remove_all(pins)?;
    Ok(removed)
}

pub use generation::GenerationError;
