//! Broken Services as people meet them, and what `explain` says about each.

use super::*;
use crate::event::{self, Event, SliceEndpoint, SlicePort};
use crate::policy::Policy;

fn service() -> event::Service {
    event::Service {
        namespace: "default".into(),
        name: "web".into(),
        kind: "NodePort".into(),
        cluster_ip: "10.96.0.80".into(),
        ports: vec![event::ServicePort {
            name: "http".into(),
            port: 80,
            node_port: 30080,
            target_port: "8080".into(),
            ..Default::default()
        }],
        ..Default::default()
    }
}

fn pod(address: &str, node: &str) -> SliceEndpoint {
    SliceEndpoint {
        addresses: vec![address.into()],
        node_name: Some(node.into()),
        target: Some(format!("pod-{node}")),
        ..Default::default()
    }
}

fn slice(port: &str, endpoints: Vec<SliceEndpoint>) -> event::EndpointSlice {
    event::EndpointSlice {
        namespace: "default".into(),
        name: "web-1".into(),
        service: Some("web".into()),
        address_type: "IPv4".into(),
        ports: vec![SlicePort { name: Some(port.into()), port: Some(8080), ..Default::default() }],
        endpoints,
        last_change: None,
    }
}

fn facts(services: Vec<event::Service>, slices: Vec<event::EndpointSlice>) -> Facts {
    let mut facts = Facts::new(Policy { node_name: "ka".into(), ..Policy::default() });
    let node = event::Node { name: "ka".into(), zone: Some("z1".into()), ..Default::default() };
    facts.apply(Event::Node(node));
    for service in services {
        facts.apply(Event::Service(service));
    }
    for slice in slices {
        facts.apply(Event::Slice(slice));
    }
    facts
}

fn explain_web(service: event::Service, slices: Vec<event::EndpointSlice>) -> Explanation {
    let (facts, name) = (facts(vec![service], slices), ServiceName::new("default", "web"));
    let (explanation, brief) = (explain(&facts, &name), brief(&facts, &name));
    let problems = explanation.findings.len() + explanation.diagnostics.len();
    assert_eq!((brief.problems, &brief.standing), (problems, &explanation.standing));
    let first = explanation.findings.first().map(|finding| finding.problem.clone());
    assert_eq!(brief.problem, first.or_else(|| explanation.diagnostics.first().map(ToString::to_string)));
    explanation
}

fn assert_finds(explanation: &Explanation, words: &str) {
    let problems: Vec<_> = explanation.findings.iter().map(|finding| &finding.problem).collect();
    assert!(problems.iter().any(|problem| problem.contains(words)), "no {words:?} in {problems:#?}");
}

/// Checks that the words are in a note and not in a problem.
fn assert_notes(explanation: &Explanation, words: &str) {
    let notes: Vec<_> = explanation.notes.iter().map(|note| &note.problem).collect();
    assert!(notes.iter().any(|note| note.contains(words)), "no {words:?} in {notes:#?}");
    assert!(!explanation.findings.iter().any(|it| it.problem.contains(words)), "{explanation:#?}");
}

fn reasons(explanation: &Explanation) -> Vec<(String, String)> {
    let endpoints = &explanation.ports[0].endpoints;
    let reason = |e: &EndpointExplanation| (e.address.clone(), e.reason.clone().unwrap_or_default());
    endpoints.iter().map(reason).collect()
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect()
}

#[test]
fn a_healthy_service_has_nothing_to_find() {
    let explanation =
        explain_web(service(), vec![slice("http", vec![pod("10.0.0.1", "ka"), pod("10.0.0.2", "kb")])]);
    assert_eq!((explanation.findings, explanation.diagnostics), (vec![], vec![]));
    assert_eq!(explanation.standing, Standing::Ours);
    let port = &explanation.ports[0];
    let words: Vec<_> = port.frontends.iter().map(|frontend| frontend.words.as_str()).collect();
    assert_eq!(words, ["to 2 endpoints", "to 2 endpoints, masqueraded"]);
    assert_eq!(port.endpoints[0].target, "pod-ka");
    assert!(
        port.endpoints[0].is_local && port.endpoints[0].used_for_cluster && !port.endpoints[0].used_for_local
    );
}

