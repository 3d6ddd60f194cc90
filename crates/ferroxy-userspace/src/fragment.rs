//! Renders one Service: pools and frontends of the proxy, and the Service as the rules of nftables mode get to see it.
//!
//! ```text
//! TCP, any address   rules: to ADDRESS:redirect port ─▶ the original destination finds the frontend, the port the class of client
//! UDP, any address   rules: to ADDRESS:a port of the pool
//! node ports         sockets on the node port itself; rules only where classes of clients have different endpoints
//! SCTP               rules: to the endpoints, as in nftables mode
//! ```
//! For TCP the rules are the same whatever endpoints a Service has: a change of its endpoints is a change of its pool.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use ferroxy_core::intent::{FrontendKind, NodePortAddresses};
use ferroxy_core::{Endpoint, Family, Frontend, NodeIntent, PortIntent, Route, ServiceIntent};
use ferroxy_pools::{balancing, proxied};
pub use ferroxy_pools::{pool_key, socket_key, unspecified};
use ferroxy_proxy::{self as proxy, Class, Key, Pool};

use crate::diff::Listening;
use crate::ports::{CLUSTER, LOCAL, Ports};
use crate::settings::{ClusterIps, Rules, Settings};

/// What all Services of a node share.
#[derive(Debug, Clone, Copy)]
pub struct Scene<'a> {
    pub node: &'a NodeIntent,
    pub settings: &'a Settings,
    pub ports: &'a Ports,
}

/// What the proxy serves for one Service. The keys of two Services differ.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Fragment {
    pub pools: BTreeMap<Key, Pool>,
    pub frontends: BTreeMap<Key, proxy::Frontend>,
}

impl Fragment {
    pub fn listening(&self) -> Listening<'_> {
        Listening { pools: &self.pools, frontends: &self.frontends }
    }
}

/// The key of the TCP listener for the redirected clients of a class.
pub fn redirect_key(family: Family, class: Class) -> Key {
    let class = if class == LOCAL { "local" } else { "cluster" };
    format!("redirect/{family}/{class}").into()
}

pub fn original_key(address: SocketAddr) -> Key {
    format!("to/{address}/tcp").into()
}

/// The keys for which the proxy needs ports of its own.
pub fn ports_of(service: &ServiceIntent, settings: &Settings) -> Vec<Key> {
    let mut keys = Vec::new();
    for port in &service.ports {
        match (settings.rules, proxied(port.protocol)) {
            (Rules::Nftables, Some(proxy::Protocol::Udp)) => {
                keys.extend([CLUSTER, LOCAL].map(|class| pool_key(service, port, class)));
            }
            (Rules::Iptables, Some(_)) => keys.push(pool_key(service, port, CLUSTER)),
            _ => {}
        }
    }
    keys
}

impl Scene<'_> {
    /// The listeners that the rules lead to, whatever Services there are.
    pub fn redirects(&self) -> BTreeMap<Key, proxy::Redirect> {
        let mut redirects = BTreeMap::new();
        if self.settings.rules == Rules::Nftables {
            for (family, class) in redirects_wanted() {
                let key = redirect_key(family, class);
                if let Some(port) = self.ports.get(&key) {
                    let address = SocketAddr::new(self.settings.proxy().address(family), port);
                    redirects.insert(key, proxy::Redirect { address, class });
                }
            }
        }
        redirects
    }

    /// What the proxy serves for this Service.
    pub fn fragment(&self, service: &ServiceIntent) -> Fragment {
        let mut fragment = Fragment::default();
        for port in &service.ports {
            if let Some(protocol) = proxied(port.protocol) {
                PortScene { scene: *self, service, port, protocol }.add_to(&mut fragment);
            }
        }
        fragment
    }

    /// The Service as the rules of nftables mode get to see it: its endpoints are the proxy's listeners.
    pub fn for_rules(&self, service: &ServiceIntent) -> ServiceIntent {
        let mut seen = service.clone();
        // Fields that no rule depends on must not look like a change of the rules.
        seen.health_check = None;
        seen.annotations.clear();
        seen.left_out = Default::default();
        for (port, original) in seen.ports.iter_mut().zip(&service.ports) {
            if let Some(protocol) = proxied(original.protocol) {
                PortScene { scene: *self, service, port: original, protocol }.redirect(port);
            }
        }
        seen
    }

    /// The node as the rules get to see it. The proxy counts its traffic itself.
    pub fn node_for_rules(&self) -> NodeIntent {
        NodeIntent { count_traffic: false, ..self.node.clone() }
    }

    /// The cluster IPs that need a local route.
    pub fn routes(&self, service: &ServiceIntent) -> Vec<IpAddr> {
        match self.settings.cluster_ips {
            ClusterIps::Bind => service.cluster_ips.clone(),
            ClusterIps::Redirect => Vec::new(),
        }
    }
}

