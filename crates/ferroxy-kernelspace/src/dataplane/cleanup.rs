//! Removes everything of ours from HNS, in every network: a cleanup knows no network name, and networks come and go.
//!
//! Endpoints that a load balancer of another program names stay, because HNS refuses to delete them.

use std::collections::BTreeSet;

use ferroxy_dataplane::capability::leftovers::Leftovers;
use ferroxy_hcn::{ErrorKind, Guid, Kind};

use super::document::{read_balancer, read_endpoint};
use super::error::Error;
use super::mirror::Mirror;
use super::{Kernelspace, Seen};
use crate::text;

impl Kernelspace {
    /// What was removed, in words.
    pub(super) fn remove_everything(&mut self) -> Result<Vec<String>, Error> {
        self.look_at_all_networks()?;
        let mut removed = Vec::new();
        for (id, at) in self.mirror.own_balancers() {
            self.hcn.delete(Kind::LoadBalancer, id).map_err(|error| error.about(text::frontend(&at)))?;
            self.mirror.forget_balancer(id);
            removed.push(format!("loadbalancer {}", text::frontend(&at)));
            self.show_life();
        }
        removed.extend(self.remove_endpoints()?);
        Ok(removed)
    }

    /// Removes kube-proxy's load balancers that no other program can have made, and the endpoints that only they named.
    pub(super) fn remove_all_leftovers(&mut self) -> Leftovers {
        let mut leftovers = Leftovers::default();
        if let Err(error) = self.look_at_all_networks() {
            leftovers.failed.push(error.to_string());
            return leftovers;
        }
        self.delete_leftovers(|_| false, &mut leftovers);
        match self.remove_endpoints() {
            Ok(removed) => leftovers.removed.extend(removed),
            Err(error) => leftovers.failed.push(error.to_string()),
        }
        leftovers
    }

    /// Removes endpoints of ours that no load balancer names.
    fn remove_endpoints(&mut self) -> Result<Vec<String>, Error> {
        let named: BTreeSet<Guid> =
            self.mirror.balancers.values().flat_map(|seen| &seen.ids).copied().collect();
        let mut removed = Vec::new();
        for (id, words) in self.mirror.own_endpoints() {
            if named.contains(&id) {
                continue;
            }
            match self.hcn.delete(Kind::Endpoint, id) {
                // An object that we cannot read names this endpoint.
                Err(error) if error.kind() == ErrorKind::HasReferences => continue,
                done => done.map_err(|error| error.about(&words))?,
            }
            self.mirror.forget_endpoint(id);
            removed.push(words);
            self.show_life();
        }
        Ok(removed)
    }

    /// Replaces the mirror: the next change or verification looks at its own network again.
    fn look_at_all_networks(&mut self) -> Result<(), Error> {
        self.features()?;
        self.is_certain = false;
        self.mirror = Mirror::default();
        for id in self.hcn.all_endpoints()? {
            if let Seen::There(document) = self.seen(id, |hcn| hcn.endpoint(id))? {
                let network = document.host_compute_network.unwrap_or(Guid::ZERO);
                self.mirror.enter_endpoint(id, read_endpoint(network, id, &document));
            }
            self.show_life();
        }
        for id in self.hcn.load_balancers()? {
            if let Seen::There(document) = self.seen(id, |hcn| hcn.load_balancer(id))? {
                self.mirror.enter_balancer(id, read_balancer(id, &document));
            }
            self.show_life();
        }
        Ok(())
    }
}
