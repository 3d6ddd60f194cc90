//! Reads what an earlier run left in the kernel: rules, the ports that they lead to, and routes.

use ferroxy_core::Intent;
use ferroxy_dataplane::Failure;

use super::rules::Door;
use super::{Userspace, adopt};
use crate::ledger::Ledger;
use crate::ports::Ports;
use crate::render::assign_redirects;
use crate::state::State;

impl Userspace {
    /// A first start: takes the ports that the rules of an earlier run name.
    pub(super) fn begin(&mut self, intent: &Intent) -> Result<(), Failure> {
        let families = self.ledger.families().to_vec();
        self.ledger = Ledger::new(&families, intent.node.clone(), self.settings.clone());
        let mut ports = Ports::new(self.settings.ports.clone());
        match &mut self.door {
            Door::Nftables(nftables) => {
                adopt::adopt(&nftables.observe()?, intent, &self.settings, &mut ports);
            }
            Door::Iptables(portals) => adopt::adopt_portals(&portals.observe()?, intent, &mut ports),
            Door::None => {}
        }
        assign_redirects(&mut ports, &self.settings);
        *self.ledger.ports_mut() = ports;
        Ok(())
    }

    /// The State of the kernel, with the listeners of `wanted`: only the process that has the listeners knows them.
    pub(super) fn observe(&mut self, wanted: &State) -> Result<State, Failure> {
        let mut seen = wanted.clone();
        seen.routes = self.routes.seen()?;
        match &mut self.door {
            Door::Nftables(nftables) => seen.rules.nftables = nftables.observe()?,
            Door::Iptables(portals) => seen.rules.iptables = portals.observe()?,
            Door::None => {}
        }
        Ok(seen)
    }
}
