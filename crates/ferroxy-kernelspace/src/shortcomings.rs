//! Features that a Service asks for and HNS lacks, as Diagnostics. `docs/windows.md` has the same list; a test compares them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ferroxy_core::intent::{Endpoint as Pod, FrontendKind};
use ferroxy_core::policy::PRESERVE_DESTINATION;
use ferroxy_core::{Cause, Diagnostic, NodeIntent, Object, PortIntent, Protocol, Route, ServiceIntent};

use crate::render::{MOST_ENDPOINTS, largest_group};
use crate::surroundings::Surroundings;

/// A limit of HNS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    Refuse,
    Drop,
    SourceRanges,
    AffinityTimeout,
    Affinity,
    TargetPorts,
    Sctp,
    TooManyEndpoints,
    HostNetworkPod,
    NoRoute,
    LocalWithoutDsr,
    PreserveDestinationWithoutDsr,
    Family,
    NodePortHere,
    LocalHere,
}

impl Limit {
    pub const ALL: [Limit; 15] = [
        Limit::Refuse,
        Limit::Drop,
        Limit::SourceRanges,
        Limit::AffinityTimeout,
        Limit::Affinity,
        Limit::TargetPorts,
        Limit::Sctp,
        Limit::TooManyEndpoints,
        Limit::HostNetworkPod,
        Limit::NoRoute,
        Limit::LocalWithoutDsr,
        Limit::PreserveDestinationWithoutDsr,
        Limit::Family,
        Limit::NodePortHere,
        Limit::LocalHere,
    ];

    /// The field that asks for the feature.
    fn field(self) -> &'static str {
        match self {
            Limit::Refuse => "spec.ports[*]",
            Limit::Drop | Limit::LocalWithoutDsr | Limit::LocalHere => "spec.externalTrafficPolicy",
            Limit::SourceRanges => "spec.loadBalancerSourceRanges",
            Limit::AffinityTimeout => "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
            Limit::Affinity => "spec.sessionAffinity",
            Limit::TargetPorts => "spec.ports[*].targetPort",
            Limit::Sctp => "spec.ports[*].protocol",
            Limit::TooManyEndpoints | Limit::HostNetworkPod | Limit::NoRoute => "endpoints",
            Limit::PreserveDestinationWithoutDsr => "metadata.annotations[preserve-destination]",
            Limit::Family => "spec.ipFamilies",
            Limit::NodePortHere => "spec.ports[*].nodePort",
        }
    }

    /// The feature that a Service asks for, in the words of the documentation.
    pub fn asked(self) -> &'static str {
        match self {
            Limit::Refuse => "a Service without endpoints refuses connections",
            Limit::Drop => "policy Local without a local endpoint drops packets",
            Limit::SourceRanges => "`loadBalancerSourceRanges`",
            Limit::AffinityTimeout => "a timeout of session affinity",
            Limit::Affinity => "session affinity, before HNS 12.0",
            Limit::TargetPorts => "endpoints with different target ports",
            Limit::Sctp => "SCTP",
            Limit::TooManyEndpoints => "more than 1,024 endpoints of a port",
            Limit::HostNetworkPod => "a pod of this node in the host's network as an endpoint",
            Limit::NoRoute => "a pod of another node, on an overlay that has no route to it",
            Limit::LocalWithoutDsr => "policy Local, on an HNS without direct server return",
            Limit::PreserveDestinationWithoutDsr => {
                "`preserve-destination`, on an HNS without direct server return"
            }
            Limit::Family => "an address family that the network does not serve",
            Limit::NodePortHere => "node ports from the node itself",
            Limit::LocalHere => {
                "policy Local: pods reach endpoints of other nodes through the load-balancer IP"
            }
        }
    }

    /// What happens instead.
    pub fn effect(self) -> &'static str {
        match self {
            Limit::Refuse => "connections time out instead of being refused",
            Limit::Drop => "packets that arrive here are not translated, and are lost",
            Limit::SourceRanges => "every client is let in",
            Limit::AffinityTimeout => "clients stay with an endpoint as long as HNS remembers them",
            Limit::Affinity => "each connection of a client may reach another endpoint",
            Limit::TargetPorts => "endpoints with other ports get no traffic",
            Limit::Sctp => "the port is not served",
            Limit::TooManyEndpoints => "the endpoints beyond that get no traffic",
            Limit::HostNetworkPod => "it gets no traffic from this node",
            Limit::NoRoute => "it gets no traffic from this node until the network plugin adds the route",
            Limit::LocalWithoutDsr => {
                "traffic goes to endpoints of all nodes, and they see the node's address"
            }
            Limit::PreserveDestinationWithoutDsr => {
                "packets to its load-balancer IPs do not keep their destination"
            }
            Limit::Family => "the Service's addresses of that family are not served here",
            Limit::NodePortHere => "programs on this node must use the cluster IP",
            Limit::LocalHere => {
                "pods and programs on this node reach only endpoints of this node at its external addresses"
            }
        }
    }
}

