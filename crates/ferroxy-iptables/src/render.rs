//! Intent to State: the constant chains, and what each Service adds.
//!
//! Pure and deterministic. A [`Fragment`] is everything that a Service has in this dataplane.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use ferroxy_core::intent::FrontendKind;
use ferroxy_core::{Endpoint, Family, Frontend, Intent, NodeIntent, PortIntent, Route, ServiceIntent};

use crate::name::{self, Names};
use crate::program::{self, Dispatch, LOCALHOST_ACCEPTED, MARK_MASQ, Parameters};
use crate::rule::{Comment, Host, Sender, probability, whole_address_mask};
use crate::state::{Rules, State, TableName};

/// With more endpoints than this in a family, the rules for endpoints have no comments, to be smaller.
pub const LARGE_CLUSTER: u64 = 1000;

/// The chains and rules of one Service: its own chains, all in `nat`, and its rules in shared chains.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fragment {
    pub chains: BTreeMap<(Family, Box<str>), Rules>,
    pub dispatch: BTreeMap<(Family, Dispatch), Rules>,
}

/// What rules depend on besides their Service.
#[derive(Debug, Clone, Copy)]
pub struct Surroundings<'a> {
    pub node: &'a NodeIntent,
    pub parameters: Parameters,
    pub size: ClusterSize,
}

/// How many endpoints are known, in each family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClusterSize {
    v4: u64,
    v6: u64,
}

impl ClusterSize {
    pub fn of<'a>(services: impl IntoIterator<Item = &'a ServiceIntent>) -> ClusterSize {
        let mut size = ClusterSize::default();
        services.into_iter().for_each(|service| size.add(service));
        size
    }

    pub fn add(&mut self, service: &ServiceIntent) {
        for port in &service.ports {
            *self.in_family(port.family) += u64::from(port.size);
        }
    }

    pub fn subtract(&mut self, service: &ServiceIntent) {
        for port in &service.ports {
            let known = self.in_family(port.family);
            *known = known.saturating_sub(u64::from(port.size));
        }
    }

    pub fn is_large(mut self, family: Family) -> bool {
        *self.in_family(family) > LARGE_CLUSTER
    }

    fn in_family(&mut self, family: Family) -> &mut u64 {
        match family {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        }
    }
}

/// The ruleset for an Intent, in these families.
pub fn render(intent: &Intent, parameters: Parameters, families: &[Family]) -> State {
    render_telling(intent, parameters, families, |_, _| {})
}

/// Like [`render`]; `tell` gets the fragment of each Service.
pub fn render_telling(
    intent: &Intent,
    parameters: Parameters,
    families: &[Family],
    mut tell: impl FnMut(&Arc<ServiceIntent>, &Fragment),
) -> State {
    let size = ClusterSize::of(intent.services.values().map(AsRef::as_ref));
    let surroundings = Surroundings { node: &intent.node, parameters, size };
    let mut state = State::default();
    let mut dispatched: BTreeMap<(Family, Dispatch), Rules> = BTreeMap::new();
    for service in intent.services.values() {
        let fragment = fragment(service, surroundings, families);
        tell(service, &fragment);
        for ((family, chain), rules) in fragment.chains {
            state.tables.entry((family, TableName::Nat)).or_default().chains.insert(chain, rules);
        }
        for (place, rules) in &fragment.dispatch {
            dispatched.entry(*place).or_default().append(rules);
        }
    }
    for family in families {
        for (table, chain, rules) in program::chains(&intent.node, parameters, *family) {
            state.tables.entry((*family, table)).or_default().chains.insert(chain.into(), rules);
        }
        for (table, builtin, rules) in program::jumps() {
            state.tables.entry((*family, table)).or_default().jumps.insert(builtin.into(), rules);
        }
    }
    for ((family, dispatch), mut rules) in dispatched {
        rules.append(&program::dispatch_tail(dispatch, &intent.node, family));
        rules.shrink();
        let table = state.tables.entry((family, dispatch.table())).or_default();
        table.chains.insert(dispatch.chain().into(), rules);
    }
    state
}

/// Renders one Service, in these families.
pub fn fragment(service: &ServiceIntent, surroundings: Surroundings<'_>, families: &[Family]) -> Fragment {
    let mut fragment = Fragment::default();
    for port in service.ports.iter().filter(|port| families.contains(&port.family)) {
        PortWriter::new(service, port, surroundings).write(&mut fragment);
    }
    for rules in fragment.chains.values_mut() {
        rules.shrink();
    }
    fragment
}

