//! The known state of the cluster, stored compactly and updated event by event. Fields are validated here (is this an
//! address?); the rules that use them are in `resolve`.

mod claims;
mod contest;
pub(crate) mod field;
mod identity;
mod interner;
mod lives;
mod node;
mod packed_service;
mod pages;
mod probe;
mod service;
mod shares;
mod slice;
mod slices;
mod touched;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

pub use claims::Claim;
pub(crate) use claims::{Claimed, Claims, Rank};
use lives::Lives;
pub(crate) use lives::MOST_PROBED;
pub use lives::Probed;
pub use node::{Node, ServiceCidr};
use packed_service::PackedService;
pub use service::{Listed, LoadBalancerIp, Service, ServiceKind, ServicePort};
use shares::Shares;
#[cfg(test)]
pub(crate) use slice::MOST_PORTS;
pub use slice::{Conditions, Place, Slice, SlicePort};
use slices::{NewSlice, Slices};
pub use touched::Touched;

use crate::dense::Dense;
use crate::diagnostic::{Cause, Diagnostic, Limited, Object, ObjectKind};
use crate::event::Event;
use crate::name::ServiceName;
use crate::policy::Policy;
use crate::resolve;

/// The most Diagnostics in total; further ones are only counted.
pub(crate) const MOST_DIAGNOSTICS: usize = 1_000;

/// The most slices of a Service that are used. Those of the slice controller have a hundred endpoints each.
pub(crate) const MOST_SLICES: usize = 10_000;

#[derive(Debug)]
pub struct Facts {
    policy: Policy,
    services: Dense<ServiceName, PackedService>,
    slices: Slices,
    nodes: BTreeMap<String, Node>,
    service_cidrs: BTreeMap<String, ServiceCidr>,
    host_addresses: Option<BTreeSet<IpAddr>>,
    claims: Claims,
    shares: Shares,
    lives: Lives,
    /// Objects with an unusable name.
    nameless: BTreeMap<Object, Diagnostic>,
}

/// Numbers of objects, for logs and metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub services: usize,
    pub slices: usize,
    pub endpoints: usize,
}

/// Updates.
impl Facts {
    pub fn new(policy: Policy) -> Facts {
        Facts {
            policy,
            services: Dense::default(),
            slices: Slices::default(),
            nodes: BTreeMap::new(),
            service_cidrs: BTreeMap::new(),
            host_addresses: None,
            claims: Claims::default(),
            shares: Shares::default(),
            lives: Lives::default(),
            nameless: BTreeMap::new(),
        }
    }

    /// Applies one event. An event without a change touches nothing.
    pub fn apply(&mut self, event: Event) -> Touched {
        match event {
            Event::Service(object) => match self.name(ObjectKind::Service, &object.namespace, &object.name) {
                Some(name) => {
                    let name = self.known(ServiceName::from_full(&name));
                    self.replace_service(&name, Some(Service::read(name.clone(), object)))
                }
                None => Touched::default(),
            },
            Event::ServiceGone { namespace, name } => {
                match self.name_gone(ObjectKind::Service, &namespace, &name) {
                    Some(name) => self.replace_service(&ServiceName::from_full(&name), None),
                    None => Touched::default(),
                }
            }
            Event::Slice(object) => {
                match self.name(ObjectKind::EndpointSlice, &object.namespace, &object.name) {
                    Some(name) => {
                        let mut new = self.slices.read(&name, object);
                        new.kept = new.kept.map(|(service, slice)| (self.known(service), slice));
                        self.replace_slice(&name, Some(new))
                    }
                    None => Touched::default(),
                }
            }
            Event::SliceGone { namespace, name } => {
                match self.name_gone(ObjectKind::EndpointSlice, &namespace, &name) {
                    Some(name) => self.replace_slice(&name, None),
                    None => Touched::default(),
                }
            }
            Event::Node(object) => self.replace_node(object.name.clone(), Some(Node::read(object))),
            Event::NodeGone { name } => self.replace_node(name, None),
            Event::ServiceCidr(object) => {
                self.replace_service_cidr(object.name.clone(), Some(ServiceCidr::read(object)))
            }
            Event::ServiceCidrGone { name } => self.replace_service_cidr(name, None),
            Event::HostAddresses(addresses) => self.replace_host_addresses(addresses),
            Event::Listed { kind, names } => self.keep_only(kind, &names),
            Event::Verdict(verdict) => match self.lives.judge(&verdict) {
                true => Touched { services: [verdict.service].into(), ..Touched::default() },
                false => Touched::default(),
            },
        }
    }

