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

use crate::element::{ChainId, Element, Key, LOCAL_SLOTS, Scope, SetId, Value};
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
        let wanted: BTreeSet<ChainId> = table.elements().flat_map(|element| on_demand(&element)).collect();
        add_on_demand_chains(table, wanted, &intent.node, *family);
    }
    state
}

/// The program with no Service in it.
pub fn empty_table(node: &NodeIntent, family: Family) -> Table {
    let mut table = Table {
        sets: program::sets(family).into_iter().map(|set| (set.name.clone(), set)).collect(),
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
    }
}

/// The chains an element needs and that are not always there.
pub fn on_demand(element: &Element) -> impl Iterator<Item = ChainId> + use<> {
    let chain = match element.value {
        Value::Goto(chain) => Some(chain),
        _ => None,
    };
    chain.into_iter().flat_map(ChainId::on_demand)
}

fn member(set: SetId, key: Key) -> Element {
    Element { set, key, value: Value::Member, comment: None }
}

struct PortWriter<'a> {
    port: &'a PortIntent,
    comment: Arc<str>,
}

/// Which endpoints: where they are put, and how they are picked.
struct Pool<'a> {
    endpoints: &'a [Endpoint],
    first_slot: u32,
    picks: SetId,
    sticky: SetId,
    pick: ChainId,
}

impl PortWriter<'_> {
    fn frontend(&self, frontend: &Frontend, emit: &mut dyn FnMut(Element)) {
        let (scope, key) = frontend_key(self.port, frontend);
        self.source_ranges(frontend, key, emit);
        let cluster = Pool {
            endpoints: &self.port.cluster,
            first_slot: 0,
            picks: SetId::Picks(scope),
            sticky: SetId::StickyEndpoints(scope),
            pick: ChainId::Pick(scope, self.port.cluster.len() as u32),
        };
        match frontend.route {
            Route::Reject => self.nowhere(scope, key, Value::Goto(ChainId::Reject), emit),
            Route::Drop => self.nowhere(scope, key, Value::Drop, emit),
            Route::Cluster => self.cluster_ip(scope, key, &cluster, emit),
            Route::Local => {
                // The only pool of this frontend: it takes the place of the cluster-wide one.
                let endpoints: &[Endpoint] = &self.port.local;
                let pick = ChainId::Pick(scope, endpoints.len() as u32);
                self.cluster_ip(scope, key, &Pool { endpoints, pick, ..cluster }, emit);
            }
            Route::ExternalCluster => {
                let treatment = self.either(ChainId::External(scope), ChainId::StickyExternal(scope));
                self.treated(scope, key, treatment, emit);
                self.pool(scope, key, &cluster, true, emit);
            }
            Route::ExternalLocal => {
                let treatment = self.either(ChainId::ExternalLocal(scope), ChainId::StickyExternalLocal(scope));
                self.treated(scope, key, treatment, emit);
                self.pool(scope, key, &cluster, true, emit);
                if self.port.local.is_empty() {
                    return self.nowhere(scope, key, Value::Drop, emit);
                }
                let local = Pool {
                    endpoints: &self.port.local,
                    first_slot: LOCAL_SLOTS,
                    picks: SetId::LocalPicks(scope),
                    sticky: SetId::StickyLocalEndpoints(scope),
                    pick: ChainId::LocalPick(scope, self.port.local.len() as u32),
                };
                self.pool(scope, key, &local, true, emit);
            }
        }
        let reached = !matches!(frontend.route, Route::Reject | Route::Drop);
        if let (Some(seconds), true) = (self.port.affinity, reached) {
            let value = Value::Goto(ChainId::Learn(scope, seconds));
            emit(Element { set: SetId::AffinityTimeouts(scope), key, value, comment: None });
        }
    }

    /// A cluster IP without affinity needs no treatment: its element leads straight to the pick.
    fn cluster_ip(&self, scope: Scope, key: Key, pool: &Pool<'_>, emit: &mut dyn FnMut(Element)) {
        let treatment = self.either(pool.pick, ChainId::Sticky(scope));
        self.treated(scope, key, treatment, emit);
        self.pool(scope, key, pool, self.port.affinity.is_some(), emit);
    }

    fn either(&self, plain: ChainId, sticky: ChainId) -> ChainId {
        if self.port.affinity.is_some() { sticky } else { plain }
    }

    fn treated(&self, scope: Scope, key: Key, treatment: ChainId, emit: &mut dyn FnMut(Element)) {
        let comment = Some(self.comment.clone());
        emit(Element { set: SetId::Frontends(scope), key, value: Value::Goto(treatment), comment });
    }

    fn nowhere(&self, scope: Scope, key: Key, value: Value, emit: &mut dyn FnMut(Element)) {
        emit(Element { set: SetId::NoEndpoints(scope), key, value, comment: Some(self.comment.clone()) });
    }

    fn pool(&self, scope: Scope, key: Key, pool: &Pool<'_>, picked_later: bool, emit: &mut dyn FnMut(Element)) {
        if picked_later {
            emit(Element { set: pool.picks, key, value: Value::Goto(pool.pick), comment: None });
        }
        for (slot, endpoint) in (pool.first_slot..).zip(pool.endpoints) {
            let value = Value::Endpoint(endpoint.ip, endpoint.port);
            let key = Key::EMPTY.slot(slot).then(&key);
            emit(Element { set: SetId::Endpoints(scope), key, value, comment: None });
        }
        if self.port.affinity.is_some() {
            self.sticky(key, pool, emit);
        }
    }

    /// A client sticks to an address. Should an address serve one Service port on several ports (two pods on a
    /// host's network, say), its clients stick to the lowest of them.
    fn sticky(&self, key: Key, pool: &Pool<'_>, emit: &mut dyn FnMut(Element)) {
        let mut endpoints: Vec<&Endpoint> = pool.endpoints.iter().collect();
        endpoints.sort_unstable();
        endpoints.dedup_by_key(|endpoint| endpoint.ip);
        for endpoint in endpoints {
            let value = Value::Goto(ChainId::To(endpoint.port));
            emit(Element { set: pool.sticky, key: key.address(endpoint.ip), value, comment: None });
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
