//! Renders an Intent to a State: the program for this node, and the elements of each Service.
//!
//! Pure and deterministic. [`elements`] is everything that a Service is in this dataplane; creating, changing and removing one
//! all use it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ferroxy_core::{Endpoint, Family, Frontend, Intent, PortIntent, Route, ServiceIntent};
use ferroxy_netlink::nftables::COMMENT_MAX;
use ipnet::IpNet;

use crate::chain::{ChainId, Kind, Pool, Treatment};
use crate::element::{Element, Key, LOCAL_SLOTS, Scope, ServicePort, SetId, Value, member};
use crate::place::frontend_key;
use crate::program::Program;
use crate::settings::Settings;
use crate::state::{State, Table};
use crate::unchanged::Unchanged;

/// The ruleset for an Intent, in these families.
pub fn render(intent: &Intent, settings: &Settings, families: &[Family]) -> State {
    let program = |family: Family| Program::new(&intent.node, settings, family);
    let mut state = State::default();
    for family in families {
        state.tables.insert(*family, empty_table(&program(*family)));
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
        add_on_demand_chains(table, wanted, &program(*family));
    }
    state
}

/// The program without any Service.
pub fn empty_table(program: &Program<'_>) -> Table {
    let mut table = Table {
        sets: program.sets().into_iter().map(|set| (set.name.clone(), set)).collect(),
        chains: program.chains().into_iter().collect(),
        ..Table::default()
    };
    program.elements().for_each(|element| table.insert(element));
    table
}

/// Passes every element of a Service to `emit`, in a fixed order. Elements of shared sets may come more than once.
pub fn elements(service: &ServiceIntent, emit: &mut dyn FnMut(Family, Element)) {
    elements_without(&Unchanged::default(), service, emit);
}

/// The same without the elements of these frontends.
pub fn elements_without(
    unchanged: &Unchanged,
    service: &ServiceIntent,
    emit: &mut dyn FnMut(Family, Element),
) {
    for address in &service.cluster_ips {
        emit(Family::of(*address), member(SetId::ClusterIps, Key::EMPTY.address(*address)));
    }
    for port in &service.ports {
        let name = service.name.port(&port.name);
        let writer = PortWriter { port, comment: comment(&name), name };
        for frontend in port.frontends.iter().filter(|frontend| !unchanged.contains(port, frontend)) {
            writer.frontend(frontend, &mut |element| emit(port.family, element));
        }
        writer.hairpins(&mut |element| emit(port.family, element));
    }
}

/// The name of the Service port, truncated as ferroxy-netlink truncates it, so that it compares equal when read back. Names are
/// ASCII.
fn comment(name: &str) -> Arc<str> {
    name.get(..COMMENT_MAX).unwrap_or(name).into()
}

/// Adds chains that exist on demand, with the elements that lead to them.
pub fn add_on_demand_chains(
    table: &mut Table,
    wanted: impl IntoIterator<Item = ChainId>,
    program: &Program<'_>,
) {
    for chain in wanted {
        table.chains.insert(chain.to_string(), program.on_demand_chain(chain));
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

struct PortWriter<'a> {
    port: &'a PortIntent,
    /// Of the Service and the port, whole.
    name: String,
    comment: Arc<str>,
}

impl PortWriter<'_> {
    fn frontend(&self, frontend: &Frontend, emit: &mut dyn FnMut(Element)) {
        let (scope, key) = frontend_key(self.port, frontend);
        let (cluster, local) = (&self.port.cluster, &self.port.local);
        let cluster_ip = self.either(Kind::Pick(Pool::Main), Kind::Sticky(Pool::Main));
        self.source_ranges(frontend, key, emit);
        match frontend.route {
            Route::Reject => return self.no_endpoints(scope, key, emit),
            Route::Drop => return self.no_local_endpoints(scope, key, emit),
            Route::Cluster => self.treated(scope, key, cluster_ip, cluster, emit),
            // The only pool of this frontend, so it is the main pool.
            Route::Local => self.treated(scope, key, cluster_ip, local, emit),
            Route::ExternalCluster => {
                self.treated(scope, key, self.either(Kind::External, Kind::StickyExternal), cluster, emit);
            }
            Route::ExternalLocal => {
                let kind = self.either(Kind::ExternalLocal, Kind::StickyExternalLocal);
                self.treated(scope, key, kind, cluster, emit);
                if local.is_empty() {
                    self.no_local_endpoints(scope, key, emit);
                } else {
                    self.treated_locally(scope, key, local, emit);
                }
            }
        }
        if let Some(seconds) = self.port.affinity {
            let value = Value::Goto(ChainId::Learn(scope, seconds));
            emit(Element { set: SetId::AffinityTimeouts(scope), key, value, comment: None });
            let value = Value::ServicePort(ServicePort::new(&self.name, self.port.protocol));
            emit(Element { set: SetId::StickyPorts(scope), key, value, comment: None });
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
        let treatment = Treatment::new(kind, scope, &key, pool.len());
        let value = Value::Treatment(treatment);
        emit(Element { set: SetId::Frontends(scope), key, value, comment });
        self.endpoints(treatment, SetId::StickyEndpoints(scope), key, 0, pool, emit);
    }

    fn treated_locally(&self, scope: Scope, key: Key, pool: &[Endpoint], emit: &mut dyn FnMut(Element)) {
        let kind = self.either(Kind::Pick(Pool::Local), Kind::Sticky(Pool::Local));
        let treatment = Treatment::new(kind, scope, &key, pool.len());
        let value = Value::Treatment(treatment);
        emit(Element { set: SetId::LocalFrontends(scope), key, value, comment: None });
        let sticky = SetId::StickyLocalEndpoints(scope);
        self.endpoints(treatment, sticky, key, LOCAL_SLOTS, pool, emit);
    }

    fn no_endpoints(&self, scope: Scope, key: Key, emit: &mut dyn FnMut(Element)) {
        let comment = Some(self.comment.clone());
        emit(Element { set: SetId::NoEndpoints(scope), key, value: Value::Member, comment });
    }

    fn no_local_endpoints(&self, scope: Scope, key: Key, emit: &mut dyn FnMut(Element)) {
        self.no_endpoints(scope, key, emit);
        emit(member(SetId::NoLocalEndpoints(scope), key));
    }

    fn endpoints(
        &self,
        treatment: Treatment,
        sticky: SetId,
        frontend: Key,
        first_slot: u32,
        pool: &[Endpoint],
        emit: &mut dyn FnMut(Element),
    ) {
        let set = SetId::Endpoints(treatment.scope, treatment.part);
        for (slot, endpoint) in (first_slot..).zip(pool) {
            let value = Value::Endpoint(endpoint.ip, endpoint.port);
            let key = Key::EMPTY.number(slot).then(&frontend);
            emit(Element { set, key, value, comment: None });
        }
        if self.port.affinity.is_some() {
            self.sticky(sticky, frontend, pool, emit);
        }
    }

    /// Affinity remembers an address without a port. If one address serves a Service port on several ports (two pods on the host's
    /// network, for example), its clients get the lowest of these.
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
        // The kernel refuses overlapping ranges.
        for range in IpNet::aggregate(ranges) {
            let (key, value) = (key.address(range.network()), Value::UpTo(range.broadcast()));
            emit(Element { set: SetId::AllowedSources, key, value, comment: None });
        }
    }

    /// Local pods that may connect to themselves. Such connections need masquerading: the pod would otherwise answer itself directly.
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