/// Writes one Service port in one family.
struct PortWriter<'a> {
    service: &'a ServiceIntent,
    port: &'a PortIntent,
    node: &'a NodeIntent,
    parameters: Parameters,
    is_large: bool,
    names: Names,
    /// `ns/name:port`, as in the original's comments.
    label: String,
}

impl<'a> PortWriter<'a> {
    fn new(
        service: &'a ServiceIntent,
        port: &'a PortIntent,
        surroundings: Surroundings<'a>,
    ) -> PortWriter<'a> {
        PortWriter {
            service,
            port,
            node: surroundings.node,
            parameters: surroundings.parameters,
            is_large: surroundings.size.is_large(port.family),
            names: Names::of(service, port),
            label: service.name.port(&port.name),
        }
    }

    fn write(&self, fragment: &mut Fragment) {
        for frontend in &self.port.frontends {
            match frontend.kind {
                FrontendKind::ClusterIp => self.cluster_ip(frontend, fragment),
                FrontendKind::ExternalIp => self.external_ip(frontend, fragment),
                FrontendKind::LoadBalancer => self.load_balancer(frontend, fragment),
                FrontendKind::NodePort => self.node_port(frontend, fragment),
            }
        }
        self.health_check(fragment);
        self.cluster_ip_masquerade(fragment);
        self.external_chain(fragment);
        self.firewall_chain(fragment);
        self.pool(name::CLUSTER, &self.port.cluster, fragment);
        self.pool(name::LOCAL, &self.port.local, fragment);
    }

    fn cluster_ip(&self, frontend: &Frontend, fragment: &mut Fragment) {
        let Some(chain) = self.internal_chain(frontend) else {
            return self.refused(frontend, Dispatch::Refused, fragment);
        };
        self.dispatched(frontend, "cluster IP", &chain, fragment);
    }

    /// The chain that a cluster IP leads to, if any.
    fn internal_chain(&self, frontend: &Frontend) -> Option<String> {
        match frontend.route {
            Route::Cluster => Some(self.names.chain(name::CLUSTER)),
            Route::Local => Some(self.names.chain(name::LOCAL)),
            _ => None,
        }
    }

    fn external_ip(&self, frontend: &Frontend, fragment: &mut Fragment) {
        if frontend.route != Route::Reject {
            self.dispatched(frontend, "external IP", &self.names.chain(name::EXTERNAL), fragment);
        }
        self.refused(frontend, Dispatch::ExternalRefused, fragment);
    }

    fn load_balancer(&self, frontend: &Frontend, fragment: &mut Fragment) {
        let firewalled = frontend.allowed_sources.is_some();
        if frontend.route != Route::Reject {
            let prefix = if firewalled { name::FIREWALL } else { name::EXTERNAL };
            self.dispatched(frontend, "loadbalancer IP", &self.names.chain(prefix), fragment);
            if firewalled {
                let firewall = self.names.chain(name::FIREWALL);
                let comment = Comment::new(format_args!("{} traffic not accepted by {firewall}", self.label));
                let to = self.to(frontend, "", &comment);
                self.dispatch(fragment, Dispatch::Firewall).push(format_args!("{to} -j DROP"));
            }
        }
        self.refused(frontend, Dispatch::ExternalRefused, fragment);
    }

    fn node_port(&self, frontend: &Frontend, fragment: &mut Fragment) {
        if frontend.route != Route::Reject {
            let external = self.names.chain(name::EXTERNAL);
            let to = self.to(frontend, "", &Comment::new(format_args!("{}", self.label)));
            let rules = self.dispatch(fragment, Dispatch::NodePorts);
            // An extra rule that counts the use of node ports on loopback addresses.
            if self.parameters.nfacct && self.node.family(self.port.family).node_ports_on_loopback {
                let counted = program::counted_by(self.parameters, LOCALHOST_ACCEPTED);
                rules.push(format_args!("-d 127.0.0.0/8 {to} {counted}-j {external}"));
            }
            rules.push(format_args!("{to} -j {external}"));
        }
        self.refused(frontend, Dispatch::ExternalRefused, fragment);
    }

    /// A rule in KUBE-SERVICES: this address and port go to that chain.
    fn dispatched(&self, frontend: &Frontend, words: &str, chain: &str, fragment: &mut Fragment) {
        let to = self.to(frontend, "", &Comment::new(format_args!("{} {words}", self.label)));
        self.dispatch(fragment, Dispatch::Services).push(format_args!("{to} -j {chain}"));
    }

    /// Refuses the packets of a frontend that no chain in `nat` translated.
    fn refused(&self, frontend: &Frontend, dispatch: Dispatch, fragment: &mut Fragment) {
        let (words, verdict) = match frontend.route {
            Route::Reject => ("has no endpoints", self.reject()),
            Route::Drop => ("has no local endpoints", "DROP"),
            Route::ExternalLocal if self.port.local.is_empty() => ("has no local endpoints", "DROP"),
            _ => return,
        };
        let on_host = if frontend.address.is_none() { " -m addrtype --dst-type LOCAL" } else { "" };
        let to = self.to(frontend, on_host, &Comment::new(format_args!("{} {words}", self.label)));
        self.dispatch(fragment, dispatch).push(format_args!("{to} -j {verdict}"));
    }

    fn reject(&self) -> &'static str {
        match self.port.family {
            Family::V4 => "REJECT --reject-with icmp-port-unreachable",
            Family::V6 => "REJECT --reject-with icmp6-port-unreachable",
        }
    }

    fn health_check(&self, fragment: &mut Fragment) {
        let Some(check) = self.service.health_check else { return };
        let comment = Comment::new(format_args!("{} health check node port", self.label));
        self.dispatch(fragment, Dispatch::HealthChecks)
            .push(format_args!("-p tcp {comment} -m tcp --dport {} -j ACCEPT", check.port));
    }

    /// The first rule of the chain that a cluster IP leads to.
    fn cluster_ip_masquerade(&self, fragment: &mut Fragment) {
        let detector = &self.node.family(self.port.family).local_detector;
        let sender = match detector {
            _ if self.node.masquerade_all => Sender::default(),
            Some(detector) => Sender::is_not_pod(detector),
            None => return,
        };
        let cluster_ips = self.port.frontends.iter().filter(|f| f.kind == FrontendKind::ClusterIp);
        for frontend in cluster_ips {
            let (Some(chain), Some(address)) = (self.internal_chain(frontend), frontend.address) else {
                continue;
            };
            let comment = Comment::new(format_args!("{} cluster IP", self.label));
            let (Sender { source, interface }, host, port) = (&sender, Host(address), frontend.port);
            let protocol = self.port.protocol;
            self.chain(fragment, chain).push(format_args!(
                "{source}-d {host} {interface}-p {protocol} {comment} -m {protocol} --dport {port} -j {MARK_MASQ}"
            ));
        }
    }

    /// The chain that all external frontends lead to.
    fn external_chain(&self, fragment: &mut Fragment) {
        let external = self.port.frontends.iter().find(|f| f.kind != FrontendKind::ClusterIp);
        let Some(route) = external.map(|frontend| frontend.route).filter(|route| *route != Route::Reject)
        else {
            return;
        };
        let (label, cluster) = (&self.label, self.names.chain(name::CLUSTER));
        let rules = self.chain(fragment, self.names.chain(name::EXTERNAL));
        if route != Route::ExternalLocal {
            let comment = Comment::new(format_args!("masquerade traffic for {label} external destinations"));
            rules.push(format_args!("{comment} -j {MARK_MASQ}"));
            rules.push(format_args!("-j {cluster}"));
            return;
        }
        // Policy Local does not apply to traffic from inside: pods keep their address, this host is masqueraded.
        if let Some(detector) = &self.node.family(self.port.family).local_detector {
            let Sender { source, interface } = Sender::is_pod(detector);
            let comment = Comment::new(format_args!("pod traffic for {label} external destinations"));
            rules.push(format_args!("{source}{interface}{comment} -j {cluster}"));
        }
        let comment =
            Comment::new(format_args!("masquerade LOCAL traffic for {label} external destinations"));
        rules.push(format_args!("{comment} -m addrtype --src-type LOCAL -j {MARK_MASQ}"));
        let comment = Comment::new(format_args!("route LOCAL traffic for {label} external destinations"));
        rules.push(format_args!("{comment} -m addrtype --src-type LOCAL -j {cluster}"));
        if !self.port.local.is_empty() {
            rules.push(format_args!("-j {}", self.names.chain(name::LOCAL)));
        }
    }

    /// Sends allowed sources of a load balancer to the external chain. Other packets return untranslated, and are dropped in
    /// `filter`.
    fn firewall_chain(&self, fragment: &mut Fragment) {
        let balanced =
            |frontend: &&Frontend| frontend.route != Route::Reject && frontend.allowed_sources.is_some();
        let Some(frontend) = self.port.frontends.iter().find(balanced) else { return };
        let external = self.names.chain(name::EXTERNAL);
        let comment = Comment::new(format_args!("{} loadbalancer IP", self.label));
        let rules = self.chain(fragment, self.names.chain(name::FIREWALL));
        for range in frontend.allowed_sources.iter().flatten() {
            rules.push(format_args!("-s {} {comment} -j {external}", range.trunc()));
        }
        let comment = Comment::new(format_args!(
            "other traffic to {} will be dropped by KUBE-PROXY-FIREWALL",
            self.label
        ));
        rules.push(format_args!("{comment}"));
    }

    /// Writes the endpoints for one traffic policy: the chain that chooses an endpoint, and the chain of each endpoint.
    fn pool(&self, prefix: &str, pool: &[Endpoint], fragment: &mut Fragment) {
        if pool.is_empty() {
            return;
        }
        let chains: Vec<String> = pool.iter().map(|endpoint| self.names.endpoint(endpoint)).collect();
        self.policy_chain(self.chain(fragment, self.names.chain(prefix)), pool, &chains);
        for (endpoint, chain) in pool.iter().zip(chains) {
            // An endpoint may be in both pools: then this is the same chain.
            let rules = self.endpoint_chain(endpoint, &chain);
            fragment.chains.insert((self.port.family, chain.into()), rules);
        }
    }

    /// Returning clients go to their endpoint; all others are distributed evenly.
    fn policy_chain(&self, rules: &mut Rules, pool: &[Endpoint], chains: &[String]) {
        if let Some(seconds) = self.port.affinity {
            let mask = whole_address_mask(self.port.family);
            for (endpoint, chain) in pool.iter().zip(chains) {
                let comment = self.endpoint_comment(endpoint);
                rules.push(format_args!(
                    "{comment}-m recent --rcheck --seconds {seconds} --reap --name {chain} --mask {mask} --rsource -j {chain}"
                ));
            }
        }
        for (index, (endpoint, chain)) in pool.iter().zip(chains).enumerate() {
            let comment = self.endpoint_comment(endpoint);
            match pool.len() - index {
                1 => rules.push(format_args!("{comment}-j {chain}")),
                remaining => rules.push(format_args!(
                    "{comment}-m statistic --mode random --probability {} -j {chain}",
                    probability(remaining)
                )),
            }
        }
    }

    fn endpoint_chain(&self, endpoint: &Endpoint, chain: &str) -> Rules {
        let comment = match self.is_large {
            true => String::new(),
            false => format!("{} ", Comment::new(format_args!("{}", self.label))),
        };
        let recent = match self.port.affinity {
            Some(_) => {
                let mask = whole_address_mask(self.port.family);
                format!("-m recent --set --name {chain} --mask {mask} --rsource ")
            }
            None => String::new(),
        };
        let (protocol, to) = (self.port.protocol, SocketAddr::new(endpoint.ip, endpoint.port));
        let mut rules = Rules::new();
        // A pod that connects to itself must not see its own address as the client: its reply would bypass the node.
        rules.push(format_args!("-s {} {comment}-j {MARK_MASQ}", Host(endpoint.ip)));
        rules
            .push(format_args!("-p {protocol} {comment}{recent}-m {protocol} -j DNAT --to-destination {to}"));
        rules
    }

    /// `"ns/name -> 10.244.1.5:80"`, and a space; nothing in a large cluster.
    fn endpoint_comment(&self, endpoint: &Endpoint) -> String {
        if self.is_large {
            return String::new();
        }
        let address = SocketAddr::new(endpoint.ip, endpoint.port);
        format!("{} ", Comment::new(format_args!("{} -> {address}", self.label)))
    }

    /// The match of a frontend. `extra` goes between the comment and the port.
    fn to(&self, frontend: &Frontend, extra: &str, comment: &Comment) -> String {
        let address = frontend.address.map(|ip| format!("-d {} ", Host(ip))).unwrap_or_default();
        let (protocol, port) = (self.port.protocol, frontend.port);
        format!("{address}-p {protocol} {comment}{extra} -m {protocol} --dport {port}")
    }

    fn chain<'f>(&self, fragment: &'f mut Fragment, chain: String) -> &'f mut Rules {
        fragment.chains.entry((self.port.family, chain.into())).or_default()
    }

    fn dispatch<'f>(&self, fragment: &'f mut Fragment, dispatch: Dispatch) -> &'f mut Rules {
        fragment.dispatch.entry((self.port.family, dispatch)).or_default()
    }
}
