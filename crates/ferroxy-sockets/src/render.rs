//! Which frontends of a Service are translated at sockets, for whom, and to which endpoints.
//!
//! The rule: only where the kernel's own choice of a source address gives the same address as packet rules. Packet rules
//! masquerade a connection of the host to the address of the outgoing interface, and a socket of the host that connects to
//! the endpoint has the same address. A connection of a pod keeps its address either way. Everything else is left to packet
//! rules: UDP and SCTP, refusals, source ranges.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ferroxy_core::{Endpoint, Family, Frontend, Intent, PortIntent, Protocol, Route, ServiceIntent};
use ferroxy_dataplane::ChoiceOfEndpoints;

use crate::entry::{Clients, FrontendKey, FrontendValue, MemberKey, MemberValue, PoolId, SlotKey, SlotValue};
use crate::state::{Entry, State};
use crate::terms::{Pool, Terms};

/// The maps for an Intent.
pub fn render(intent: &Intent, terms: &Terms) -> State {
    let mut state = State::default();
    for service in intent.services.values() {
        entries(service, terms, &mut |entry| state.insert(entry));
    }
    state
}

/// Passes all elements of a Service to `emit`: slots before the frontends that count them.
pub fn entries(service: &ServiceIntent, terms: &Terms, emit: &mut dyn FnMut(Entry)) {
    // Annotations request features of the dataplane below.
    if !service.annotations.is_empty() {
        return;
    }
    for port in service.ports.iter().filter(|port| port.protocol == Protocol::Tcp) {
        for pool in [Pool::Cluster, Pool::Local] {
            let uses = |frontend: &&Frontend| pool_of(frontend.route) == Some(pool);
            let frontends = port.frontends.iter().filter(uses);
            let translated: Vec<_> =
                frontends.flat_map(|frontend| translated(terms, port, frontend)).collect();
            let endpoints = endpoints(port, pool);
            if translated.is_empty() || endpoints.is_empty() {
                continue;
            }
            let mut endpoints: Vec<_> = endpoints.iter().map(|it| SocketAddr::new(it.ip, it.port)).collect();
            if port.affinity.is_none() && endpoints.len() <= FrontendValue::MOST {
                // One write replaces all of them, so their order is free. Sorted, the value is the same after every restart.
                endpoints.sort_unstable();
                for (address, number, clients) in translated {
                    let key = FrontendKey::new(address, number);
                    emit(Entry::Frontend(key, FrontendValue::listed(&key, clients, &endpoints)));
                }
                continue;
            }
            let id = terms.pool(&service.name, &port.name, port.family, pool);
            pooled(id, port.affinity, &endpoints, emit);
            for (address, number, clients) in translated {
                let key = FrontendKey::new(address, number);
                let value = FrontendValue::pooled(&key, clients, endpoints.len() as u32, id);
                let value = if port.affinity.is_some() { value.sticky() } else { value };
                emit(Entry::Frontend(key, value));
            }
        }
    }
}

/// The elements of a pool.
fn pooled(id: PoolId, affinity: Option<u32>, endpoints: &[SocketAddr], emit: &mut dyn FnMut(Entry)) {
    for (slot, address) in (0..).zip(endpoints) {
        emit(Entry::Slot(SlotKey::new(id, slot), SlotValue::new(id, *address)));
        if let Some(seconds) = affinity {
            emit(Entry::Member(MemberKey::new(id, *address), MemberValue::new(id, seconds)));
        }
    }
}

/// The addresses and ports of a frontend that are translated, and for whom.
fn translated(terms: &Terms, port: &PortIntent, frontend: &Frontend) -> Vec<(IpAddr, u16, Clients)> {
    let clients = clients(terms, port, frontend);
    let mut all: Vec<(IpAddr, Clients)> = match frontend.address {
        // A program on this host may serve the address itself, as NodeLocal DNSCache does: packet rules respect it, sockets would not.
        Some(address) if terms.host_addresses.contains(&address) => Vec::new(),
        Some(address) => vec![(address, clients)],
        None => {
            let these = terms.node_port_addresses[port.family as usize].iter();
            these.filter(|address| !address.is_loopback()).map(|address| (*address, clients)).collect()
        }
    };
    if frontend.address.is_none() {
        all.push((loopback(port.family), clients.and(Clients::HOST)));
    }
    all.retain(|(_, clients)| *clients != Clients::NONE);
    all.into_iter().map(|(address, clients)| (address, frontend.port, clients)).collect()
}

/// Node ports also answer the host itself on localhost: no packet with a loopback address has to leave the host for it.
fn loopback(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::LOCALHOST.into(),
        Family::V6 => Ipv6Addr::LOCALHOST.into(),
    }
}

/// The clients whose connections to a frontend are translated, at any of its addresses.
pub fn clients(terms: &Terms, port: &PortIntent, frontend: &Frontend) -> Clients {
    if frontend.allowed_sources.is_some() {
        return Clients::NONE;
    }
    // With `ByFrontend`, clients on this node share a list of endpoints with clients outside, and the scheduler remembers clients.
    let by_frontend = terms.choice == ChoiceOfEndpoints::ByFrontend;
    let is_shared = by_frontend && (frontend.route == Route::ExternalLocal || port.affinity.is_some());
    if is_shared {
        return Clients::NONE;
    }
    let mut clients = Clients::NONE;
    if keeps_source_of_pods(terms, port.family, frontend.route) {
        clients = clients.with(Clients::PODS);
    }
    if masquerades_host(terms, port.family, frontend.route) {
        clients = clients.with(Clients::HOST);
    }
    clients.and(terms.clients)
}

/// True if connections of pods are not masqueraded, and go to the pool of [`pool_of`].
fn keeps_source_of_pods(terms: &Terms, family: Family, route: Route) -> bool {
    match route {
        Route::Cluster | Route::Local => !terms.masquerade_all,
        // Its address may be a cluster IP of another Service: then `masquerade_all` applies.
        Route::ExternalLocal => terms.detects_pods(family) && !terms.masquerade_all,
        Route::ExternalCluster | Route::Reject | Route::Drop => false,
    }
}

/// True if connections of the host are masqueraded, and go to the pool of [`pool_of`].
fn masquerades_host(terms: &Terms, family: Family, route: Route) -> bool {
    match route {
        Route::Cluster | Route::Local => terms.masquerade_all || terms.detects_pods(family),
        Route::ExternalCluster | Route::ExternalLocal => true,
        Route::Reject | Route::Drop => false,
    }
}

/// The endpoints for clients on this node.
fn pool_of(route: Route) -> Option<Pool> {
    match route {
        Route::Cluster | Route::ExternalCluster | Route::ExternalLocal => Some(Pool::Cluster),
        Route::Local => Some(Pool::Local),
        Route::Reject | Route::Drop => None,
    }
}

fn endpoints(port: &PortIntent, pool: Pool) -> &[Endpoint] {
    match pool {
        Pool::Cluster => &port.cluster,
        Pool::Local => &port.local,
    }
}