    pub fn set_policy(&mut self, policy: Policy) -> Touched {
        if self.policy == policy {
            return Touched::default();
        }
        self.policy = policy;
        // Which frontends a Service wants depends on the policy.
        self.contest_again();
        Touched::all()
    }

    /// Frees unused memory. Meant for when many objects have arrived.
    pub fn shrink(&mut self) {
        self.services.rebuild();
        self.slices.shrink();
        self.claims.shrink();
    }

    /// The same name, sharing the allocation of an equal name that is already stored.
    fn known(&self, name: ServiceName) -> ServiceName {
        let of_service = self.services.get_key_value(&name).map(|(known, _)| known);
        of_service.or_else(|| self.slices.known(&name)).cloned().unwrap_or(name)
    }

    fn replace_service(&mut self, name: &ServiceName, new: Option<(Service, Box<[Diagnostic]>)>) -> Touched {
        let (new, faults) = new.unzip();
        let packed = new.as_ref().map(|new| PackedService::new(new, faults.unwrap_or_default()));
        if self.services.get(name) == packed.as_ref() {
            return Touched::default();
        }
        let old = match packed {
            Some(packed) => self.services.insert(name.clone(), packed),
            None => self.services.remove(name),
        };
        let old = old.map(|old| old.unpack(name));
        let touched = self.contest(name, old.as_ref(), new.as_ref());
        self.follow_probe(name, old.as_ref().and_then(|old| old.probe.as_deref()));
        touched
    }

    fn replace_slice(&mut self, name: &str, new: Option<NewSlice>) -> Touched {
        let mut concerned = self.slices.replace(name, new);
        concerned.retain(|service| self.services.contains_key(service));
        concerned.iter().for_each(|service| self.follow_endpoints(service));
        Touched { services: concerned, ..Touched::default() }
    }

    fn replace_node(&mut self, name: String, new: Option<Node>) -> Touched {
        let is_own = name == self.policy.node_name;
        let before = self.seen_by_services();
        let addresses = resolve::known_addresses(self);
        let old = match new {
            Some(new) => self.nodes.insert(name.clone(), new),
            // The Node object may be deleted while the host keeps running with its addresses.
            None if is_own => match self.nodes.get_mut(&name) {
                Some(node) => Some(std::mem::replace(node, Node { gone: true, ..node.clone() })),
                None => None,
            },
            None => self.nodes.remove(&name),
        };
        if !is_own || old.as_ref() == self.nodes.get(&name) {
            return Touched::default();
        }
        let services = self.on_addresses_that_changed(&addresses);
        let everything = before != self.seen_by_services();
        Touched { services, everything, node: true, ..Touched::default() }
    }

    /// The fields of the node that the rules for Services read: its zone (topology) and its addresses (source ranges).
    fn seen_by_services(&self) -> (Option<Box<str>>, [Option<IpAddr>; 2]) {
        (self.zone().map(Into::into), resolve::node_ips(self))
    }

    fn replace_service_cidr(&mut self, name: String, new: Option<ServiceCidr>) -> Touched {
        if self.service_cidrs.get(&name) == new.as_ref() {
            return Touched::default();
        }
        let cidrs = |object: &Option<ServiceCidr>| object.iter().flat_map(|it| it.cidrs.to_vec()).collect();
        let mut concerned: Vec<IpNet> = cidrs(&new);
        let old = match new {
            Some(new) => self.service_cidrs.insert(name, new),
            None => self.service_cidrs.remove(&name),
        };
        concerned.extend::<Vec<_>>(cidrs(&old));
        Touched { node: true, services: self.with_outside_addresses_in(&concerned), ..Touched::default() }
    }

