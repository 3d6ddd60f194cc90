//! Reads HNS: the network, then ids, then new objects, those that others may have changed, and a share of the rest.
//!
//! A call without an answer ends a look with an error: what was seen before stays known, and nothing counts as absent.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ferroxy_core::NodeIntent;
use ferroxy_hcn::{ErrorKind, Features, Guid, Kind, Network};
use tracing::{info, warn};

use super::document::{read_balancer, read_endpoint};
use super::error::Error;
use super::glance::Glance;
use super::mirror::Mirror;
use super::{Kernelspace, Seen};
use crate::state::Mac;
use crate::surroundings::{Overlay, Surroundings};

/// Names of endpoints that network plugins make for the source VIP.
const SOURCE_VIP_ENDPOINTS: [&str; 2] = ["sourcevip", "Calico_ep"];

/// A look reads one in this many known objects again: others may have changed them in a way that no list shows.
const SHARES: u8 = 20;

impl Kernelspace {
    /// Reads what changed since the last look.
    pub(super) fn look(&mut self, node: &NodeIntent) -> Result<(), Error> {
        self.is_certain = false;
        self.features()?;
        // Subscribes before anything is read, so that later changes are announced.
        self.listen();
        let network = self.find_network()?;
        self.look_at_endpoints(true)?;
        self.look_at_balancers(true)?;
        self.turn = (self.turn + 1) % SHARES;
        if self.turn == 0 {
            self.mirror.release_held();
        }
        let surroundings = self.surroundings_of(&network, node)?;
        let host_mac = surroundings.overlay.as_ref().map(|overlay| overlay.host_mac);
        self.mirror.set_host_mac(host_mac);
        if self.surroundings.as_ref() != Some(&surroundings) {
            self.surroundings = Some(surroundings);
            self.are_surroundings_new = true;
        }
        self.is_certain = true;
        Ok(())
    }

    /// Queried once: the answer does not change while the system runs.
    pub(super) fn features(&mut self) -> Result<Features, Error> {
        if let Some(features) = self.features {
            return Ok(features);
        }
        let version = self.hcn.version()?;
        let features = Features::from(version);
        if !features.v2 {
            return Err(Error::TooOld(version));
        }
        if self.options.enable_dsr && !features.dsr {
            return Err(Error::NoDsr(version));
        }
        info!("HNS {version}: {features:?}");
        self.features = Some(features);
        Ok(features)
    }

    /// The network by its name. Another id is accepted only if the old one is gone.
    pub(super) fn find_network(&mut self) -> Result<Network, Error> {
        let name = self.options.network.clone().ok_or(Error::NoNetworkName)?;
        let Some(network) = self.hcn.network(&name)? else {
            let others = self.hcn.network_names().unwrap_or_default().join(", ");
            return Err(Error::NoNetwork { name, others });
        };
        let id = network.id.unwrap_or(Guid::ZERO);
        match self.network {
            Some(known) if known == id => {}
            Some(known) if self.hcn.exists(Kind::Network, known)? => {
                return Err(Error::Refused(format!("HNS has two networks {name}: {known} and {id}")));
            }
            known => {
                if known.is_some() {
                    warn!(
                        "the network {name} was recreated with the id {id}: programming all Services again"
                    );
                }
                self.hcn.forget_network();
                self.mirror = Mirror::default();
                self.network = Some(id);
            }
        }
        Ok(network)
    }

    /// Whether the routes of the overlay are those that are known. Network plugins add one for each new node, and HNS does
    /// not announce it.
    pub(super) fn has_routes_of(&mut self, known: &Surroundings) -> Result<bool, Error> {
        let Some(overlay) = &known.overlay else { return Ok(true) };
        let before = self.network;
        self.is_certain = false;
        let network = self.find_network()?;
        let is_same = self.network == before
            && Overlay::routes_of(&network) == overlay.routes
            && Overlay::own_of(&network) == overlay.own;
        self.is_certain = is_same;
        Ok(is_same)
    }

    /// `again`: also reads known endpoints that others may have changed, and a share of the rest.
    pub(super) fn look_at_endpoints(&mut self, again: bool) -> Result<(), Error> {
        let Some(network) = self.network else { return Ok(()) };
        let mut ids: BTreeSet<Guid> = self.hcn.endpoints(network)?.into_iter().collect();
        let gone: Vec<Guid> = self.mirror.endpoints.keys().filter(|id| !ids.contains(id)).copied().collect();
        gone.into_iter().for_each(|id| self.mirror.forget_endpoint(id));
        let has_known = again && !self.mirror.endpoints.is_empty();
        let glance = if has_known { self.glance_at_endpoints(network)? } else { Glance::default() };
        for id in ids.clone() {
            if self.mirror.endpoints.contains_key(&id)
                && !(again && (self.is_due(id) || glance.is_doubtful(id)))
            {
                continue;
            }
            match self.seen(id, |hcn| hcn.endpoint(id))? {
                Seen::There(document) => {
                    self.mirror.enter_endpoint(id, read_endpoint(network, id, &document));
                }
                Seen::Gone => self.mirror.forget_endpoint(id),
                // Its print is not recorded, so the next look tries again.
                Seen::Unreadable => drop(ids.remove(&id)),
            }
            self.show_life();
        }
        self.mirror.set_prints(glance.prints_of(&ids));
        Ok(())
    }