#[test]
fn an_unknown_service_may_be_elsewhere_or_misspelt() {
    let mut other = service();
    other.namespace = "prod".into();
    let mut typo = service();
    typo.name = "wep".into();
    let facts = facts(vec![other, typo], vec![]);
    let missing = explain(&facts, &ServiceName::new("default", "web"));
    let Standing::Unknown { elsewhere, similar } = &missing.standing else {
        panic!("{:?}", missing.standing)
    };
    assert_eq!(elsewhere, &[ServiceName::new("prod", "web")]);
    assert_eq!(similar, &[ServiceName::new("default", "wep")]);
    assert_eq!(missing.findings[0].fix, "A Service with this name exists in another namespace: prod/web.");
    let misspelt = explain(&facts, &ServiceName::new("default", "we"));
    assert_eq!(misspelt.findings[0].fix, "Did you mean default/wep?");
}

#[test]
fn services_of_others_say_whose_they_are() {
    for (change, words) in [
        ((|s| s.cluster_ip = "None".into()) as fn(&mut event::Service), "headless"),
        (|s| s.kind = "ExternalName".into(), "ExternalName"),
        (|s| s.proxy_name = Some("cilium".into()), "the proxy `cilium`"),
        (|s| s.cluster_ip = String::new(), "no usable cluster IP"),
    ] {
        let mut object = service();
        change(&mut object);
        let explanation = explain_web(object, vec![]);
        assert!(matches!(explanation.standing, Standing::NotOurs(_)));
        match words {
            "no usable cluster IP" => assert_finds(&explanation, words),
            _ => assert_notes(&explanation, words),
        }
    }
}

#[test]
fn causes_of_missing_endpoints_are_distinguished() {
    assert_finds(&explain_web(service(), vec![]), "no EndpointSlice");
    assert_finds(&explain_web(service(), vec![slice("http", vec![])]), "have no usable endpoint");
    let misnamed = explain_web(service(), vec![slice("web", vec![pod("10.0.0.1", "ka")])]);
    assert_finds(
        &misnamed,
        "has a port named http (tcp), but its EndpointSlices only have: port named web (tcp)",
    );
    assert_eq!(reasons(&misnamed), pairs(&[("10.0.0.1", "its EndpointSlice has no port named http (tcp)")]));
    let mut with_many_ports = slice("p0", vec![pod("10.0.0.1", "ka")]);
    with_many_ports.ports = (0..5_000)
        .map(|it| SlicePort { name: Some(format!("p{it}")), port: Some(8080), ..Default::default() })
        .collect();
    let with_many_ports = explain_web(service(), vec![with_many_ports]);
    assert_finds(&with_many_ports, "port named p0 (tcp), port named p1 (tcp), ");
    assert_finds(&with_many_ports, ", and others. Connections");
    assert!(with_many_ports.findings.iter().all(|finding| finding.problem.len() < 1_000));
    let not_ready = SliceEndpoint { ready: Some(false), serving: Some(false), ..pod("10.0.0.1", "ka") };
    let not_ready = explain_web(service(), vec![slice("http", vec![not_ready])]);
    assert_finds(&not_ready, "No IPv4 endpoint of port 80 is ready");
    assert_eq!(reasons(&not_ready), pairs(&[("10.0.0.1:8080", "not ready")]));
}

#[test]
fn a_family_without_slices_is_reported() {
    let mut dual = service();
    dual.cluster_ips = vec!["10.96.0.80".into(), "fd00::80".into()];
    dual.ip_families = vec!["IPv4".into(), "IPv6".into()];
    let explanation = explain_web(dual, vec![slice("http", vec![pod("10.0.0.1", "ka")])]);
    assert_finds(&explanation, "no EndpointSlice with IPv6 addresses");
    assert_eq!(explanation.findings.len(), 1);
}

