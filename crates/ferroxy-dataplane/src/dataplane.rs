//! The trait that every dataplane implements. Abilities that only some dataplanes have are capabilities.

use std::fmt::Debug;

use ferroxy_core::{Diagnostic, Intent, NodeIntent, ServiceIntent};

use crate::acknowledged::Acknowledged;
use crate::capability::{
    CountsPackets, CountsRefusals, CountsRules, CountsTraffic, Drains, Ejects, HandsOver, Persists,
    SignsOfLife, SweepsConnections, TakesOver, Tidies, TranslatesSockets, Verifies, Watches,
};
use crate::failure::Failure;
use crate::outcome::{Change, ChoiceOfEndpoints, Outcome, Preview};
use crate::settings::Settings;

/// Keeps the programmed state equal to the Intents that it was last given. It has no queue and no clock of its own: the
/// agent decides when to try, and when to retry.
pub trait Dataplane: Debug + Send {
    /// Checks that this host can do what the dataplane needs. Changes nothing.
    fn probe(&mut self, _: &NodeIntent) -> Result<(), Failure> {
        Ok(())
    }

    /// New settings. They take effect with the next `start` or `change_node`.
    fn configure(&mut self, _: &Settings) {}

    /// Changes the state in force to this Intent. Applies only the difference.
    fn start(&mut self, intent: &Intent) -> Result<Outcome, Failure>;

    /// Changes some Services. Refused ones are named; all others are in force.
    fn change(&mut self, changes: Vec<Change>) -> Result<Outcome, Failure>;

    /// Changes what concerns the node as a whole.
    fn change_node(&mut self, node: NodeIntent) -> Result<Outcome, Failure>;

    /// Whether `change_node` would do nothing.
    fn has_node(&mut self, node: &NodeIntent) -> Result<bool, Failure> {
        Ok(self.acknowledged().node() == node)
    }

    /// The Intents in force.
    fn acknowledged(&self) -> &Acknowledged;

    /// What `start` would do now.
    fn preview(&mut self, intent: &Intent) -> Result<Preview, Failure>;

    /// Removes everything that this mode programs: a diff to nothing. Returns what was removed, in words.
    fn cleanup(&mut self) -> Result<Vec<String>, Failure>;

    /// Diagnostics for what a Service requests and this dataplane cannot do.
    fn shortcomings(&self, _: &ServiceIntent) -> Vec<Diagnostic> {
        Vec::new()
    }

    /// How endpoints are chosen for clients on this node, if their sockets may be connected to endpoints directly,
    /// bypassing this dataplane. `None`: they may not.
    fn choice_of_endpoints(&self) -> Option<ChoiceOfEndpoints> {
        None
    }

    // Capabilities: `None` means "does not apply to this dataplane". The answer does not change while it runs.

    fn persists(&mut self) -> Option<&mut dyn Persists> {
        None
    }

    fn verifies(&mut self) -> Option<&mut dyn Verifies> {
        None
    }

    fn watches(&mut self) -> Option<&mut dyn Watches> {
        None
    }

    fn tidies(&mut self) -> Option<&mut dyn Tidies> {
        None
    }

    fn drains(&mut self) -> Option<&mut dyn Drains> {
        None
    }

    fn takes_over(&mut self) -> Option<&mut dyn TakesOver> {
        None
    }

    fn hands_over(&mut self) -> Option<&mut dyn HandsOver> {
        None
    }

    fn counts_rules(&self) -> Option<&dyn CountsRules> {
        None
    }

    fn counts_refusals(&self) -> Option<&dyn CountsRefusals> {
        None
    }

    fn signs_of_life(&mut self) -> Option<&mut dyn SignsOfLife> {
        None
    }

    // Capabilities that run on threads of their own, beside the dataplane, are returned as owned values.

    fn counts_traffic(&self) -> Option<Box<dyn CountsTraffic>> {
        None
    }

    fn counts_packets(&self) -> Option<Box<dyn CountsPackets>> {
        None
    }

    fn translates_sockets(&self) -> Option<Box<dyn TranslatesSockets>> {
        None
    }

    fn sweeps_connections(&self) -> Option<Box<dyn SweepsConnections>> {
        None
    }

    fn ejects(&self) -> Option<Box<dyn Ejects>> {
        None
    }
}