    pub(super) fn look_at_balancers(&mut self, again: bool) -> Result<(), Error> {
        let mut ids: BTreeSet<Guid> = self.hcn.load_balancers()?.into_iter().collect();
        let gone: Vec<Guid> = self.mirror.balancers.keys().filter(|id| !ids.contains(id)).copied().collect();
        gone.into_iter().for_each(|id| self.mirror.forget_balancer(id));
        let has_known = again && !self.mirror.balancers.is_empty();
        let glance = if has_known { self.glance_at_balancers()? } else { Glance::default() };
        for id in ids.clone() {
            if self.mirror.is_balancer_known(id) && !(again && (self.is_due(id) || glance.is_doubtful(id))) {
                continue;
            }
            match self.seen(id, |hcn| hcn.load_balancer(id))? {
                Seen::There(document) => self.mirror.enter_balancer(id, read_balancer(id, &document)),
                Seen::Gone => self.mirror.forget_balancer(id),
                Seen::Unreadable => {
                    ids.remove(&id);
                    self.mirror.enter_unreadable_balancer(id);
                }
            }
            self.show_life();
        }
        self.mirror.set_prints(glance.prints_of(&ids));
        Ok(())
    }

    fn is_due(&self, id: Guid) -> bool {
        id.0[15] % SHARES == self.turn
    }

    /// An object that cannot be read is another program's, and left alone.
    pub(super) fn seen<T>(
        &mut self,
        id: Guid,
        get: impl FnOnce(&mut ferroxy_hcn::Hcn) -> Result<Option<T>, ferroxy_hcn::Error>,
    ) -> Result<Seen<T>, Error> {
        match get(&mut self.hcn) {
            Ok(Some(document)) => Ok(Seen::There(document)),
            Ok(None) => Ok(Seen::Gone),
            Err(error) if error.kind() == ErrorKind::Unknown => Err(error.into()),
            Err(error) => {
                warn!("an object of HNS is left alone, because it cannot be read: {id}: {error}");
                Ok(Seen::Unreadable)
            }
        }
    }

    fn surroundings_of(&mut self, network: &Network, node: &NodeIntent) -> Result<Surroundings, Error> {
        let overlay = if network.is_overlay() { Some(self.overlay(network, node)?) } else { None };
        let root = match &self.options.root_endpoint {
            Some(name) => self.root(name),
            None => [None; 2],
        };
        let features = self.features()?;
        Ok(Surroundings { features, overlay, enable_dsr: self.options.enable_dsr, root })
    }

    fn overlay(&self, network: &Network, node: &NodeIntent) -> Result<Overlay, Error> {
        let source_vip = match &self.options.source_vip {
            Some(written) => self.options.source_vip().ok_or_else(|| Error::BadSourceVip(written.clone()))?,
            None => self.found_source_vip().ok_or_else(|| Error::NoSourceVip(network.name.clone()))?,
        };
        let node_ip = ferroxy_core::Family::ALL.into_iter().find_map(|family| node.family(family).node_ip);
        let node_ip = node_ip.ok_or(Error::NoNodeIp)?;
        let host_mac = (self.mac_of.0)(node_ip).ok_or(Error::NoMac(node_ip))?;
        self.check_source_vip(source_vip, host_mac)?;
        let (routes, own) = (Overlay::routes_of(network), Overlay::own_of(network));
        Ok(Overlay { routes, own, source_vip, host_mac })
    }

    /// A pod with the source VIP would get the answers to all connections through load balancers. If it appears later, we only log
    /// it: stopping would harm all other Services.
    fn check_source_vip(&self, ip: IpAddr, host_mac: Mac) -> Result<(), Error> {
        let is_for_it = |name: &str| SOURCE_VIP_ENDPOINTS.iter().any(|it| it.eq_ignore_ascii_case(name));
        let holders = self.mirror.of_others_at(ip);
        // kube-proxy's endpoint for the source VIP has no name, and the host's hardware address.
        let mut strangers = holders.filter(|seen| !is_for_it(&seen.name) && seen.endpoint.mac != host_mac);
        let Some(stranger) = strangers.next() else { return Ok(()) };
        let error = Error::SourceVipTaken { ip, name: stranger.name.clone() };
        let is_in_use = self.surroundings.as_ref().and_then(|it| it.overlay.as_ref());
        if is_in_use.is_some_and(|overlay| overlay.source_vip == ip) {
            warn!("{error}; connections through load balancers may fail");
            return Ok(());
        }
        Err(error)
    }

    fn found_source_vip(&self) -> Option<IpAddr> {
        let found = SOURCE_VIP_ENDPOINTS.iter().find_map(|name| self.mirror.named(name))?;
        found.ips.first().copied()
    }

    fn root(&self, name: &str) -> [Option<IpAddr>; 2] {
        let Some(seen) = self.mirror.named(name) else {
            warn!(
                "health checks are not forwarded: HNS has no endpoint {name} (winkernel.rootHnsEndpointName)"
            );
            return [None; 2];
        };
        let first = |is_v4: bool| seen.ips.iter().copied().find(|ip| ip.is_ipv4() == is_v4);
        [first(true), first(false)]
    }
}