/// What the answer depends on besides the Service.
#[derive(Debug, Clone, Copy)]
pub struct Here<'a> {
    pub node: &'a NodeIntent,
    /// `None`: HNS was not queried yet.
    pub surroundings: Option<&'a Surroundings>,
}

impl Here<'_> {
    /// HNS was queried, and has no direct server return.
    fn lacks_dsr(&self) -> bool {
        self.surroundings.is_some_and(|it| !it.features.dsr)
    }

    fn lacks_affinity(&self) -> bool {
        self.surroundings.is_some_and(|it| !it.features.session_affinity)
    }

    fn serves(&self, port: &PortIntent) -> bool {
        self.surroundings.is_none_or(|it| it.families(self.node).contains(&port.family))
    }
}

type Found = Vec<(Limit, String)>;

/// The features that this Service asks for and does not get.
pub fn of(service: &ServiceIntent, here: Here<'_>) -> Vec<Diagnostic> {
    let mut found: Found = service.ports.iter().flat_map(|port| of_port(port, here)).collect();
    if here.lacks_dsr() && service.annotation(PRESERVE_DESTINATION) == Some("true") {
        let reason = "it needs direct server return, and this HNS has none".to_owned();
        found.push((Limit::PreserveDestinationWithoutDsr, reason));
    }
    diagnostics(service, found)
}

/// Limits that apply to every Service of this kind, with any HNS.
pub fn of_its_kind(service: &ServiceIntent) -> Vec<Diagnostic> {
    diagnostics(service, service.ports.iter().flat_map(of_every_one).collect())
}

fn diagnostics(service: &ServiceIntent, found: Found) -> Vec<Diagnostic> {
    let diagnostic = |(limit, reason): (Limit, String)| Diagnostic {
        object: Object::service(&service.name),
        field: limit.field().to_owned(),
        reason,
        effect: limit.effect().to_owned(),
        cause: Cause::Field,
    };
    let found: BTreeSet<Diagnostic> = found.into_iter().map(diagnostic).collect();
    found.into_iter().collect()
}

fn of_port(port: &PortIntent, here: Here<'_>) -> Found {
    if !here.serves(port) {
        return vec![(Limit::Family, format!("the network of this node does not serve {}", port.family))];
    }
    if port.protocol == Protocol::Sctp {
        return vec![(Limit::Sctp, "HNS has no SCTP".to_owned())];
    }
    let mut found = of_routes(port, here);
    found.extend(of_fields(port, here));
    found.extend(of_endpoints(port, here));
    found
}

fn of_routes(port: &PortIntent, here: Here<'_>) -> Found {
    let routes: BTreeSet<Route> = port.frontends.iter().map(|it| it.route).collect();
    let mut found = Vec::new();
    if routes.contains(&Route::Reject) {
        found.push((Limit::Refuse, "it has no endpoint, and HNS cannot refuse connections".to_owned()));
    }
    let is_local = routes.contains(&Route::ExternalLocal);
    if is_local && here.lacks_dsr() {
        let reason = "policy Local needs direct server return, and this HNS has none".to_owned();
        found.push((Limit::LocalWithoutDsr, reason));
    }
    if routes.contains(&Route::Drop) || (is_local && !here.lacks_dsr() && port.local.is_empty()) {
        found.push((Limit::Drop, "policy Local, and no endpoint on this node".to_owned()));
    }
    found
}

fn of_fields(port: &PortIntent, here: Here<'_>) -> Found {
    let mut found = Vec::new();
    if port.frontends.iter().any(|it| it.allowed_sources.is_some()) {
        found.push((Limit::SourceRanges, "HNS does not filter by source".to_owned()));
    }
    match port.affinity {
        Some(_) if here.lacks_affinity() => {
            found.push((Limit::Affinity, "this HNS has no session affinity: it needs 12.0".to_owned()));
        }
        Some(seconds) => {
            let reason = format!("HNS has no timeout for session affinity ({seconds} s asked for)");
            found.push((Limit::AffinityTimeout, reason));
        }
        None => {}
    }
    found
}

fn of_every_one(port: &PortIntent) -> Found {
    let mut found = Vec::new();
    if port.frontends.iter().any(|it| it.route == Route::ExternalLocal) {
        found.push((Limit::LocalHere, "policy Local applies to pods and to the node itself, too".to_owned()));
    }
    if port.frontends.iter().any(|it| it.kind == FrontendKind::NodePort) {
        found.push((Limit::NodePortHere, "HNS does not serve node ports to the node itself".to_owned()));
    }
    found
}

