//! Rings 1 and 2: `nft` lists what we write as we print it, and we read it back as we rendered it. Needs root.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use ferroxy_core::intent::{
    Endpoint, FamilyIntent, Frontend, FrontendKind, Intent, LocalDetector, NodeIntent, NodePortAddresses,
    PortIntent, Route, ServiceIntent,
};
use ferroxy_core::{Family, Protocol, ServiceName};
use ferroxy_dataplane::capability::leftovers::{Established, InForce};
use ferroxy_dataplane::{
    Change, Changed, CountsTraffic, Dataplane, Failure, FailureKind, Persists, Programmed,
    Settings as Values, TakesOver, Tidies, Value, Verifies,
};
use ferroxy_netlink::nftables::{Connection, Monitor, Notice};
use ferroxy_nftables::dataplane::observe::observe;
use ferroxy_nftables::settings::MASQUERADE_BIT;
use ferroxy_nftables::{Nftables, Settings, State};

/// Runs a test in a network namespace of its own.
fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        // SAFETY: this thread was made for this; nothing else depends on its network namespace.
        unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }
            .expect("cannot make a network namespace: run as root, or under `unshare -Urn`");
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn nft(arguments: &[&str]) -> String {
    let output = Command::new("nft").args(arguments).output().expect("nft is installed");
    assert!(output.status.success(), "nft {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("nft prints UTF-8")
}

fn open(families: &[Family]) -> Nftables {
    Nftables::open(families, Settings::default()).unwrap()
}

fn render(intent: &Intent) -> State {
    ferroxy_nftables::render(intent, &Settings::default(), &Family::ALL)
}

fn is_as_it_must_be(dataplane: &mut Nftables) -> bool {
    dataplane.verify().unwrap().operations == 0
}

fn start(dataplane: &mut Nftables, intent: &Intent) {
    let outcome = dataplane.start(intent).unwrap();
    assert_eq!(outcome.refused, [], "the kernel takes every Service");
}

fn endpoints(family: Family, numbers: &[u16]) -> Vec<Endpoint> {
    let address = |n: u16| match family {
        Family::V4 => std::net::Ipv4Addr::new(10, 244, 1, n as u8).into(),
        Family::V6 => std::net::Ipv6Addr::new(0xfd00, 0x10, 0x244, 1, 0, 0, 0, n).into(),
    };
    numbers.iter().map(|n| Endpoint { ip: address(*n), port: 8080, is_local: *n < 10 }).collect()
}

fn port(family: Family, affinity: Option<u32>, name: &str, host: u16) -> PortIntent {
    let (cluster, external, range) = match family {
        Family::V4 => (format!("10.96.0.{host}"), format!("203.0.113.{host}"), "192.168.0.0/16"),
        Family::V6 => (format!("fd00:10:96::{host}"), format!("2001:db8::{host}"), "fd00:1::/32"),
    };
    let frontend = |kind, address: Option<&str>, port, route| Frontend {
        kind,
        address: address.map(|a| a.parse().unwrap()),
        port,
        route,
        allowed_sources: None,
    };
    let mut balanced = frontend(FrontendKind::LoadBalancer, Some(&external), 80, Route::ExternalCluster);
    balanced.allowed_sources = Some(vec![range.parse().unwrap()]);
    PortIntent {
        name: name.into(),
        family,
        protocol: Protocol::Tcp,
        affinity,
        cluster: endpoints(family, &[5, 6, 20]),
        local: endpoints(family, &[5, 6]),
        size: 3,
        frontends: vec![
            frontend(FrontendKind::ClusterIp, Some(&cluster), 80, Route::Cluster),
            frontend(FrontendKind::ClusterIp, Some(&cluster), 81, Route::Local),
            balanced,
            frontend(FrontendKind::NodePort, None, 30000 + host, Route::ExternalLocal),
            frontend(FrontendKind::ExternalIp, Some(&external), 82, Route::Reject),
            frontend(FrontendKind::ExternalIp, Some(&external), 83, Route::Drop),
        ],
    }
}

/// One Service of each treatment, with and without affinity, in both families.
fn sample() -> Intent {
    let services = [("web", None, 80), ("sticky", Some(10800), 81)].map(|(name, affinity, host)| {
        let name = ServiceName::new("default", name);
        let ports: Vec<PortIntent> = Family::ALL.map(|family| port(family, affinity, "http", host)).into();
        let cluster_ips = ports.iter().filter_map(|port| port.frontends[0].address).collect();
        (
            name.clone(),
            Arc::new(ServiceIntent {
                name,
                cluster_ips,
                ports,
                health_check: None,
                annotations: Vec::new(),
                left_out: Default::default(),
            }),
        )
    });
    let family = |range: &str, address: &str, cidr: &str| FamilyIntent {
        bind_address: None,
        node_ip: Some(address.parse().unwrap()),
        local_detector: Some(LocalDetector::SourceIn(range.parse().unwrap())),
        node_port_addresses: NodePortAddresses::These([address.parse().unwrap()].into()),
        node_ports_on_loopback: false,
        listen_on_loopback: false,
        service_cidrs: vec![cidr.parse().unwrap()],
    };
    Intent {
        node: NodeIntent {
            v4: family("10.244.0.0/16", "172.18.0.2", "10.96.0.0/16"),
            v6: family("fd00:10:244::/56", "fd00:172:18::2", "fd00:10:96::/112"),
            ..NodeIntent::default()
        },
        services: BTreeMap::from(services),
    }
}

/// Other parameters of the program, so that every rule it can have occurs.
fn variants() -> Vec<Intent> {
    let with = |change: &dyn Fn(&mut Intent)| {
        let mut intent = sample();
        change(&mut intent);
        intent
    };
    let detectors = |detector: Option<LocalDetector>| {
        with(&|intent| {
            intent.node.v4.local_detector = detector.clone();
            intent.node.v6.local_detector = detector.clone();
        })
    };
    vec![
        sample(),
        with(&|intent| intent.node.masquerade_all = true),
        with(&|intent| intent.node.count_traffic = true),
        with(&|intent| {
            intent.node.v4.node_port_addresses = NodePortAddresses::AllLocal;
            intent.node.v6.node_port_addresses = NodePortAddresses::AllLocal;
        }),
        detectors(None),
        detectors(Some(LocalDetector::Interface("cbr0".into()))),
        detectors(Some(LocalDetector::InterfacePrefix("veth".into()))),
        with(&|intent| intent.services.clear()),
    ]
}

/// Elements come in the order of the kernel's hash: sorts them, one to a line.
fn normalised(listing: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut elements: Vec<String> = Vec::new();
    for line in listing.lines().map(str::trim).filter(|line| !line.is_empty() && *line != "}") {
        let inside = !elements.is_empty() || line.starts_with("elements = {");
        if inside {
            let text = line.trim_start_matches("elements = {").trim();
            let ends = text.ends_with('}') || line.ends_with(" }");
            let text = text.trim_end_matches('}').trim();
            elements.extend(text.split(", ").map(|e| e.trim_end_matches(',').trim().to_string()));
            if ends {
                elements.sort();
                lines.push(format!("elements {elements:?}"));
                elements.clear();
            }
        } else {
            lines.push(line.to_string());
        }
    }
    // nft lists sets and chains in the order of their creation; we print them by name.
    let mut blocks: Vec<Vec<String>> = vec![Vec::new()];
    for line in lines {
        if line.ends_with('{') {
            blocks.push(Vec::new());
        }
        if let Some(block) = blocks.last_mut() {
            block.push(line);
        }
    }
    blocks.sort();
    blocks.concat()
}

#[test]
fn nft_lists_what_we_print() {
    for intent in variants() {
        in_namespace(move || {
            let state = render(&intent);
            let mut dataplane = open(&Family::ALL);
            start(&mut dataplane, &intent);
            let listed = nft(&["list", "ruleset"]);
            pretty_compare(&normalised(&listed), &normalised(&state.to_string()));
        });
    }
}

/// Without IPv6 affinity: nft 1.0.6 lists an IPv6 map that rules fill, but aborts when it loads such a rule.
fn without_ipv6_affinity(mut intent: Intent) -> Intent {
    for service in intent.services.values_mut().map(Arc::make_mut) {
        service.ports.retain(|port| port.family == Family::V4 || port.affinity.is_none());
    }
    intent
}

#[test]
fn nft_loads_what_we_print() {
    for intent in variants() {
        in_namespace(move || {
            let intent = without_ipv6_affinity(intent);
            let state = render(&intent);
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("rendered.nft");
            std::fs::write(&file, state.to_string()).unwrap();
            nft(&["-f", file.to_str().unwrap()]);
            pretty_compare(&normalised(&nft(&["list", "ruleset"])), &normalised(&state.to_string()));
        });
    }
}

#[test]
fn the_kernel_returns_what_we_wrote() {
    for intent in variants() {
        in_namespace(move || {
            let mut dataplane = open(&Family::ALL);
            start(&mut dataplane, &intent);
            let mut connection = Connection::open().unwrap();
            let seen = observe(&mut connection).unwrap();
            assert_eq!(seen, render(&intent));
            let again = open(&Family::ALL).start(&intent).unwrap();
            assert_eq!(again.operations, 0, "a restart changes nothing");
        });
    }
}

#[test]
fn cleanup_removes_our_tables_and_nothing_else() {
    in_namespace(|| {
        nft(&["add", "table", "ip", "foreign"]);
        nft(&["add", "table", "ip6", "kube-proxy"]);
        let before = nft(&["list", "ruleset"]);
        let mut dataplane = open(&Family::ALL);
        start(&mut dataplane, &sample());
        assert_eq!(dataplane.cleanup().unwrap(), ["table ip ferroxy", "table ip6 ferroxy"]);
        assert_eq!(nft(&["list", "ruleset"]), before);
        assert!(dataplane.cleanup().unwrap().is_empty(), "nothing is left to clean up");
    });
}

fn started_with_no_service() -> Nftables {
    let mut dataplane = open(&[Family::V4]);
    start(&mut dataplane, &Intent { node: sample().node, services: BTreeMap::new() });
    dataplane
}

/// A Service with one cluster IP and three endpoints.
fn plain(name: &str, address: &str) -> Change {
    let name = ServiceName::new("default", name);
    let mut port = port(Family::V4, None, "http", 80);
    port.frontends.truncate(1);
    port.frontends[0].address = Some(address.parse().unwrap());
    let service = ServiceIntent {
        name: name.clone(),
        cluster_ips: Vec::new(),
        ports: vec![port],
        health_check: None,
        annotations: Vec::new(),
        left_out: Default::default(),
    };
    (name, Some(Arc::new(service)))
}

#[test]
fn a_refused_service_is_reported_and_the_others_are_programmed() {
    in_namespace(|| {
        let mut dataplane = started_with_no_service();
        // Another program added an element with the key of the second Service.
        nft(&["add", "element", "ip", "ferroxy", "frontends", "{ 10.96.0.2 . tcp . 80 : 1401:9 }"]);
        let changes = vec![plain("one", "10.96.0.1"), plain("two", "10.96.0.2"), plain("three", "10.96.0.3")];

        let outcome = dataplane.change(changes.clone()).unwrap();
        let [refusal] = outcome.refused.as_slice() else { panic!("one fails: {:?}", outcome.refused) };
        assert_eq!(refusal.service.as_str(), "default/two");
        let expected = "the kernel refuses `add element ip ferroxy frontends { 10.96.0.2 . tcp . 80 comment \
                        \"default/two:http\" : 1401:3 }`: File exists";
        assert_eq!(refusal.reason, expected);
        let listed = nft(&["list", "map", "ip", "ferroxy", "frontends"]);
        assert!(listed.contains("10.96.0.1 . tcp") && listed.contains("10.96.0.3 . tcp"), "{listed}");

        // The refused Service is not acknowledged: once the obstacle is gone, the same change succeeds.
        assert!(!is_as_it_must_be(&mut dataplane));
        let again = dataplane.change(changes).unwrap();
        assert_eq!(again.refused, []);
        assert!(again.operations > 0);
        assert!(is_as_it_must_be(&mut dataplane), "nothing differs");
    });
}

/// The chains of a change are committed before its elements, and stay when the kernel refuses the elements.
#[test]
fn chains_of_a_refused_change_are_known() {
    in_namespace(|| {
        let mut dataplane = started_with_no_service();
        let obstacle = "{ 10.96.0.2 . tcp . 80 : 1401:9 }";
        nft(&["add", "element", "ip", "ferroxy", "frontends", obstacle]);
        let rules = || nft(&["list", "chain", "ip", "ferroxy", "pick-3-in-4"]).matches("dnat").count();

        let changes = vec![plain("two", "10.96.0.2")];
        assert_eq!(dataplane.change(changes.clone()).unwrap().refused.len(), 1);
        let made = rules();
        assert!(made > 0, "the chain exists");
        assert_eq!(dataplane.change(changes.clone()).unwrap().refused.len(), 1);
        assert_eq!(rules(), made, "and is not created again");
        nft(&["delete", "element", "ip", "ferroxy", "frontends", obstacle]);
        assert!(is_as_it_must_be(&mut dataplane), "and is no drift");
        dataplane.tidy().unwrap();
        assert!(!nft(&["list", "ruleset"]).contains("pick-3-in-4"), "tidying removes the unused chain");
        assert_eq!(dataplane.change(changes).unwrap().refused, []);
        assert_eq!(rules(), made);
        assert!(is_as_it_must_be(&mut dataplane));
    });
}

/// The kernel counts every transaction. Ours must be known, to tell those of others.
#[test]
fn transactions_of_a_refused_change_are_counted() {
    in_namespace(|| {
        let mut dataplane = started_with_no_service();
        nft(&["add", "element", "ip", "ferroxy", "frontends", "{ 10.96.0.2 . tcp . 80 : 1401:9 }"]);
        let before = dataplane.generation().unwrap();
        let outcome = dataplane.change(vec![plain("two", "10.96.0.2")]).unwrap();
        assert_eq!((outcome.refused.len(), outcome.receipt.commits), (1, 1), "the chains were committed");
        assert!(outcome.operations > 0, "so that the agent tidies");
        let both = vec![plain("one", "10.96.0.1"), plain("two", "10.96.0.2")];
        let transactions = outcome.receipt.commits + dataplane.change(both).unwrap().receipt.commits;
        assert_eq!(dataplane.generation().unwrap() - before, transactions as u32);
    });
}

#[test]
fn nothing_is_tidied_while_the_unknown_is_kept() {
    in_namespace(|| {
        let node = sample().node;
        let of = |changes: &[Change]| Intent {
            node: node.clone(),
            services: changes
                .iter()
                .map(|(name, service)| (name.clone(), service.clone().unwrap()))
                .collect(),
        };
        let (seen, unseen) = (plain("seen", "10.96.0.1"), plain("unseen", "10.96.0.2"));
        start(&mut open(&[Family::V4]), &of(&[seen.clone(), unseen]));
        let mut dataplane = open(&[Family::V4]);
        dataplane.keep_unknown(true);
        start(&mut dataplane, &of(std::slice::from_ref(&seen)));
        dataplane.change(vec![(seen.0, None)]).unwrap();
        assert_eq!(dataplane.tidy().unwrap().operations, 0);
        let listed = nft(&["list", "table", "ip", "ferroxy"]);
        assert!(
            listed.contains("1401:3 : goto pick-3-in-4") && listed.contains("chain pick-3-in-4"),
            "{listed}"
        );
    });
}

/// A rule of another program refers to a chain that tidying removes.
#[test]
fn after_a_failed_tidying_a_service_is_programmed_completely() {
    in_namespace(|| {
        let mut dataplane = started_with_no_service();
        let service = plain("one", "10.96.0.1");
        dataplane.change(vec![service.clone()]).unwrap();
        dataplane.change(vec![(service.0.clone(), None)]).unwrap();
        nft(&["add", "chain", "ip", "ferroxy", "theirs"]);
        nft(&["add", "rule", "ip", "ferroxy", "theirs", "goto", "pick-3-in-2"]);
        assert!(dataplane.tidy().is_err());
        assert_eq!(dataplane.change(vec![service]).unwrap().refused, []);
        let treatments = nft(&["list", "map", "ip", "ferroxy", "treatments"]);
        assert!(treatments.contains("1201:3 : goto pick-3-in-2"), "{treatments}");
        dataplane.verify().unwrap();
        assert!(is_as_it_must_be(&mut dataplane), "one verification repairs the rest");
    });
}

#[test]
fn a_dormant_table_is_replaced() {
    in_namespace(|| {
        let mut dataplane = open(&[Family::V4]);
        start(&mut dataplane, &sample());
        nft(&["add", "table", "ip", "ferroxy", "{ flags dormant; }"]);
        assert!(!is_as_it_must_be(&mut dataplane));
        assert!(!nft(&["list", "table", "ip", "ferroxy"]).contains("dormant"));
    });
}

/// An upgrade changes the program in place: what packets have learnt stays.
#[test]
fn sets_of_earlier_versions_go_and_the_table_stays() {
    in_namespace(|| {
        start(&mut open(&Family::ALL), &sample());
        let earlier = "{ type ipv4_addr . inet_proto . inet_service : ipv4_addr; flags dynamic,timeout; }";
        nft(&[&format!("add map ip ferroxy affinity {earlier}")]);
        nft(&["add element ip ferroxy sticky-clients { 10.0.0.1 . 1:1 timeout 1h : 10.244.1.5 }"]);
        start(&mut open(&Family::ALL), &sample());
        let listed = nft(&["list table ip ferroxy"]);
        assert!(!listed.contains("map affinity {"), "{listed}");
        assert!(listed.contains("10.0.0.1 . 1:1 timeout 1h"), "{listed}");
    });
}

/// What the version printed for `sample()` that had all endpoints in one map.
const BEFORE_PARTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/before-parts.nft");

#[test]
fn a_table_of_before_the_parts_is_taken_over_in_place() {
    in_namespace(|| {
        nft(&["-f", BEFORE_PARTS]);
        nft(&["add element ip ferroxy sticky-clients { 10.0.0.1 . 1:1 timeout 1h : 10.244.1.5 }"]);
        let mut monitor = Monitor::open().unwrap();
        let mut dataplane = open(&[Family::V4]);
        start(&mut dataplane, &sample());
        let commits = commits(&mut monitor);
        let [chains, changes, tidying] = commits.as_slice() else { panic!("{commits:?}") };
        let adds = |commit: &[String]| commit.iter().all(|it| it.starts_with('+'));
        assert!(adds(chains) && chains.contains(&"+ set ferroxy".into()), "{chains:?}");
        let rewrites = |it: &String| it.ends_with(" rule ferroxy") || it.ends_with(" element ferroxy");
        assert!(changes.iter().all(rewrites), "{changes:?}");
        assert!(tidying.contains(&"- set ferroxy".into()), "{tidying:?}");
        assert!(!tidying.contains(&"- table ferroxy".into()), "{tidying:?}");

        let seen = observe(&mut Connection::open().unwrap()).unwrap();
        assert_eq!(seen.tables[&Family::V4], render(&sample()).tables[&Family::V4]);
        let listed = nft(&["list table ip ferroxy"]);
        assert!(listed.contains("10.0.0.1 . 1:1 timeout 1h"), "{listed}");
        assert!(is_as_it_must_be(&mut dataplane));
    });
}

/// Services that cannot be read yet are served by what the earlier version made for them.
#[test]
fn what_is_unknown_stays_as_it_was_before_the_parts() {
    in_namespace(|| {
        nft(&["-f", BEFORE_PARTS]);
        let mut known = sample();
        known.services.retain(|name, _| name.as_str() == "default/web");
        let mut dataplane = open(&[Family::V4]);
        dataplane.keep_unknown(true);
        start(&mut dataplane, &known);
        let listed = nft(&["list table ip ferroxy"]);
        for kept in [
            "10.96.0.81 . tcp . 80 comment \"default/sticky:http\" : 5:3",
            "5:3 : goto sticky-3",
            "0 . 10.96.0.81 . tcp . 80 : 10.244.1.5 . 8080",
            "offset 1000000 . meta l4proto . th dport map @nodeport-endpoints\n",
            "10.96.0.80 . tcp . 80 comment \"default/web:http\" : 1401:3",
        ] {
            assert!(listed.contains(kept), "{kept} is missing in {listed}");
        }
        dataplane.keep_unknown(false);
        assert!(!is_as_it_must_be(&mut dataplane), "now it is known to be superfluous");
        let seen = observe(&mut Connection::open().unwrap()).unwrap();
        assert_eq!(seen.tables[&Family::V4], render(&known).tables[&Family::V4]);
    });
}

#[test]
fn probing_changes_nothing() {
    in_namespace(|| {
        let before = nft(&["list", "ruleset"]);
        open(&Family::ALL).probe(&sample().node).unwrap();
        assert_eq!(nft(&["list", "ruleset"]), before);
    });
}

fn pretty_compare(listed: &[String], printed: &[String]) {
    let differences: Vec<String> = listed
        .iter()
        .filter(|line| !printed.contains(line))
        .map(|line| format!("nft:  {line}"))
        .chain(printed.iter().filter(|line| !listed.contains(line)).map(|line| format!("ours: {line}")))
        .collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert_eq!(listed, printed);
}

#[test]
fn traffic_counting_can_be_switched_on_and_off() {
    in_namespace(|| {
        let mut dataplane = open(&Family::ALL);
        start(&mut dataplane, &sample());
        let without = nft(&["list", "ruleset"]);
        assert!(!without.contains("jump traffic"), "{without}");
        let counting = NodeIntent { count_traffic: true, ..sample().node };
        dataplane.change_node(counting).unwrap();
        let with = nft(&["list", "ruleset"]);
        assert_eq!(with.matches("jump traffic").count(), 4, "two hooks in two families: {with}");
        assert!(is_as_it_must_be(&mut dataplane), "nothing differs");
        dataplane.change_node(sample().node).unwrap();
        assert_eq!(normalised(&nft(&["list", "ruleset"])), normalised(&without));
        assert!(is_as_it_must_be(&mut dataplane), "nothing differs");
    });
}

#[test]
fn traffic_counters_are_read_and_are_no_drift() {
    use ferroxy_dataplane::capability::traffic::Flow;
    use ferroxy_nftables::dataplane::traffic::Reader;
    in_namespace(|| {
        let counting = || {
            let mut intent = sample();
            intent.node.count_traffic = true;
            intent
        };
        let mut dataplane = open(&Family::ALL);
        start(&mut dataplane, &counting());
        let element = "{ tcp . 10.96.0.80 . 80 . 10.244.1.5 . 8080 counter packets 3 bytes 180 }";
        for set in ["traffic-connections", "traffic-received"] {
            nft(&["add", "element", "ip", "ferroxy", set, element]);
        }
        assert!(is_as_it_must_be(&mut dataplane), "counters are no drift");
        assert_eq!(open(&Family::ALL).start(&counting()).unwrap().operations, 0);
        let read = Reader::default().read().unwrap();
        let flow = Flow {
            protocol: Protocol::Tcp,
            frontend: "10.96.0.80:80".parse().unwrap(),
            endpoint: "10.244.1.5:8080".parse().unwrap(),
        };
        let traffic = read[&flow];
        assert_eq!((traffic.connections, traffic.received.packets, traffic.received.bytes), (3, 3, 180));
        assert_eq!((read.len(), traffic.sent.packets), (1, 0));
        dataplane.cleanup().unwrap();
        assert!(Reader::default().read().unwrap().is_empty(), "without counters the result is empty");
    });
}

/// A law of `laws.rs` with the real kernel instead of the model.
#[test]
fn after_any_changes_the_kernel_has_the_wanted_state() {
    use ferroxy_core::testing::{Cluster, clusters};
    use ferroxy_core::{Facts, resolve};
    use proptest::test_runner::TestRunner;

    fn follow(cluster: Cluster) {
        let mut facts = Facts::new(cluster.policy.clone());
        let mut intent = resolve::all(&facts).0;
        let mut dataplane = open(&Family::ALL);
        start(&mut dataplane, &intent);
        for event in cluster.events {
            let before = intent.clone();
            let touched = facts.apply(event);
            resolve::update(&facts, &touched, &mut intent);
            dataplane.change_node(intent.node.clone()).unwrap();
            let names: std::collections::BTreeSet<_> =
                before.services.keys().chain(intent.services.keys()).cloned().collect();
            let changes = names.into_iter().map(|name| (name.clone(), intent.services.get(&name).cloned()));
            let outcome = dataplane.change(changes.collect()).unwrap();
            assert_eq!(outcome.refused, [], "the kernel takes every change");
        }
        dataplane.tidy().unwrap();
        let mut connection = Connection::open().unwrap();
        assert_eq!(observe(&mut connection).unwrap(), dataplane.ledger().state());
        let restarted = open(&Family::ALL).start(&intent).unwrap();
        assert_eq!(restarted.operations, 0, "a restart changes nothing");
    }

    let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/proptest-regressions/kernel.txt");
    let config = ferroxy_core::testing::config(96, kept);
    let result = TestRunner::new(config).run(&clusters(), |cluster| {
        in_namespace(move || follow(cluster));
        Ok(())
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
}

fn removed_leftovers(dataplane: &mut Nftables) -> Vec<String> {
    dataplane.remove_leftovers(InForce::Yes, Established::GoOn).removed
}

/// What each transaction does, until the queue of notices is empty: kind and table of every object but elements.
fn commits(monitor: &mut Monitor) -> Vec<Vec<String>> {
    let (mut commits, mut commit) = (Vec::new(), Vec::new());
    while let Some(notice) = monitor.next(Some(Duration::ZERO)).unwrap() {
        match notice {
            Notice::Generation { .. } => commits.push(std::mem::take(&mut commit)),
            Notice::Changed { table, what, removed, .. } => {
                commit.push(format!("{} {what} {table}", if removed { "-" } else { "+" }));
            }
            Notice::Lost => panic!("too many notices"),
        }
    }
    commits
}

/// The transaction that brings our tables into force removes those of kube-proxy's nftables mode. A table that only has the name belongs to
/// another program, and stays.
#[test]
fn start_replaces_the_tables_of_kube_proxy() {
    in_namespace(|| {
        nft(&["add table ip kube-proxy { comment \"rules for kube-proxy\"; chain services { counter; }; }"]);
        nft(&["add table ip6 kube-proxy { chain mine { counter; }; }"]);
        let mut dataplane = open(&Family::ALL);
        let preview = dataplane.preview(&sample()).unwrap();
        assert_eq!(preview.operations.last().unwrap(), "delete table ip kube-proxy");

        let mut monitor = Monitor::open().unwrap();
        start(&mut dataplane, &sample());
        let commits = commits(&mut monitor);
        let (switch, before) = commits.split_last().unwrap();
        assert!(switch.contains(&"- table kube-proxy".into()), "{switch:?}");
        let hooks = |commit: &Vec<String>| commit.iter().filter(|it| *it == "+ chain ferroxy").count();
        assert!(hooks(switch) > 0, "{switch:?}");
        assert!(before.iter().flatten().all(|it| it.ends_with(" ferroxy")), "{before:?}");
        assert_eq!(nft(&["list tables"]), "table ip6 kube-proxy\ntable ip ferroxy\ntable ip6 ferroxy\n");
        assert_eq!(observe(&mut Connection::open().unwrap()).unwrap(), render(&sample()));

        assert_eq!(removed_leftovers(&mut dataplane), ["table ip kube-proxy"]);
        assert_eq!(dataplane.start(&sample()).unwrap().operations, 0);
        assert!(removed_leftovers(&mut dataplane).is_empty(), "they are reported once");
    });
}

/// A start that ended half-way leaves a table without hooks. It counts as nothing, and the next start replaces it.
#[test]
fn a_table_that_never_came_into_force_is_replaced() {
    in_namespace(|| {
        start(&mut open(&Family::ALL), &sample());
        let chains = nft(&["-j", "list chains"]);
        for base in ["ip", "ip6"].into_iter().flat_map(|family| hooked(&chains, family)) {
            nft(&[&format!("flush chain {base}")]);
            nft(&[&format!("delete chain {base}")]);
        }
        nft(&["add chain ip ferroxy strange"]);
        let mut dataplane = open(&Family::ALL);
        assert!(dataplane.is_cold().unwrap());
        let sample = sample();
        let service = sample.services.values().next().unwrap();
        assert_eq!(dataplane.programmed(&sample, service).unwrap(), Programmed::Nothing);
        start(&mut dataplane, &sample);
        assert!(!dataplane.is_cold().unwrap());
        assert_eq!(observe(&mut Connection::open().unwrap()).unwrap(), render(&sample));
    });
}

/// `ip ferroxy prerouting`, … of a listing in JSON.
fn hooked(listing: &str, family: &str) -> Vec<String> {
    let listing: serde_json::Value = serde_json::from_str(listing).unwrap();
    let chains = listing["nftables"].as_array().unwrap().iter().map(|object| &object["chain"]);
    let ours = chains.filter(|chain| chain["family"] == family && chain["hook"].is_string());
    ours.map(|chain| format!("{family} ferroxy {}", chain["name"].as_str().unwrap())).collect()
}

/// Services that cannot be read may depend on kube-proxy's rules.
#[test]
fn tables_of_kube_proxy_stay_while_the_unknown_is_kept() {
    in_namespace(|| {
        nft(&["add table ip kube-proxy { comment \"rules for kube-proxy\"; }"]);
        let mut dataplane = open(&Family::ALL);
        dataplane.keep_unknown(true);
        start(&mut dataplane, &sample());
        assert!(nft(&["list tables"]).contains("kube-proxy"));
    });
}

/// A setting of this mode is part of what `change_node` puts in force.
#[test]
fn a_new_masquerade_bit_is_applied_with_the_node() {
    in_namespace(|| {
        let mut dataplane = open(&[Family::V4]);
        start(&mut dataplane, &sample());
        let marks = || nft(&["list", "chain", "ip", "ferroxy", "masquerading"]);
        assert!(marks().contains("0x00004000"), "{}", marks());
        let node = sample().node;
        assert!(dataplane.has_node(&node).unwrap());

        let mut values = Values::default();
        values.set(&MASQUERADE_BIT, Value::Number(3));
        dataplane.configure(&values);
        assert!(!dataplane.has_node(&node).unwrap(), "the setting is not in force yet");
        assert!(is_as_it_must_be(&mut dataplane), "nor is the old one drift");
        assert!(dataplane.change_node(node.clone()).unwrap().operations > 0);
        assert!(marks().contains("0x00000008") && !marks().contains("0x00004000"), "{}", marks());
        assert!(dataplane.has_node(&node).unwrap() && is_as_it_must_be(&mut dataplane));
        assert_eq!(dataplane.changed_by_others().unwrap(), Changed::Nothing, "our own commits are known");

        let mut restarted = Nftables::open(&[Family::V4], Settings::read(&values)).unwrap();
        assert_eq!(restarted.start(&sample()).unwrap().operations, 0);
    });
}

#[test]
fn without_net_admin_the_failure_says_so() {
    in_namespace(|| {
        let mut dataplane = open(&Family::ALL);
        // Only this thread loses its privileges.
        let none = rustix::thread::CapabilitySet::empty();
        let sets = rustix::thread::CapabilitySets { effective: none, permitted: none, inheritable: none };
        rustix::thread::set_capabilities(None, sets).unwrap();
        let failures: Vec<Failure> =
            vec![dataplane.probe(&sample().node).unwrap_err(), dataplane.start(&sample()).unwrap_err()];
        for failure in failures {
            assert_eq!(failure.kind, FailureKind::NotPermitted, "{failure}");
            assert!(failure.to_string().contains("run as root, or with CAP_NET_ADMIN"), "{failure}");
        }
    });
}
