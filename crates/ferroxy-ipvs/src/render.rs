//! Renders an Intent to a State: the virtual servers, set members and addresses of each Service.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ferroxy_core::intent::{FrontendKind, NodePortAddresses};
use ferroxy_core::{
    Endpoint, Family, Frontend, Intent, NodeIntent, PortIntent, Protocol, Route, ServiceIntent,
};
use ipnet::IpNet;

use crate::program;
use crate::scheduler::Scheduler;
use crate::set::{Member, Set, SetName};
use crate::state::{Address, SetState, State, Treatment, VirtualServer, WEIGHT};
use crate::unchanged::Unchanged;

/// The inputs of the State besides the Intent: the mode's settings, and the addresses of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameters {
    /// The bit of the packet mark that requests masquerading, as a mask.
    pub masquerade_mark: u32,
    /// The kernel's name of the scheduler: `rr`, `lc`, `mh`…
    pub scheduler: Arc<str>,
    /// The addresses of all devices but ours.
    pub host_addresses: BTreeSet<IpAddr>,
}

/// All objects that one Service has in the kernel. Other Services may share some of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fragment {
    pub servers: BTreeMap<Address, VirtualServer>,
    /// Virtual servers of node ports. An external IP that is an address of this host takes precedence over them.
    pub node_port_servers: BTreeMap<Address, VirtualServer>,
    pub addresses: BTreeSet<IpAddr>,
    pub members: BTreeSet<(SetName, Member)>,
    pub guarded: BTreeSet<Address>,
}

/// The inputs of a fragment besides its Service.
#[derive(Debug, Clone, Copy)]
pub struct Surroundings<'a> {
    pub node: &'a NodeIntent,
    pub parameters: &'a Parameters,
    pub families: &'a [Family],
}

impl Default for Parameters {
    fn default() -> Parameters {
        Parameters { masquerade_mark: 1 << 14, scheduler: "rr".into(), host_addresses: BTreeSet::new() }
    }
}

/// The whole State of an Intent.
pub fn render(intent: &Intent, parameters: &Parameters, families: &[Family]) -> State {
    let surroundings = Surroundings { node: &intent.node, parameters, families };
    let mut state = empty(surroundings);
    add(&mut state, intent.services.values().map(|service| fragment(service, surroundings)));
    state
}

/// The State without any Service.
pub fn empty(surroundings: Surroundings<'_>) -> State {
    let names = surroundings.families.iter().flat_map(|family| SetName::all(*family));
    State {
        device: Some(BTreeSet::new()),
        sets: names.map(|name| (name, SetState::default())).collect(),
        rules: program::rules(
            surroundings.node,
            surroundings.parameters.masquerade_mark,
            surroundings.families,
        ),
        ..State::default()
    }
}

/// Adds fragments to a State. Of several virtual servers at one address the first one wins.
pub fn add(state: &mut State, fragments: impl Iterator<Item = Fragment>) {
    let mut node_ports = Vec::new();
    for fragment in fragments {
        for (address, server) in fragment.servers {
            state.servers.entry(address).or_insert(server);
        }
        node_ports.extend(fragment.node_port_servers);
        state.device.get_or_insert_default().extend(fragment.addresses);
        for (name, member) in fragment.members {
            state.sets.entry(name).or_default().members.insert(member);
        }
        state.guarded.extend(fragment.guarded);
    }
    for (address, server) in node_ports {
        state.servers.entry(address).or_insert(server);
    }
}

pub fn fragment(service: &ServiceIntent, surroundings: Surroundings<'_>) -> Fragment {
    fragment_without(service, surroundings, &Unchanged::default())
}

/// The fragment of a Service without its unchanged frontends.
pub(crate) fn fragment_without(
    service: &ServiceIntent,
    surroundings: Surroundings<'_>,
    unchanged: &Unchanged,
) -> Fragment {
    let mut fragment = Fragment::default();
    let scheduler = match service.annotation(Scheduler::ANNOTATION) {
        Some(own) => own.into(),
        None => surroundings.parameters.scheduler.clone(),
    };
    for port in service.ports.iter().filter(|port| surroundings.families.contains(&port.family)) {
        let render = Render { port, scheduler: &scheduler, surroundings, unchanged };
        let changing = port.frontends.iter().filter(|frontend| !unchanged.contains(port, frontend));
        changing.for_each(|frontend| render.frontend(frontend, &mut fragment));
        render.loops(&mut fragment);
        if let Some(check) = service.health_check {
            fragment.members.insert((Set::HealthCheckNodePort.of(port.family), Member::Port(check.port)));
        }
    }
    fragment
}

struct Render<'a> {
    port: &'a PortIntent,
    scheduler: &'a Arc<str>,
    surroundings: Surroundings<'a>,
    unchanged: &'a Unchanged,
}