fn of_endpoints(port: &PortIntent, here: Here<'_>) -> Found {
    let mut found = Vec::new();
    let node_ip = here.node.family(port.family).node_ip;
    let is_host = |pod: &&Pod| pod.is_local && Some(pod.ip) == node_ip;
    if let Some(pod) = port.cluster.iter().chain(&port.local).find(is_host) {
        let reason =
            format!("a pod of this node is in the host's network ({}), where HNS has no endpoint", pod.ip);
        found.push((Limit::HostNetworkPod, reason));
    }
    let is_lost =
        |pod: &&Pod| !pod.is_local && here.surroundings.is_some_and(|it| it.is_lost(pod.ip, here.node));
    let lost: BTreeSet<IpAddr> = port.cluster.iter().filter(is_lost).map(|pod| pod.ip).collect();
    if let Some(ip) = lost.first() {
        let reason = format!("the overlay has no route to {ip} ({} endpoints lack one)", lost.len());
        found.push((Limit::NoRoute, reason));
    }
    for pods in [&port.cluster, &port.local] {
        let pods: Vec<Pod> = pods.iter().filter(|pod| !is_host(pod) && !is_lost(pod)).copied().collect();
        let Some((chosen, ips)): Option<(u16, BTreeSet<IpAddr>)> = largest_group(&pods) else { continue };
        if pods.iter().any(|pod| pod.port != chosen) {
            let reason = format!("endpoints have different ports, and HNS has one: {chosen} is used");
            found.push((Limit::TargetPorts, reason));
        }
        if ips.len() > MOST_ENDPOINTS {
            let reason = format!("{} endpoints, and HNS takes {MOST_ENDPOINTS}", ips.len());
            found.push((Limit::TooManyEndpoints, reason));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ferroxy_core::Family;
    use ferroxy_core::testing::service;
    use ferroxy_hcn::Version;

    use super::*;
    use crate::options::Options;
    use crate::surroundings::Overlay;

    const NODE_IP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(172, 18, 0, 2));

    fn node() -> NodeIntent {
        let mut node = NodeIntent { primary_family: Some(Family::V4), ..NodeIntent::default() };
        node.v4.node_ip = Some(NODE_IP);
        node
    }

    fn surroundings(version: Version) -> Surroundings {
        let options = Options { network: None, source_vip: None, enable_dsr: false, root_endpoint: None };
        Surroundings { features: version.into(), ..Surroundings::assumed(&options) }
    }

    /// Asserts that the Diagnostics are exactly those of the limits.
    fn check(version: Version, change: impl Fn(&mut ServiceIntent), expected: &[Limit]) -> Vec<Limit> {
        let (_, mut intent) = service(1, [1, 2]);
        change(Arc::make_mut(&mut intent));
        let (node, surroundings) = (node(), surroundings(version));
        let found = of(&intent, Here { node: &node, surroundings: Some(&surroundings) });
        let found = found.into_iter().chain(of_its_kind(&intent));
        let found: BTreeSet<(String, String)> = found.map(|it| (it.field, it.effect)).collect();
        let wanted = expected.iter().map(|it| (it.field().to_owned(), it.effect().to_owned()));
        assert_eq!(found, wanted.collect());
        expected.to_vec()
    }

    fn of_one(change: impl Fn(&mut PortIntent)) -> impl Fn(&mut ServiceIntent) {
        move |service| change(&mut service.ports[0])
    }

    /// Shows every limit, and no Diagnostic for a Service that asks for none of the features.
    #[test]
    fn what_hns_cannot_do_is_said() {
        let (new, old) = (Version::NEWEST, Version::new(9, 2));
        let local = |port: &mut PortIntent| {
            port.frontends[0].route = Route::ExternalLocal;
            port.frontends[0].kind = FrontendKind::NodePort;
        };
        check(new, |_| {}, &[]);
        check(old, |_| {}, &[]);
        let many = |port: &mut PortIntent| {
            let pod = port.cluster[0];
            let ip = |number: u16| IpAddr::from([10, 9, number.to_be_bytes()[0], number.to_be_bytes()[1]]);
            port.cluster = (0..1025).map(|number| Pod { ip: ip(number), ..pod }).collect();
        };
        let host_pod = |port: &mut PortIntent| {
            port.cluster[0] = Pod { ip: NODE_IP, is_local: true, ..port.cluster[0] };
        };
        let shown = [
            check(new, of_one(|port| port.protocol = Protocol::Sctp), &[Limit::Sctp]),
            check(new, of_one(|port| port.frontends[0].route = Route::Reject), &[Limit::Refuse]),
            check(new, of_one(|port| port.frontends[0].route = Route::Drop), &[Limit::Drop]),
            check(new, of_one(|port| port.affinity = Some(60)), &[Limit::AffinityTimeout]),
            check(old, of_one(|port| port.affinity = Some(60)), &[Limit::Affinity]),
            check(
                new,
                of_one(|port| port.frontends[0].allowed_sources = Some(Vec::new())),
                &[Limit::SourceRanges],
            ),
            check(new, of_one(|port| port.cluster[0].port = 1), &[Limit::TargetPorts]),
            check(new, of_one(many), &[Limit::TooManyEndpoints]),
            check(new, of_one(host_pod), &[Limit::HostNetworkPod]),
            check(new, of_one(local), &[Limit::Drop, Limit::LocalHere, Limit::NodePortHere]),
            check(old, of_one(local), &[Limit::LocalWithoutDsr, Limit::LocalHere, Limit::NodePortHere]),
            check(old, of_one(|port| port.family = Family::V6), &[Limit::Family]),
            check(
                old,
                |it| it.annotations = vec![(PRESERVE_DESTINATION, "true".into())],
                &[Limit::PreserveDestinationWithoutDsr],
            ),
        ];
        let shown = [shown.concat(), vec![Limit::NoRoute]].concat();
        assert!(Limit::ALL.iter().all(|limit| shown.contains(limit)), "a limit has no case");
        check(new, |it| it.annotations = vec![(PRESERVE_DESTINATION, "true".into())], &[]);
    }

    #[test]
    fn a_pod_without_a_route_is_reported_and_an_address_outside_is_not() {
        let (_, mut intent) = service(1, [2 * 256 + 5, 3 * 256 + 5]);
        let outside = Pod { ip: [192, 0, 2, 7].into(), ..intent.ports[0].cluster[0] };
        Arc::make_mut(&mut intent).ports[0].cluster.push(outside);
        let route = ferroxy_hcn::RemoteSubnetRoute {
            network: [10, 244, 2, 0].into(),
            prefix_length: 24,
            provider: [172, 18, 0, 3].into(),
        };
        let overlay =
            Overlay { routes: vec![route], own: vec![], source_vip: NODE_IP, host_mac: Default::default() };
        let surroundings = Surroundings { overlay: Some(overlay), ..surroundings(Version::NEWEST) };
        let mut node = node();
        let said = |node: &NodeIntent| {
            let found = of(&intent, Here { node, surroundings: Some(&surroundings) });
            found.into_iter().map(|it| (it.reason, it.effect)).collect::<Vec<_>>()
        };
        assert_eq!(said(&node), [], "which addresses are pods is not known");
        let range = "10.244.0.0/16".parse().unwrap();
        node.v4.local_detector = Some(ferroxy_core::intent::LocalDetector::SourceIn(range));
        let reason = "the overlay has no route to 10.244.3.5 (1 endpoints lack one)".to_owned();
        assert_eq!(said(&node), [(reason, Limit::NoRoute.effect().to_owned())]);
    }

    /// Without an answer of HNS, only limits of every version are reported.
    #[test]
    fn nothing_is_said_about_an_hns_that_was_not_asked() {
        let (_, mut intent) = service(1, [1, 2]);
        Arc::make_mut(&mut intent).ports[0].family = Family::V6;
        let node = node();
        assert_eq!(of(&intent, Here { node: &node, surroundings: None }), []);
        let overlay =
            Overlay { routes: vec![], own: vec![], source_vip: NODE_IP, host_mac: Default::default() };
        let surroundings = Surroundings { overlay: Some(overlay), ..surroundings(Version::NEWEST) };
        let found = of(&intent, Here { node: &node, surroundings: Some(&surroundings) });
        assert_eq!(found.len(), 1, "an overlay serves one family: {found:?}");
    }

    /// The table of the documentation has these rows, and one for what core reports.
    #[test]
    fn the_documentation_lists_what_is_reported() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/windows.md");
        let text = std::fs::read_to_string(path).unwrap();
        let chapter = text.split("\n## ").find(|it| it.starts_with("What HNS cannot do")).unwrap();
        let rows = chapter.lines().filter(|line| line.starts_with("| ")).skip(1);
        let rows: Vec<(&str, &str)> =
            rows.map(|row| row.trim_matches(['|', ' ']).split_once(" | ").unwrap()).collect();
        let mut expected: Vec<(&str, &str)> =
            Limit::ALL.iter().map(|limit| (limit.asked(), limit.effect())).collect();
        expected.push(("topology hints", ferroxy_core::resolve::HINTS_WITHOUT_EFFECT));
        assert_eq!(rows, expected);
    }
}
