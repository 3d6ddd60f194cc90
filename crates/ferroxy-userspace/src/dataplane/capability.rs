//! The capabilities of userspace mode. Those that concern rules are nftables mode's own.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ferroxy_core::{Family, Intent, ServiceIntent};
use ferroxy_dataplane::capability::Notify;
use ferroxy_dataplane::capability::connections::{Connection, Selection};
use ferroxy_dataplane::capability::leftovers::{Established, InForce, Leftovers};
use ferroxy_dataplane::{
    Changed, Failure, HandsOver, Outcome, Persists, Programmed, Repair, SweepsConnections, TakesOver, Tidies,
    Verifies, Watches,
};
use ferroxy_iptables::watch::watch_chains;
use ferroxy_netfilter::connections::Conntrack;
use ferroxy_netfilter::leftovers::{self, Own};

use super::Userspace;
use super::engine::Proxy;
use super::remnants;
use super::rules::Door;
use crate::portals;
use crate::render::assign;
use crate::settings::Settings;

impl Persists for Userspace {
    fn is_cold(&mut self) -> Result<bool, Failure> {
        match &mut self.door {
            Door::Nftables(nftables) => nftables.is_cold(),
            Door::Iptables(portals) => portals.is_cold(),
            Door::None => Ok(true),
        }
    }

    fn keep_unknown(&mut self, keep: bool) {
        if let Door::Nftables(nftables) = &mut self.door {
            nftables.keep_unknown(keep);
        }
    }

    /// Parts are elements of rules: listeners belong to the process that has them.
    fn programmed(&mut self, intent: &Intent, service: &Arc<ServiceIntent>) -> Result<Programmed, Failure> {
        if self.proxy.is_none() {
            self.begin(intent)?;
            assign(self.ledger.ports_mut(), intent, &self.settings);
        }
        let seen = Arc::new(self.ledger.scene().for_rules(&self.ledger.in_families(service)));
        match &mut self.door {
            Door::Nftables(nftables) => nftables.programmed(intent, &seen),
            _ => Ok(Programmed::Nothing),
        }
    }
}

impl Verifies for Userspace {
    fn changed_by_others(&mut self) -> Result<Changed, Failure> {
        match &mut self.door {
            Door::Nftables(nftables) => nftables.changed_by_others(),
            Door::Iptables(_) => Ok(Changed::Ours),
            Door::None => Ok(Changed::Nothing),
        }
    }

    fn verify(&mut self) -> Result<Repair, Failure> {
        let mut repair = self.door.verify()?;
        let missing = self.add_own_routes()?;
        if missing > 0 {
            repair.operations += missing;
            repair.examples.push("add the local routes to the proxy's addresses".into());
        }
        Ok(repair)
    }
}

impl Watches for Userspace {
    fn watch(&mut self, notify: Notify) -> Result<(), Failure> {
        match &mut self.door {
            Door::Nftables(nftables) => nftables.watch(notify),
            Door::Iptables(portals) => {
                portals.bystander.listener = Some(watch_chains(portals::owns, |_| {}, notify)?);
                Ok(())
            }
            Door::None => Ok(()),
        }
    }
}

impl Tidies for Userspace {
    fn tidy(&mut self) -> Result<Outcome, Failure> {
        match &mut self.door {
            Door::Nftables(nftables) => nftables.tidy(),
            _ => Ok(Outcome::default()),
        }
    }
}

impl TakesOver for Userspace {
    fn remove_leftovers(&mut self, in_force: InForce, established: Established) -> Leftovers {
        match &mut self.door {
            Door::Nftables(nftables) => nftables.remove_leftovers(in_force, established),
            Door::Iptables(_) => {
                leftovers::remove((in_force == InForce::Yes).then_some(Own::Portals), established)
            }
            Door::None => Leftovers::default(),
        }
    }

    fn not_replaced(&mut self) -> Result<Vec<Family>, Failure> {
        let mut alone = match &mut self.door {
            Door::Nftables(nftables) => nftables.not_replaced()?,
            _ => Vec::new(),
        };
        let remnants = remnants::find(self.ledger.families())?;
        alone.extend(remnants.iter().filter(|it| !it.is_replaced).map(|it| it.family));
        Ok(alone)
    }
}

impl HandsOver for Userspace {
    fn is_superseded(&self) -> bool {
        self.proxy.as_ref().is_some_and(Proxy::is_superseded)
    }

    fn finish(&mut self, grace: Duration) -> usize {
        self.proxy.take().map_or(0, |proxy| proxy.stop(grace))
    }
}

/// Connections to the proxy never become stale: it decides where their datagrams go. All others are judged as in other modes.
pub(super) fn sweeper(settings: &Settings) -> Box<dyn SweepsConnections> {
    let own = Family::ALL.map(|family| settings.proxy().address(family));
    Box::new(Sweeper { own, table: Conntrack })
}

#[derive(Debug)]
struct Sweeper {
    own: [IpAddr; 2],
    table: Conntrack,
}

impl SweepsConnections for Sweeper {
    fn sweep(
        &mut self,
        selection: &[Selection],
        judge: &mut dyn FnMut(&[Connection]) -> Vec<bool>,
        deleted: &mut dyn FnMut(Family, u64),
    ) -> Result<(), Failure> {
        let own = self.own;
        let mut judge_others = |found: &[Connection]| {
            let mut verdicts = judge(found);
            for (stale, connection) in verdicts.iter_mut().zip(found) {
                *stale &= !own.contains(&connection.endpoint.ip());
            }
            verdicts
        };
        self.table.sweep(selection, &mut judge_others, deleted)
    }
}