    /// The Services with an external IP or a load-balancer IP in one of the CIDRs. Walks all Services: ServiceCIDRs
    /// hardly ever change.
    fn with_outside_addresses_in(&self, cidrs: &[IpNet]) -> BTreeSet<ServiceName> {
        let is_inside = |ip: IpAddr| cidrs.iter().any(|cidr| cidr.contains(&ip));
        let is_concerned = |service: &Service| {
            service.external_ips.iter().any(|listed| is_inside(listed.value))
                || service.load_balancer_ips.iter().any(|listed| is_inside(listed.value.ip))
        };
        self.services().filter(is_concerned).map(|service| service.name).collect()
    }

    /// The Services that claim an address which this host got or lost.
    fn on_addresses_that_changed(&self, before: &BTreeSet<IpAddr>) -> BTreeSet<ServiceName> {
        let now = resolve::known_addresses(self);
        let changed = before.symmetric_difference(&now);
        changed.flat_map(|ip| self.claims.holders(Claim::WholeAddress { address: *ip })).cloned().collect()
    }

    fn replace_host_addresses(&mut self, addresses: Vec<IpAddr>) -> Touched {
        let new = Some(addresses.into_iter().collect());
        if self.host_addresses == new {
            return Touched::default();
        }
        let before = resolve::known_addresses(self);
        self.host_addresses = new;
        Touched { node: true, services: self.on_addresses_that_changed(&before), ..Touched::default() }
    }
}

/// Queries.
impl Facts {
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    pub fn service(&self, name: &ServiceName) -> Option<Service> {
        self.services.get(name).map(|service| service.unpack(name))
    }

    /// Sorted by name.
    pub fn services(&self) -> impl Iterator<Item = Service> {
        self.services.iter().map(|(name, service)| service.unpack(name))
    }

    pub fn service_names(&self) -> impl Iterator<Item = &ServiceName> {
        self.services.keys()
    }

    pub(crate) fn count_slices_of(&self, service: &ServiceName) -> usize {
        self.slices.count_of(service)
    }

    /// The slices of a Service, sorted by name, even if the Service is unknown; not more than [`MOST_SLICES`].
    pub fn slices_of(&self, service: &ServiceName) -> impl Iterator<Item = Slice<'_>> {
        self.slices.of(service).take(MOST_SLICES)
    }

    /// Whether a Service has more frontends and endpoints than about `most`. Stops reading slices once the answer is
    /// known.
    pub fn is_larger_than(&self, name: &ServiceName, most: usize) -> bool {
        let frontends = |service: Service| {
            let addresses = service.external_ips.len() + service.load_balancer_ips.len();
            service.ports.len().saturating_mul(addresses)
        };
        let mut size = self.service(name).map_or(0, frontends);
        let mut slices = self.slices_of(name);
        while size <= most
            && let Some(slice) = slices.next()
        {
            size += 1 + slice.len();
        }
        size > most
    }

    /// The location of the endpoint with this index.
    pub fn place(&self, slice: &Slice<'_>, index: usize) -> Option<&Place> {
        self.slices.place(slice, index)
    }

    /// The Node object of this node.
    pub fn own_node(&self) -> Option<&Node> {
        self.nodes.get(&self.policy.node_name)
    }

    /// The zone of this node.
    pub fn zone(&self) -> Option<&str> {
        self.own_node()?.zone.as_deref()
    }

    pub fn service_cidrs(&self) -> impl Iterator<Item = &ServiceCidr> {
        self.service_cidrs.values()
    }

    /// `None` until a source has reported them.
    pub fn host_addresses(&self) -> Option<&BTreeSet<IpAddr>> {
        self.host_addresses.as_ref()
    }

    pub(crate) fn claims(&self) -> &Claims {
        &self.claims
    }

    pub fn counts(&self) -> Counts {
        Counts {
            services: self.services.len(),
            slices: self.slices.count(),
            endpoints: self.slices.all().map(|(_, slice)| slice.len()).sum(),
        }
    }

    /// The slices whose Service is missing, in the order of the Services, up to a limit.
    pub fn orphans(&self) -> Vec<Diagnostic> {
        let mut limited = Limited::to(MOST_DIAGNOSTICS);
        let orphans = self.slices.all().filter(|(service, _)| !self.services.contains_key(*service));
        orphans.for_each(|(service, slice)| limited.add(Cow::Owned(orphan(service, &slice))));
        limited.finish(|| Object::node(&self.policy.node_name))
    }

    /// What is wrong with the fields of one Service and of its slices.
    pub(crate) fn diagnostics_of(&self, service: &ServiceName) -> impl Iterator<Item = &Diagnostic> {
        let own = self.services.get(service).into_iter().flat_map(|service| service.diagnostics());
        own.chain(self.slices_of(service).flat_map(|slice| slice.diagnostics()))
    }

    /// What is wrong with the fields of objects that belong neither to a Service nor to this node.
    pub(crate) fn other_diagnostics(&self) -> impl Iterator<Item = &Diagnostic> {
        let slices = self.slices.other_faults(|service| self.services.contains_key(service));
        let nodes = self.nodes.iter().filter(|(name, _)| **name != self.policy.node_name);
        self.nameless.values().chain(slices).chain(nodes.flat_map(|(_, node)| &node.diagnostics))
    }
}