#[test]
fn unused_endpoints_say_why() {
    let leaving = SliceEndpoint { ready: Some(false), terminating: Some(true), ..pod("10.0.0.3", "ka") };
    let mut second = slice("http", vec![pod("10.0.0.1", "ka")]);
    second.name = "web-2".into();
    let endpoints = vec![pod("10.0.0.1", "ka"), leaving, pod("10.0.0.09", "ka")];
    let explanation = explain_web(service(), vec![slice("http", endpoints), second]);
    let expected = [
        ("10.0.0.1:8080", ""),
        ("10.0.0.3:8080", "terminating while ready endpoints exist"),
        ("10.0.0.1:8080", "duplicate of an endpoint in default/web-1"),
        ("endpoints[2].addresses[0]", "invalid address: `10.0.0.09` is not an IP address"),
    ];
    assert_eq!(reasons(&explanation), pairs(&expected));
}

#[test]
fn hints_are_explained_when_used_and_when_ignored() {
    let hinted =
        |address: &str, zone: &str| SliceEndpoint { hint_zones: vec![zone.into()], ..pod(address, "kb") };
    let used =
        explain_web(service(), vec![slice("http", vec![hinted("10.0.0.1", "z1"), hinted("10.0.0.2", "z2")])]);
    let expected = [("10.0.0.1:8080", ""), ("10.0.0.2:8080", "hinted for zone z2, this node is in z1")];
    assert_eq!(reasons(&used), pairs(&expected));
    let partly =
        explain_web(service(), vec![slice("http", vec![hinted("10.0.0.1", "z1"), pod("10.0.0.2", "kb")])]);
    assert_notes(&partly, "zone hints of port 80 are ignored: endpoint 10.0.0.2:8080 has none");
}

#[test]
fn local_policies_without_a_local_endpoint_are_reported() {
    let mut local = service();
    local.external_traffic_policy = "Local".into();
    let remote = vec![slice("http", vec![pod("10.0.0.2", "kb")])];
    let explanation = explain_web(local.clone(), remote.clone());
    assert_notes(&explanation, "External traffic to port 80 (node port) is dropped on this node");
    local.external_traffic_policy = String::new();
    local.internal_traffic_policy = "Local".into();
    local.ports[0].node_port = 0;
    let explanation = explain_web(local, remote);
    assert_finds(&explanation, "Connections to port 80 (cluster IP) are dropped on this node");
    assert_eq!(
        reasons(&explanation),
        pairs(&[("10.0.0.2:8080", "on another node, and the traffic policy is Local")])
    );
}

#[test]
fn a_terminating_endpoint_elsewhere_is_not_blamed_for_terminating() {
    let mut local = service();
    local.internal_traffic_policy = "Local".into();
    local.ports[0].node_port = 0;
    let leaving = SliceEndpoint { ready: Some(false), terminating: Some(true), ..pod("10.0.0.2", "kb") };
    let explanation = explain_web(local, vec![slice("http", vec![leaving])]);
    assert_eq!(
        reasons(&explanation),
        pairs(&[("10.0.0.2:8080", "on another node, and the traffic policy is Local")])
    );
}

#[test]
fn a_lost_frontend_names_its_owner() {
    let mut api = service();
    api.name = "api".into();
    api.cluster_ip = "10.96.0.81".into();
    let explanation = explain(&facts(vec![service(), api], vec![]), &ServiceName::new("default", "web"));
    assert_finds(
        &explanation,
        "Port 80 gets no IPv4 node port: node port 30080/tcp already belongs to default/api",
    );
    assert_eq!(explanation.diagnostics, [], "one of the two is enough");
}

#[test]
fn what_other_programs_serve_is_no_problem_and_a_missing_address_is() {
    let fine = |change: fn(&mut event::Service)| {
        let mut service = service();
        change(&mut service);
        let explanation = explain_web(service, vec![]);
        assert_eq!(explanation.findings.len() + explanation.notes.len(), 1, "{explanation:#?}");
        assert!(matches!(explanation.standing, Standing::NotOurs(_)), "{explanation:#?}");
        explanation.is_fine()
    };
    assert!(fine(|it| it.cluster_ip = "None".into()));
    assert!(fine(|it| it.proxy_name = Some("other".into())));
    assert!(fine(|it| it.kind = "ExternalName".into()));
    assert!(!fine(|it| it.cluster_ip = String::new()));
}

