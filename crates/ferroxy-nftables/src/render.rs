//! Intent to State: the program for this node, and the elements each Service is.
//!
//! Pure and deterministic. [`elements`] is the whole meaning of a Service in this dataplane, used to make it, to
//! change it and to remove it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ferroxy_core::intent::NodePortAddresses;
use ferroxy_core::{Endpoint, Family, Frontend, Intent, NodeIntent, PortIntent, Route, ServiceIntent};
use ferroxy_netlink::nftables::COMMENT_MAX;
use ipnet::IpNet;

use crate::chain::{ChainId, Kind, Pool, Treatment};
use crate::element::{Element, Key, LOCAL_SLOTS, Scope, SetId, Value};
use crate::place::frontend_key;
use crate::program;
use crate::state::{State, Table};

/// The ruleset for an Intent, in these families.
pub fn render(intent: &Intent, families: &[Family]) -> State {
    let mut state = State::default();
    for family in families {
        state.tables.insert(*family, empty_table(&intent.node, *family));
    }
    for service in intent.services.values() {
        elements(service, &mut |family, element| {
            if let Some(table) = state.tables.get_mut(&family) {
                table.insert(element);
            }
        });
    }
    for (family, table) in &mut state.tables {
        let wanted: BTreeSet<ChainId> = table.elements().flat_map(|element| chains_of(&element)).collect();
        add_on_demand_chains(table, wanted, &intent.node, *family);
    }
    state
}

/// The program with no Service in it.
pub fn empty_table(node: &NodeIntent, family: Family) -> Table {
    let mut table = Table {
        sets: program::sets(node, family).into_iter().map(|set| (set.name.clone(), set)).collect(),
        chains: program::chains(node, family).into_iter().collect(),
        ..Table::default()
    };
    node_elements(node, family).for_each(|element| table.insert(element));
    table
}

/// The elements that belong to the node and not to a Service.
pub fn node_elements(node: &NodeIntent, family: Family) -> impl Iterator<Item = Element> {
    let addresses = match &node.family(family).node_port_addresses {
        NodePortAddresses::These(addresses) => addresses.iter().copied().collect(),
        NodePortAddresses::AllLocal => Vec::new(),
    };
    addresses.into_iter().map(|address| member(SetId::NodePortIps, Key::EMPTY.address(address)))
}

/// Hands every element of a Service to `emit`, in a fixed order. Elements of shared sets may come more than once.
pub fn elements(service: &ServiceIntent, emit: &mut dyn FnMut(Family, Element)) {
    for address in &service.cluster_ips {
        emit(Family::of(*address), member(SetId::ClusterIps, Key::EMPTY.address(*address)));
    }
    for port in &service.ports {
        let comment = comment(service, port);
        let writer = PortWriter { port, comment };
        for frontend in &port.frontends {
            writer.frontend(frontend, &mut |element| emit(port.family, element));
        }
        writer.hairpins(&mut |element| emit(port.family, element));
    }
}

/// The name of the Service port, cut as the kernel's side will cut it, so that it compares equal. Names are ASCII.
fn comment(service: &ServiceIntent, port: &PortIntent) -> Arc<str> {
    let mut name = service.name.port(&port.name);
    name.truncate(COMMENT_MAX);
    name.into()
}

/// Adds the chains that are not always there.
pub fn add_on_demand_chains(
    table: &mut Table,
    wanted: impl IntoIterator<Item = ChainId>,
    node: &NodeIntent,
    family: Family,
) {
    for chain in wanted {
        table.chains.insert(chain.to_string(), program::on_demand_chain(chain, node, family));
        chain.element().into_iter().for_each(|element| table.insert(element));
    }
}

/// The chains an element needs.
pub fn chains_of(element: &Element) -> Vec<ChainId> {
    match element.value {
        Value::Goto(chain) => chain.with_needs(),
        Value::Treatment(treatment) => ChainId::Treat(treatment).with_needs(),
        _ => Vec::new(),
    }
}

fn member(set: SetId, key: Key) -> Element {
    Element { set, key, value: Value::Member, comment: None }
}

struct PortWriter<'a> {
    port: &'a PortIntent,
    comment: Arc<str>,
}