/// During the initial list any slice may lack its Service for a moment, and sources may filter out the Service. So this
/// is reported only on request.
fn orphan(service: &ServiceName, slice: &Slice<'_>) -> Diagnostic {
    Diagnostic {
        object: Object::slice(slice.name()),
        field: "metadata.labels[kubernetes.io/service-name]".to_owned(),
        reason: format!("Service {service} does not exist"),
        effect: "its endpoints are not used".to_owned(),
        cause: Cause::Field,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{self, EndpointSlice, ServicePort as EventPort};

    fn service(name: &str, cluster_ip: &str, created: i64) -> event::Service {
        event::Service {
            namespace: "default".into(),
            name: name.into(),
            created: Some(created),
            cluster_ip: cluster_ip.into(),
            ports: vec![EventPort { port: 80, ..Default::default() }],
            ..Default::default()
        }
    }

    fn with_node_port(mut service: event::Service, node_port: i64) -> Event {
        service.ports[0].node_port = node_port;
        Event::Service(service)
    }

    fn slice(name: &str, service: &str, address: &str) -> EndpointSlice {
        EndpointSlice {
            namespace: "default".into(),
            name: name.into(),
            service: Some(service.into()),
            address_type: "IPv4".into(),
            ports: vec![event::SlicePort { name: Some(String::new()), port: Some(80), ..Default::default() }],
            endpoints: vec![event::SliceEndpoint {
                addresses: vec![address.into()],
                node_name: Some(format!("node-of-{address}")),
                ..Default::default()
            }],
            last_change: None,
        }
    }

    fn names(touched: &Touched) -> Vec<&str> {
        touched.services.iter().map(|name| name.name()).collect()
    }

    #[test]
    fn a_frontend_that_changes_its_owner_is_handed_over() {
        let mut facts = Facts::new(Policy::default());
        let external = |name: &str, address: &str, created, external: &[&str]| {
            let external_ips = external.iter().map(|&it| it.into()).collect();
            Event::Service(event::Service { external_ips, ..service(name, address, created) })
        };
        let touched = facts.apply(external("old", "10.96.0.1", 1, &["192.0.2.1"]));
        assert!(touched.handed_over.is_empty(), "no Service had any of it");
        // A newer Service gets no frontend, and a new endpoint moves no frontend.
        assert!(facts.apply(external("new", "10.96.0.2", 2, &["192.0.2.1"])).handed_over.is_empty());
        assert!(facts.apply(Event::Slice(slice("old-1", "old", "10.244.1.5"))).handed_over.is_empty());
        // The Service `newest` gets no frontend now, either: it only needs another Diagnostic.
        facts.apply(external("newest", "10.96.0.3", 3, &["192.0.2.1"]));
        let touched = facts.apply(external("old", "10.96.0.1", 1, &[]));
        assert_eq!(names(&touched), ["new", "newest", "old"]);
        let handed_over: Vec<&str> = touched.handed_over.iter().map(|name| name.name()).collect();
        assert_eq!(handed_over, ["new", "old"]);
    }

    /// The external IP is an address of this node: until it is claimed, the node port of another Service owns its port
    /// there.
    #[test]
    fn a_node_port_is_handed_over_to_an_external_ip_of_the_node() {
        let mut facts = Facts::new(Policy::default());
        facts.apply(Event::HostAddresses(vec!["172.18.0.2".parse().unwrap()]));
        facts.apply(with_node_port(service("port", "10.96.0.1", 1), 30080));
        let mut external = service("external", "10.96.0.2", 2);
        external.external_ips = vec!["172.18.0.2".into()];
        external.ports[0].port = 30080;
        facts.apply(Event::Service(external));
        let touched = facts.apply(Event::Service(service("port", "10.96.0.1", 1)));
        let handed_over: Vec<&str> = touched.handed_over.iter().map(|name| name.name()).collect();
        assert_eq!(handed_over, ["external", "port"]);
    }

    #[test]
    fn many_addresses_ports_or_endpoints_make_a_service_large() {
        let mut facts = Facts::new(Policy::default());
        let name = ServiceName::new("default", "web");
        let port = |port: i64| EventPort { name: format!("p{port}"), port, ..Default::default() };
        let ports = |count| (1..=count).map(port).collect();
        let external_ips = |count| (0..count).map(|it| format!("192.0.2.{it}")).collect();
        for (service, expected) in [
            (service("web", "10.96.0.80", 1), false),
            (
                event::Service {
                    ports: ports(2),
                    external_ips: external_ips(5),
                    ..service("web", "10.96.0.80", 1)
                },
                false,
            ),
            (
                event::Service {
                    ports: ports(2),
                    external_ips: external_ips(6),
                    ..service("web", "10.96.0.80", 1)
                },
                true,
            ),
        ] {
            facts.apply(Event::Service(service));
            assert_eq!(facts.is_larger_than(&name, 10), expected);
        }
        facts.apply(Event::Service(service("web", "10.96.0.80", 1)));
        for number in 0..6 {
            assert!(!facts.is_larger_than(&name, 10));
            facts.apply(Event::Slice(slice(&format!("web-{number}"), "web", "10.244.1.5")));
        }
        assert!(facts.is_larger_than(&name, 10));
        assert!(!facts.is_larger_than(&ServiceName::new("default", "unknown"), 0));
    }

    #[test]
    fn saying_the_same_again_touches_nothing() {
        let mut facts = Facts::new(Policy::default());
        let node = event::Node { name: String::new(), zone: Some("z1".into()), ..Default::default() };
        let cidr = event::ServiceCidr { name: "kubernetes".into(), cidrs: vec!["10.96.0.0/16".into()] };
        let events = [
            Event::Service(service("web", "10.96.0.80", 1)),
            Event::Slice(slice("web-1", "web", "10.244.1.5")),
            Event::Node(node),
            Event::ServiceCidr(cidr),
            Event::HostAddresses(vec!["172.18.0.2".parse().unwrap()]),
        ];
        for event in &events {
            assert!(!facts.apply(event.clone()).is_empty(), "{event:?}");
        }
        for event in &events {
            assert!(facts.apply(event.clone()).is_empty(), "{event:?}");
        }
        assert_eq!(facts.slices.places(), 1);
    }

    #[test]
    fn when_a_slice_changed_is_no_change() {
        let mut facts = Facts::new(Policy::default());
        facts.apply(Event::Slice(slice("web-1", "web", "10.244.1.5")));
        let later = EndpointSlice { last_change: Some(1), ..slice("web-1", "web", "10.244.1.5") };
        assert!(facts.apply(Event::Slice(later)).is_empty());
    }

    #[test]
    fn a_slice_touches_the_service_it_leaves_and_the_one_it_joins() {
        let mut facts = Facts::new(Policy::default());
        for name in ["web", "api"] {
            facts.apply(Event::Service(service(name, "10.96.0.80", 1)));
        }
        assert_eq!(names(&facts.apply(Event::Slice(slice("s", "web", "10.244.1.5")))), ["web"]);
        assert_eq!(names(&facts.apply(Event::Slice(slice("s", "api", "10.244.1.5")))), ["api", "web"]);
        assert_eq!(names(&facts.apply(Event::Slice(slice("s", "ghost", "10.244.1.5")))), ["api"]);
        assert_eq!(facts.counts(), Counts { services: 2, slices: 1, endpoints: 1 });
        let orphans = facts.orphans();
        assert_eq!(orphans.len(), 1);
        assert_eq!(orphans[0].reason, "Service default/ghost does not exist");
        let gone = Event::SliceGone { namespace: "default".into(), name: "s".into() };
        assert!(facts.apply(gone).is_empty());
        assert!(facts.slices.is_empty());
    }

    #[test]
    fn a_conflict_touches_whoever_gains_or_loses() {
        let mut facts = Facts::new(Policy::default());
        facts.apply(with_node_port(service("young", "10.96.0.1", 20), 30080));
        let younger = with_node_port(service("younger", "10.96.0.2", 30), 30080);
        assert_eq!(names(&facts.apply(younger)), ["younger"]);
        let old = with_node_port(service("old", "10.96.0.3", 10), 30080);
        assert_eq!(names(&facts.apply(old)), ["old", "young", "younger"]);
        let gone = Event::ServiceGone { namespace: "default".into(), name: "old".into() };
        assert_eq!(names(&facts.apply(gone)), ["old", "young", "younger"]);
    }

    #[test]
    fn a_cluster_ip_touches_the_services_that_use_its_address_on_any_port() {
        let mut facts = Facts::new(Policy::default());
        let mut early = service("early", "10.96.0.1", 1);
        early.external_ips = vec!["10.96.0.80".into()];
        early.ports[0].port = 81;
        facts.apply(Event::Service(early));
        let owner = facts.apply(Event::Service(service("web", "10.96.0.80", 2)));
        assert_eq!(names(&owner), ["early", "web"]);
    }

    #[test]
    fn addresses_of_the_host_touch_the_services_that_claim_them() {
        let mut facts = Facts::new(Policy::default());
        let mut web = service("web", "10.96.0.80", 1);
        web.external_ips = vec!["172.18.0.2".into()];
        facts.apply(Event::Service(web));
        let addresses =
            |texts: &[&str]| Event::HostAddresses(texts.iter().map(|text| text.parse().unwrap()).collect());
        assert_eq!(names(&facts.apply(addresses(&["172.18.0.2"]))), ["web"]);
        assert_eq!(names(&facts.apply(addresses(&["172.18.0.2", "172.18.0.3"]))), [""; 0]);
        assert_eq!(names(&facts.apply(addresses(&[]))), ["web"]);
    }

    #[test]
    fn only_the_own_node_matters() {
        let mut facts = Facts::new(Policy { node_name: "ka".into(), ..Policy::default() });
        let node = |name: &str, zone: &str, taint: &str| {
            Event::Node(event::Node {
                name: name.into(),
                zone: Some(zone.into()),
                taints: vec![taint.into()],
                ..Default::default()
            })
        };
        assert!(facts.apply(node("kb", "z2", "")).is_empty());
        assert_eq!(facts.apply(node("ka", "z1", "")), Touched::all());
        assert_eq!(facts.apply(node("ka", "z1", "cold")), Touched { node: true, ..Touched::default() });
        // The fields of the Node that Services use stay as they were.
        let gone = facts.apply(Event::NodeGone { name: "ka".into() });
        assert_eq!(gone, Touched { node: true, ..Touched::default() });
        assert_eq!(facts.zone(), Some("z1"));
        assert!(facts.apply(Event::NodeGone { name: "ka".into() }).is_empty());
    }

    #[test]
    fn objects_without_a_usable_name_are_only_diagnosed() {
        let mut facts = Facts::new(Policy::default());
        for name in ["", "a/b", "x\ny"] {
            assert!(facts.apply(Event::Service(service(name, "10.96.0.80", 1))).is_empty());
        }
        assert_eq!(facts.counts().services, 0);
        assert_eq!(facts.other_diagnostics().count(), 3);
        facts.apply(Event::ServiceGone { namespace: "default".into(), name: "a/b".into() });
        assert_eq!(facts.other_diagnostics().count(), 2);
    }

    #[test]
    fn a_new_policy_touches_everything_once() {
        let mut facts = Facts::new(Policy::default());
        assert!(facts.set_policy(Policy::default()).is_empty());
        assert_eq!(facts.set_policy(Policy { masquerade_all: true, ..Policy::default() }), Touched::all());
    }
}