/// The redirect listeners: two in each family.
pub fn redirects_wanted() -> impl Iterator<Item = (Family, Class)> {
    Family::ALL.into_iter().flat_map(|family| [CLUSTER, LOCAL].map(|class| (family, class)))
}

/// Which pools serve a frontend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Served {
    /// Not by the proxy: the kernel refuses or drops.
    Nobody,
    By(Class),
    /// Pods and this host by `cluster`, all others by `local`.
    ByClass,
}

/// One Service port that the proxy serves.
struct PortScene<'a> {
    scene: Scene<'a>,
    service: &'a ServiceIntent,
    port: &'a PortIntent,
    protocol: proxy::Protocol,
}

impl PortScene<'_> {
    fn add_to(&self, fragment: &mut Fragment) {
        if self.scene.settings.rules == Rules::Iptables {
            return self.behind_iptables(fragment);
        }
        for frontend in &self.port.frontends {
            let served = self.served(frontend);
            if served == Served::Nobody {
                continue;
            }
            for class in self.classes(served) {
                let key = self.pool_key(class);
                fragment.pools.entry(key).or_insert_with(|| self.pool(class));
            }
            match self.scene.settings.rules {
                Rules::None => self.without_rules(frontend, served, fragment),
                _ => self.behind_nftables(frontend, served, fragment),
            }
        }
    }

    fn behind_nftables(&self, frontend: &Frontend, served: Served, fragment: &mut Fragment) {
        if frontend.kind == FrontendKind::NodePort {
            for address in self.node_port_addresses() {
                // With classes, rules redirect all packets but those to loopback addresses, where only this host can be the client.
                self.listen_on_node_port(address, frontend, sole_class(served), fragment);
            }
            if served != Served::ByClass {
                return;
            }
        }
        let address = frontend.address.unwrap_or_else(|| unspecified(self.port.family));
        let address = SocketAddr::new(address, frontend.port);
        if self.is_bound(frontend) {
            return self.listen(address, true, sole_class(served), fragment);
        }
        match self.protocol {
            proxy::Protocol::Tcp => {
                let routes = self.routes(served);
                let arrival = proxy::Arrival::OriginalDestination(address);
                fragment.frontends.insert(original_key(address), proxy::Frontend { arrival, routes });
            }
            proxy::Protocol::Udp => {
                for class in self.classes(served) {
                    if let Some(address) = self.target(class) {
                        self.listen(address, true, class, fragment);
                    }
                }
            }
        }
    }

    /// One listener for all frontends of the Service port, on all addresses, as the original has it. Node ports are
    /// listened on, too: rules cannot redirect what is sent to loopback addresses.
    fn behind_iptables(&self, fragment: &mut Fragment) {
        let served: Vec<Served> = self.port.frontends.iter().map(|it| self.served(it)).collect();
        if served.iter().all(|it| *it == Served::Nobody) {
            return;
        }
        let only_local = served.iter().all(|it| matches!(it, Served::By(LOCAL) | Served::Nobody));
        let class = if only_local { LOCAL } else { CLUSTER };
        let Some(port) = self.scene.ports.get(&self.pool_key(CLUSTER)) else { return };
        fragment.pools.insert(self.pool_key(class), self.pool(class));
        let everywhere = unspecified(self.port.family);
        let bind = self.scene.node.family(self.port.family).bind_address;
        self.listen(SocketAddr::new(bind.unwrap_or(everywhere), port), false, class, fragment);
        for frontend in self.port.frontends.iter().filter(|it| it.kind == FrontendKind::NodePort) {
            self.listen(SocketAddr::new(everywhere, frontend.port), false, class, fragment);
        }
    }

    /// Without rules, pods and outside clients cannot be distinguished: all are treated as outside clients.
    fn without_rules(&self, frontend: &Frontend, served: Served, fragment: &mut Fragment) {
        if frontend.kind != FrontendKind::NodePort {
            return;
        }
        let class = match served {
            Served::ByClass => LOCAL,
            served => sole_class(served),
        };
        if class == LOCAL && self.port.local.is_empty() {
            return;
        }
        for address in self.node_port_addresses() {
            self.listen_on_node_port(address, frontend, class, fragment);
        }
    }

    /// The address may be one that the host gets later, or loses for a while.
    fn listen_on_node_port(
        &self,
        address: IpAddr,
        frontend: &Frontend,
        class: Class,
        fragment: &mut Fragment,
    ) {
        let freebind = !address.is_unspecified();
        self.listen(SocketAddr::new(address, frontend.port), freebind, class, fragment);
    }

    fn listen(&self, address: SocketAddr, freebind: bool, class: Class, fragment: &mut Fragment) {
        let arrival = proxy::Arrival::Socket {
            protocol: self.protocol,
            address,
            freebind,
            sockets: proxy::Sockets::One,
            class,
        };
        let routes = vec![proxy::Route::to(self.pool_key(class))];
        fragment.frontends.insert(socket_key(self.protocol, address), proxy::Frontend { arrival, routes });
    }

    fn routes(&self, served: Served) -> Vec<proxy::Route> {
        let to = |class| proxy::Route::to(self.pool_key(class));
        match served {
            Served::Nobody => Vec::new(),
            Served::By(class) => vec![to(class)],
            Served::ByClass if self.port.local.is_empty() => vec![to(CLUSTER)],
            Served::ByClass => vec![proxy::Route { classes: vec![LOCAL], ..to(LOCAL) }, to(CLUSTER)],
        }
    }

    /// Replaces the endpoints by the proxy's listeners, and leaves out frontends that need no rule.
    fn redirect(&self, seen: &mut PortIntent) {
        let target = |class, pool: &[Endpoint], always: bool| -> Vec<Endpoint> {
            let target = self.target(class).filter(|_| always || !pool.is_empty());
            target.map(|at| Endpoint { ip: at.ip(), port: at.port(), is_local: false }).into_iter().collect()
        };
        (seen.affinity, seen.size) = (None, 0);
        seen.cluster = target(CLUSTER, &self.port.cluster, self.holds());
        seen.local = target(LOCAL, &self.port.local, false);
        seen.frontends.retain(|frontend| {
            let served = self.served(frontend);
            let listened_on = match frontend.kind {
                FrontendKind::NodePort => served != Served::ByClass,
                _ => self.is_bound(frontend),
            };
            served == Served::Nobody || !listened_on
        });
        for frontend in &mut seen.frontends {
            frontend.route = match (self.served(frontend), frontend.route) {
                // Without masquerading: the connection ends here.
                (Served::By(CLUSTER), _) => Route::Cluster,
                (_, route) => route,
            };
        }
    }

    fn served(&self, frontend: &Frontend) -> Served {
        match frontend.route {
            Route::Reject if self.holds() => Served::By(CLUSTER),
            Route::Reject | Route::Drop => Served::Nobody,
            Route::Cluster | Route::ExternalCluster => Served::By(CLUSTER),
            Route::Local => Served::By(LOCAL),
            Route::ExternalLocal => Served::ByClass,
        }
    }

    /// The classes of clients that have endpoints here.
    fn classes(&self, served: Served) -> Vec<Class> {
        match served {
            Served::Nobody => Vec::new(),
            Served::By(class) => vec![class],
            Served::ByClass if self.port.local.is_empty() => vec![CLUSTER],
            Served::ByClass => vec![CLUSTER, LOCAL],
        }
    }

    /// Connections wait for an endpoint: the kernel must not refuse them.
    fn holds(&self) -> bool {
        self.protocol == proxy::Protocol::Tcp && balancing::hold(self.service).is_some()
    }

    /// The proxy listens on this cluster IP itself.
    fn is_bound(&self, frontend: &Frontend) -> bool {
        frontend.kind == FrontendKind::ClusterIp && self.scene.settings.cluster_ips == ClusterIps::Bind
    }

    fn pool(&self, class: Class) -> Pool {
        ferroxy_pools::pool(self.service, self.port, class, self.scene.settings.udp_idle)
    }

    /// Where the rules lead the clients of a class.
    fn target(&self, class: Class) -> Option<SocketAddr> {
        let key = match self.protocol {
            proxy::Protocol::Tcp => redirect_key(self.port.family, class),
            proxy::Protocol::Udp => self.pool_key(class),
        };
        let address = self.scene.settings.proxy().address(self.port.family);
        Some(SocketAddr::new(address, self.scene.ports.get(&key)?))
    }

    fn pool_key(&self, class: Class) -> Key {
        pool_key(self.service, self.port, class)
    }

    fn node_port_addresses(&self) -> Vec<IpAddr> {
        match &self.scene.node.family(self.port.family).node_port_addresses {
            NodePortAddresses::AllLocal => vec![unspecified(self.port.family)],
            NodePortAddresses::These(addresses) => addresses.iter().copied().collect(),
        }
    }
}

/// The pool for clients that no rule redirects.
fn sole_class(served: Served) -> Class {
    match served {
        Served::By(class) => class,
        Served::ByClass | Served::Nobody => CLUSTER,
    }
}