impl PortWriter<'_> {
    fn frontend(&self, frontend: &Frontend, emit: &mut dyn FnMut(Element)) {
        let (scope, key) = frontend_key(self.port, frontend);
        let (cluster, local) = (&self.port.cluster, &self.port.local);
        let cluster_ip = self.either(Kind::Pick(Pool::Main), Kind::Sticky(Pool::Main));
        self.source_ranges(frontend, key, emit);
        match frontend.route {
            Route::Reject => return self.nowhere(scope, key, emit),
            Route::Drop => return self.elsewhere(scope, key, emit),
            Route::Cluster => self.treated(scope, key, cluster_ip, cluster, emit),
            // The only pool of this frontend: it takes the place of the cluster-wide one.
            Route::Local => self.treated(scope, key, cluster_ip, local, emit),
            Route::ExternalCluster => {
                self.treated(scope, key, self.either(Kind::External, Kind::StickyExternal), cluster, emit);
            }
            Route::ExternalLocal => {
                let kind = self.either(Kind::ExternalLocal, Kind::StickyExternalLocal);
                self.treated(scope, key, kind, cluster, emit);
                if local.is_empty() {
                    self.elsewhere(scope, key, emit);
                } else {
                    self.treated_locally(scope, key, local, emit);
                }
            }
        }
        if let Some(seconds) = self.port.affinity {
            let value = Value::Goto(ChainId::Learn(scope, seconds));
            emit(Element { set: SetId::AffinityTimeouts(scope), key, value, comment: None });
        }
    }

    fn either(&self, plain: Kind, sticky: Kind) -> Kind {
        if self.port.affinity.is_some() { sticky } else { plain }
    }

    fn treated(&self, scope: Scope, key: Key, kind: Kind, pool: &[Endpoint], emit: &mut dyn FnMut(Element)) {
        let comment = Some(self.comment.clone());
        if let (Kind::Pick(Pool::Main), Scope::Address, [endpoint]) = (kind, scope, pool) {
            let value = Value::Endpoint(endpoint.ip, endpoint.port);
            return emit(Element { set: SetId::SoleEndpoints, key, value, comment });
        }
        let value = Value::Treatment(Treatment::new(kind, scope, pool.len()));
        emit(Element { set: SetId::Frontends(scope), key, value, comment });
        self.endpoints(SetId::Endpoints(scope), SetId::StickyEndpoints(scope), key, 0, pool, emit);
    }

    fn treated_locally(&self, scope: Scope, key: Key, pool: &[Endpoint], emit: &mut dyn FnMut(Element)) {
        let kind = self.either(Kind::Pick(Pool::Local), Kind::Sticky(Pool::Local));
        let value = Value::Treatment(Treatment::new(kind, scope, pool.len()));
        emit(Element { set: SetId::LocalFrontends(scope), key, value, comment: None });
        let sticky = SetId::StickyLocalEndpoints(scope);
        self.endpoints(SetId::Endpoints(scope), sticky, key, LOCAL_SLOTS, pool, emit);
    }

    fn nowhere(&self, scope: Scope, key: Key, emit: &mut dyn FnMut(Element)) {
        let comment = Some(self.comment.clone());
        emit(Element { set: SetId::NoEndpoints(scope), key, value: Value::Member, comment });
    }

    fn elsewhere(&self, scope: Scope, key: Key, emit: &mut dyn FnMut(Element)) {
        self.nowhere(scope, key, emit);
        emit(member(SetId::NoLocalEndpoints(scope), key));
    }

    fn endpoints(
        &self,
        set: SetId,
        sticky: SetId,
        frontend: Key,
        first_slot: u32,
        pool: &[Endpoint],
        emit: &mut dyn FnMut(Element),
    ) {
        for (slot, endpoint) in (first_slot..).zip(pool) {
            let value = Value::Endpoint(endpoint.ip, endpoint.port);
            let key = Key::EMPTY.number(slot).then(&frontend);
            emit(Element { set, key, value, comment: None });
        }
        if self.port.affinity.is_some() {
            self.sticky(sticky, frontend, pool, emit);
        }
    }

    /// A client sticks to an address. Should an address serve one Service port on several ports (two pods on a
    /// host's network, say), its clients stick to the lowest of them.
    fn sticky(&self, set: SetId, frontend: Key, pool: &[Endpoint], emit: &mut dyn FnMut(Element)) {
        let mut endpoints: Vec<&Endpoint> = pool.iter().collect();
        endpoints.sort_unstable();
        endpoints.dedup_by_key(|endpoint| endpoint.ip);
        for endpoint in endpoints {
            let value = Value::Goto(ChainId::To(endpoint.port));
            emit(Element { set, key: frontend.address(endpoint.ip), value, comment: None });
            emit(member(SetId::StickyAddresses, Key::EMPTY.address(endpoint.ip)));
        }
    }

    fn source_ranges(&self, frontend: &Frontend, key: Key, emit: &mut dyn FnMut(Element)) {
        let Some(ranges) = &frontend.allowed_sources else { return };
        emit(member(SetId::Firewalled, key));
        // The kernel refuses ranges that overlap.
        for range in IpNet::aggregate(ranges) {
            let (key, value) = (key.address(range.network()), Value::UpTo(range.broadcast()));
            emit(Element { set: SetId::AllowedSources, key, value, comment: None });
        }
    }

    /// A pod on this node that may be sent to itself: without masquerading it would answer itself directly.
    fn hairpins(&self, emit: &mut dyn FnMut(Element)) {
        let uses = |routes: &[Route]| self.port.frontends.iter().any(|f| routes.contains(&f.route));
        let mut endpoints: BTreeSet<(IpAddr, u16)> = BTreeSet::new();
        let local = |pool: &[Endpoint]| -> Vec<_> {
            pool.iter().filter(|e| e.is_local).map(|e| (e.ip, e.port)).collect()
        };
        if uses(&[Route::Cluster, Route::ExternalCluster, Route::ExternalLocal]) {
            endpoints.extend(local(&self.port.cluster));
        }
        if uses(&[Route::Local, Route::ExternalLocal]) {
            endpoints.extend(local(&self.port.local));
        }
        for (ip, port) in endpoints {
            let key = Key::EMPTY.address(ip).address(ip).protocol(self.port.protocol).port(port);
            emit(member(SetId::Hairpins, key));
        }
    }
}