#[test]
fn the_service_that_takes_a_foreign_cluster_ip_is_blamed_and_not_the_owner() {
    let mut thief = service();
    thief.name = "thief".into();
    thief.created = Some(1);
    thief.cluster_ip = "10.96.0.81".into();
    thief.ports[0].node_port = 0;
    thief.external_ips = vec!["10.96.0.80".into()];
    let mut victim = service();
    victim.created = Some(2);
    let healthy = slice("http", vec![pod("10.0.0.1", "ka")]);
    let facts = facts(vec![thief, victim], vec![healthy]);
    let victim = explain(&facts, &ServiceName::new("default", "web"));
    assert_eq!((victim.findings, victim.diagnostics), (vec![], vec![]));
    let thief = explain(&facts, &ServiceName::new("default", "thief"));
    let problem =
        "Port 80 is not reachable at the external IP 10.96.0.80: 10.96.0.80 is the cluster IP of default/web";
    assert_finds(&thief, problem);
    let fix = "Change spec.externalIPs[0] in this Service: a cluster IP takes precedence over it.";
    assert!(thief.findings.iter().any(|finding| finding.fix == fix), "{:?}", thief.findings);
}

#[test]
fn load_balancers_without_or_with_foreign_addresses_are_reported() {
    let mut balanced = service();
    balanced.kind = "LoadBalancer".into();
    assert_notes(&explain_web(balanced.clone(), vec![]), "No load-balancer IP is assigned");
    balanced.ingress = vec![event::Ingress { ip: "203.0.113.1".into(), ip_mode: "Proxy".into() }];
    assert_notes(
        &explain_web(balanced, vec![]),
        "203.0.113.1 is not programmed on the node: its ipMode is Proxy",
    );
}

/// Checks all texts that `explain` gives to the terminal of a user.
#[test]
fn what_tenants_write_reaches_no_terminal_as_it_is() {
    let hostile = "x\u{1b}]0;title\u{7}\n\u{9b}31m\u{202e}".to_owned();
    let mut object = service();
    object.ports[0].target_port = hostile.clone();
    object.proxy_name = None;
    let endpoint = SliceEndpoint {
        zone: Some(hostile.clone()),
        hint_zones: vec![hostile.clone()],
        target: Some(hostile.clone()),
        ..pod("10.0.0.1", &hostile)
    };
    let hinted = SliceEndpoint { hint_zones: vec!["z1".into()], ..pod("10.0.0.2", "kb") };
    let broken = SliceEndpoint { addresses: vec![hostile.clone()], ..pod("", "kb") };
    let slices = vec![slice("http", vec![endpoint, hinted, broken]), {
        let mut other = slice("http", vec![]);
        other.name = "web-2".into();
        other.address_type = hostile.clone();
        other
    }];
    let used = explain_web(object.clone(), slices.clone());
    object.ports[0].name = "other".into();
    let misnamed = explain_web(object.clone(), slices.clone());
    object.proxy_name = Some(hostile.clone());
    let foreign = explain_web(object, slices);
    for explanation in [used, misnamed, foreign] {
        for port in &explanation.ports {
            let mut texts = vec![port.target_port.clone()];
            for row in &port.endpoints {
                texts.extend([row.address.clone(), row.target.clone(), row.slice.clone()]);
                texts.extend([&row.node, &row.zone, &row.reason].into_iter().flatten().cloned());
            }
            assert!(texts.iter().all(|text| crate::foreign::printable(text) == *text), "{texts:#?}");
        }
        for finding in &explanation.findings {
            let text = format!("{} {}", finding.problem, finding.fix);
            assert_eq!(crate::foreign::printable(&text), text);
        }
        for diagnostic in &explanation.diagnostics {
            let text = diagnostic.to_string();
            assert_eq!(crate::foreign::printable(&text), text);
        }
    }
}