impl Render<'_> {
    fn frontend(&self, frontend: &Frontend, fragment: &mut Fragment) {
        let server = self.server(frontend);
        for address in self.addresses(frontend) {
            let servers = match frontend.kind {
                FrontendKind::NodePort => &mut fragment.node_port_servers,
                _ => &mut fragment.servers,
            };
            servers.entry(address).or_insert_with(|| server.clone());
            self.memberships(frontend, address, fragment);
            if self.is_bound(frontend, address.ip) && !self.unchanged.holds(address.ip) {
                fragment.addresses.insert(address.ip);
                fragment.members.insert((self.set(Set::IpvsIps), Member::Ip(address.ip)));
            }
        }
    }

    fn server(&self, frontend: &Frontend) -> VirtualServer {
        let serves = |endpoint: &Endpoint| (SocketAddr::new(endpoint.ip, endpoint.port), WEIGHT);
        let endpoints: &[Endpoint] = match frontend.route {
            // The kernel refuses connections to a virtual server without endpoints, as the original does for `Drop`, too.
            Route::Reject | Route::Drop => &[],
            Route::Cluster | Route::ExternalCluster => &self.port.cluster,
            // These endpoints are for pods and the node itself. Rules drop traffic from outside before (`NoneLocal`).
            Route::ExternalLocal if self.port.local.is_empty() => &self.port.cluster,
            Route::Local | Route::ExternalLocal => &self.port.local,
        };
        VirtualServer {
            treatment: Treatment::new(self.scheduler, self.port.affinity),
            endpoints: endpoints.iter().map(serves).collect(),
        }
    }

    fn addresses(&self, frontend: &Frontend) -> Vec<Address> {
        let at = |ip| Address { ip, protocol: self.port.protocol, port: frontend.port };
        match frontend.address {
            Some(ip) => vec![at(ip)],
            None => self.node_port_ips().map(at).collect(),
        }
    }

    /// A virtual server listens on one address, so a node port needs one for each address of the host. (A configured range can also
    /// contain addresses of Services, which are on our own device and get no node ports.)
    fn node_port_ips(&self) -> impl Iterator<Item = IpAddr> {
        let Surroundings { node, parameters, .. } = self.surroundings;
        let answering = &node.family(self.port.family).node_port_addresses;
        let answers = move |ip: &IpAddr| match answering {
            NodePortAddresses::AllLocal => true,
            NodePortAddresses::These(these) => these.contains(ip),
        };
        let of_family = |ip: &IpAddr| Family::of(*ip) == self.port.family && can_serve_node_ports(*ip);
        parameters.host_addresses.iter().copied().filter(of_family).filter(answers)
    }

    /// True if our device must have the address. An external address that another device has is not added to ours.
    fn is_bound(&self, frontend: &Frontend, ip: IpAddr) -> bool {
        match frontend.kind {
            FrontendKind::ClusterIp => true,
            FrontendKind::ExternalIp | FrontendKind::LoadBalancer => {
                !self.surroundings.parameters.host_addresses.contains(&ip)
            }
            FrontendKind::NodePort => false,
        }
    }

    fn memberships(&self, frontend: &Frontend, at: Address, fragment: &mut Fragment) {
        let mut member = |set: Set, member: Member| {
            fragment.members.insert((self.set(set), member));
        };
        let is_local = frontend.route == Route::ExternalLocal;
        let here = Member::IpPort(at);
        match frontend.kind {
            FrontendKind::ClusterIp => member(Set::ClusterIp, here),
            FrontendKind::ExternalIp if is_local => member(Set::ExternalIpLocal, here),
            FrontendKind::ExternalIp => member(Set::ExternalIp, here),
            FrontendKind::LoadBalancer => {
                member(Set::LoadBalancer, here);
                if is_local {
                    member(Set::LoadBalancerLocal, here);
                }
            }
            FrontendKind::NodePort => {
                let (all, local, entry) = match at.protocol {
                    Protocol::Tcp => (Set::NodePortTcp, Set::NodePortLocalTcp, Member::Port(at.port)),
                    Protocol::Udp => (Set::NodePortUdp, Set::NodePortLocalUdp, Member::Port(at.port)),
                    Protocol::Sctp => (Set::NodePortSctp, Set::NodePortLocalSctp, here),
                };
                member(all, entry);
                if is_local {
                    member(local, entry);
                }
            }
        }
        if is_local && self.port.local.is_empty() {
            member(Set::NoneLocal, here);
        }
        if let Some(allowed) = &frontend.allowed_sources {
            self.restrict(allowed, at, fragment);
        }
    }

    fn restrict(&self, allowed: &[IpNet], at: Address, fragment: &mut Fragment) {
        fragment.members.insert((self.set(Set::LoadBalancerFirewall), Member::IpPort(at)));
        // The load balancer's own addresses in the list are for the node, which connects to such an address from that same address.
        let of_balancer = |range: &IpNet| {
            let mut frontends = self.port.frontends.iter();
            frontends.any(|it| {
                it.kind == FrontendKind::LoadBalancer && it.address.map(IpNet::from) == Some(*range)
            })
        };
        for range in allowed.iter().filter(|range| !of_balancer(range)) {
            let member = Member::IpPortNet(at, range.trunc());
            fragment.members.insert((self.set(Set::LoadBalancerSourceCidr), member));
        }
        if allowed.contains(&IpNet::from(at.ip)) {
            let member = Member::IpPortIp(at, at.ip);
            fragment.members.insert((self.set(Set::LoadBalancerSourceIp), member));
        } else {
            fragment.guarded.insert(at);
        }
    }

    fn loops(&self, fragment: &mut Fragment) {
        let endpoints = self.port.cluster.iter().chain(&self.port.local);
        for endpoint in endpoints.filter(|endpoint| endpoint.is_local) {
            let at = Address { ip: endpoint.ip, protocol: self.port.protocol, port: endpoint.port };
            fragment.members.insert((self.set(Set::LoopBack), Member::IpPortIp(at, endpoint.ip)));
        }
    }

    fn set(&self, set: Set) -> SetName {
        set.of(self.port.family)
    }
}

/// Loopback addresses do not leave the host, so nothing behind them can be balanced; link-local ones are not unique.
pub fn can_serve_node_ports(ip: IpAddr) -> bool {
    let is_link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    !ip.is_loopback() && !is_link_local
}
