//! Which addresses the host has, and which of them are ours.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ferroxy_dataplane::Failure;

use super::{Winuserspace, failed};
use crate::state::{State, needed_address};

impl Winuserspace {
    pub(super) fn present(&mut self) -> Result<BTreeSet<IpAddr>, Failure> {
        self.interface.present().map_err(|error| failed("cannot list the host's addresses", &error))
    }

    /// Compares the addresses that are in force with those that the host has. Addresses of `wanted` that the host has anyway need
    /// no operation.
    pub(super) fn look(&mut self, wanted: &State) -> Result<(), Failure> {
        let present = self.present()?;
        // An interface that is down has none of its addresses, and all of them when it is up again: wanted addresses stay ours.
        let gone = self.journal.ours().iter().filter(|ip| !present.contains(ip));
        let gone: Vec<IpAddr> = gone.filter(|ip| !wanted.addresses.contains(ip)).copied().collect();
        self.remember_less(&gone);
        let known = self.journal.ours().union(&wanted.addresses);
        let now: BTreeSet<IpAddr> = known.filter(|ip| present.contains(*ip)).copied().collect();
        let lost: BTreeSet<IpAddr> = self.in_force.addresses.difference(&now).copied().collect();
        self.close_at(&lost);
        self.in_force.addresses = now;
        Ok(())
    }

    /// A socket on an address that was removed may receive nothing after the address returns.
    fn close_at(&mut self, lost: &BTreeSet<IpAddr>) {
        if lost.is_empty() {
            return;
        }
        let mut change = ferroxy_proxy::Change::default();
        for (key, frontend) in &self.in_force.frontends {
            if needed_address(key, frontend).is_some_and(|ip| lost.contains(&ip)) {
                change.remove_frontend(key.clone());
            }
        }
        for key in change.frontends.keys() {
            self.in_force.frontends.remove(key);
        }
        if let Some(engine) = &self.engine {
            engine.apply(change);
        }
    }
}
