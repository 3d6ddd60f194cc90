//! The capabilities of ipvs mode.
//!
//! The kernel sends no notification when a virtual server or a set changes. Therefore everything is compared every
//! `syncPeriod`: a listing costs a few microseconds for each Service, and there is no cheaper way to see that an endpoint is
//! missing. Changes of the device's addresses, and of chains of the nft variant of iptables, are reported at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroxy_core::{Intent, ServiceIntent};
use ferroxy_dataplane::capability::Notify;
use ferroxy_dataplane::capability::leftovers::{Established, InForce, Leftovers};
use ferroxy_dataplane::{
    Changed, Drains, Failure, Outcome, Persists, Programmed, Repair, SignsOfLife, TakesOver, Verifies,
    Watches,
};
use ferroxy_iptables::tool::Variant;
use ferroxy_iptables::watch::watch_chains;
use ferroxy_netfilter::leftovers::{self, Own};

use super::apply::place;
use super::observe::observe;
use super::{Ipvs, examples, receipt};
use crate::doors::Error;
use crate::plan::Plan;
use crate::program::owns;
use crate::render::{Surroundings, fragment};
use crate::watch::watch_device;

/// How often the connections of draining endpoints are counted.
const DRAIN_PERIOD: Duration = Duration::from_secs(5);

impl Persists for Ipvs {
    fn is_cold(&mut self) -> Result<bool, Failure> {
        Ok(observe(&mut self.doors)?.is_empty())
    }

    fn keep_unknown(&mut self, keep: bool) {
        self.keep_unknown = keep;
    }

    /// Parts are virtual servers, set members and addresses.
    fn programmed(&mut self, intent: &Intent, service: &Arc<ServiceIntent>) -> Result<Programmed, Failure> {
        let (observed, parameters) = (observe(&mut self.doors)?, self.parameters()?);
        if observed.is_empty() {
            return Ok(Programmed::Nothing);
        }
        let families = self.doors.families();
        let surroundings = Surroundings { node: &intent.node, parameters: &parameters, families: &families };
        let expected = fragment(service, surroundings);
        let servers = expected.servers.iter().chain(&expected.node_port_servers);
        let (mut right, mut wanted) = (0, 0);
        let mut count = |is_right: bool| {
            wanted += 1;
            right += usize::from(is_right);
        };
        servers.for_each(|(at, server)| count(observed.servers.get(at) == Some(server)));
        expected.members.iter().for_each(|(name, member)| count(observed.has_member(*name, member)));
        let on_device = |ip| observed.device.as_ref().is_some_and(|device| device.contains(ip));
        expected.addresses.iter().for_each(|ip| count(on_device(ip)));
        Ok(Programmed::Parts { right, wanted })
    }
}

impl Verifies for Ipvs {
    fn changed_by_others(&mut self) -> Result<Changed, Failure> {
        Ok(Changed::Ours)
    }

    fn verify(&mut self) -> Result<Repair, Failure> {
        // Node ports must also answer on addresses that the node got since the last change.
        let node = self.ledger.node().clone();
        if !self.is_programmed_for(&node)? {
            self.replace_node(node)?;
        }
        let plan = self.difference(self.ledger.state())?;
        let applied = self.carry_out(&plan)?;
        let remaining = if plan.is_empty() { Plan::default() } else { self.difference(self.ledger.state())? };
        Ok(Repair {
            receipt: receipt(&applied),
            operations: plan.len(),
            examples: examples(&plan),
            unrepaired: (!remaining.is_empty()).then(|| examples(&remaining).join("; ")),
        })
    }
}

impl Watches for Ipvs {
    fn watch(&mut self, notify: Notify) -> Result<(), Failure> {
        let notify: Arc<dyn Fn(&'static str) -> bool + Send + Sync> = share(notify);
        if self.doors.rules.iter().any(|door| door.variant == Variant::NfTables) {
            let of_chains = Arc::clone(&notify);
            let listener = watch_chains(owns, |_| {}, Box::new(move |reason| of_chains(reason)))?;
            self.doors.bystander.listener = Some(listener);
        }
        watch_device(self.on_device.clone(), Box::new(move |reason| notify(reason)))
    }
}

/// Shares the callback between the two threads that call it.
fn share(notify: Notify) -> Arc<dyn Fn(&'static str) -> bool + Send + Sync> {
    let notify = std::sync::Mutex::new(notify);
    Arc::new(move |reason| notify.lock().unwrap_or_else(std::sync::PoisonError::into_inner)(reason))
}

impl Ipvs {
    /// As [`drain`](Drains::drain), at this time.
    pub fn drain_at(&mut self, now: Instant) -> Result<Outcome, Failure> {
        Ok(self.remove_drained(now.saturating_duration_since(self.opened))?)
    }

    fn remove_drained(&mut self, now: Duration) -> Result<Outcome, Error> {
        let mut connections = BTreeMap::new();
        for address in self.drains.servers().collect::<Vec<_>>() {
            for found in self.doors.balancer.destinations(&place(&address))? {
                // Inactive connections still wait for late packets.
                let count = found.active + found.inactive;
                connections.insert((address, found.destination.address), count);
            }
        }
        let plan = self.drains.due(now, |at, endpoint| connections.get(&(*at, *endpoint)).copied());
        let was_certain = self.is_certain;
        let outcome = self.carry_out_all(&plan)?;
        self.is_certain = was_certain;
        Ok(outcome)
    }
}

impl Drains for Ipvs {
    fn drain(&mut self) -> Result<Outcome, Failure> {
        self.drain_at(Instant::now())
    }

    fn next_look(&self) -> Option<Duration> {
        (self.draining() > 0).then_some(DRAIN_PERIOD)
    }
}

impl SignsOfLife for Ipvs {
    fn show_life(&mut self, alive: Box<dyn Fn() + Send>) {
        self.doors.bystander.sign_of_life = Some(alive);
    }
}

impl TakesOver for Ipvs {
    fn remove_leftovers(&mut self, in_force: InForce, established: Established) -> Leftovers {
        let own = (in_force == InForce::Yes).then_some(Own::Ipvs);
        leftovers::remove(own, established)
    }
}
