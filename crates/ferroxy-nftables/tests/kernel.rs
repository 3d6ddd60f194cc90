//! Ring 1 and 2: what we write, `nft` lists as we print it, and we read back as we meant it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;

use ferroxy_core::intent::{
    Endpoint, FamilyIntent, Frontend, FrontendKind, Intent, LocalDetector, NodeIntent, NodePortAddresses,
    PortIntent, Route, ServiceIntent,
};
use ferroxy_core::{Family, Protocol, ServiceName};
use ferroxy_netlink::nftables::Connection;
use ferroxy_nftables::observe::observe;
use ferroxy_nftables::{Dataplane, render};

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

fn start(dataplane: &mut Dataplane, intent: &Intent) {
    let outcome = dataplane.start(intent).unwrap();
    assert_eq!(outcome.failed, [], "the kernel takes every Service");
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
        known_endpoints: 3,
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
            Arc::new(ServiceIntent { name, cluster_ips, ports, health_check: None, scheduler: None }),
        )
    });
    let family = |range: &str, address: &str, cidr: &str| FamilyIntent {
        local_detector: Some(LocalDetector::SourceIn(range.parse().unwrap())),
        node_port_addresses: NodePortAddresses::These([address.parse().unwrap()].into()),
        localhost_node_ports: false,
        service_cidrs: vec![cidr.parse().unwrap()],
    };
    Intent {
        node: NodeIntent {
            masquerade_all: false,
            masquerade_mark: 0x4000,
            count_traffic: false,
            v4: family("10.244.0.0/16", "172.18.0.2", "10.96.0.0/16"),
            v6: family("fd00:10:244::/56", "fd00:172:18::2", "fd00:10:96::/112"),
        },
        services: BTreeMap::from(services),
    }
}

/// Other parameters of the program, so that every rule it can have is seen.
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
        with(&|intent| intent.node.masquerade_mark = 1),
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

/// Elements come in the order of the kernel's hash: sort them, one to a line.
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
    // nft lists sets and chains in the order they were made; we print them by name.
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
            let state = render(&intent, &Family::ALL);
            let mut dataplane = Dataplane::open(&Family::ALL).unwrap();
            start(&mut dataplane, &intent);
            let listed = nft(&["list", "ruleset"]);
            pretty_compare(&normalised(&listed), &normalised(&state.to_string()));
        });
    }
}

/// Without IPv6 affinity: nft 1.0.6 lists an IPv6 map that rules fill, but aborts when it is to load such a rule.
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
            let state = render(&intent, &Family::ALL);
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("rendered.nft");
            std::fs::write(&file, state.to_string()).unwrap();
            nft(&["-f", file.to_str().unwrap()]);
            pretty_compare(&normalised(&nft(&["list", "ruleset"])), &normalised(&state.to_string()));
        });
    }
}

#[test]
fn what_we_read_back_is_what_we_wrote() {
    for intent in variants() {
        in_namespace(move || {
            let mut dataplane = Dataplane::open(&Family::ALL).unwrap();
            start(&mut dataplane, &intent);
            let mut connection = ferroxy_netlink::nftables::Connection::open().unwrap();
            let seen = observe(&mut connection).unwrap();
            assert_eq!(seen, render(&intent, &Family::ALL));
            let again = Dataplane::open(&Family::ALL).unwrap().start(&intent).unwrap();
            assert_eq!(again.operations, 0, "a restart sends nothing");
        });
    }
}

#[test]
fn cleanup_leaves_nothing_and_touches_nothing_else() {
    in_namespace(|| {
        nft(&["add", "table", "ip", "foreign"]);
        nft(&["add", "table", "ip6", "kube-proxy"]);
        let before = nft(&["list", "ruleset"]);
        let mut dataplane = Dataplane::open(&Family::ALL).unwrap();
        start(&mut dataplane, &sample());
        assert!(dataplane.cleanup().unwrap());
        assert_eq!(nft(&["list", "ruleset"]), before);
        assert!(!dataplane.cleanup().unwrap(), "there is nothing left to clean up");
    });
}

/// One Service with one cluster IP and two endpoints.
fn started_with_no_service() -> Dataplane {
    let mut dataplane = Dataplane::open(&[Family::V4]).unwrap();
    start(&mut dataplane, &Intent { node: sample().node, services: BTreeMap::new() });
    dataplane
}

fn plain(name: &str, address: &str) -> (ServiceName, Option<Arc<ServiceIntent>>) {
    let name = ServiceName::new("default", name);
    let mut port = port(Family::V4, None, "http", 80);
    port.frontends.truncate(1);
    port.frontends[0].address = Some(address.parse().unwrap());
    let service = ServiceIntent {
        name: name.clone(),
        cluster_ips: Vec::new(),
        ports: vec![port],
        health_check: None,
        scheduler: None,
    };
    (name, Some(Arc::new(service)))
}

#[test]
fn what_the_kernel_refuses_is_named_and_holds_back_nothing_else() {
    in_namespace(|| {
        let mut dataplane = started_with_no_service();
        // A foreign hand has put something else where the second Service must go.
        nft(&["add", "element", "ip", "ferroxy", "frontends", "{ 10.96.0.2 . tcp . 80 : 1:9 }"]);
        let changes = vec![plain("one", "10.96.0.1"), plain("two", "10.96.0.2"), plain("three", "10.96.0.3")];

        let outcome = dataplane.change(changes.clone()).unwrap();
        let [(name, words)] = outcome.failed.as_slice() else { panic!("one fails: {:?}", outcome.failed) };
        assert_eq!(name.as_str(), "default/two");
        let expected = "the kernel refuses `add element ip ferroxy frontends { 10.96.0.2 . tcp . 80 comment \
                        \"default/two:http\" : 1:3 }`: File exists";
        assert_eq!(words, expected);
        let listed = nft(&["list", "map", "ip", "ferroxy", "frontends"]);
        assert!(listed.contains("10.96.0.1 . tcp") && listed.contains("10.96.0.3 . tcp"), "{listed}");

        // It is nowhere entered as done: once the obstacle is gone, the same change goes through.
        assert!(!dataplane.verify().unwrap().plan.is_empty());
        let again = dataplane.change(changes).unwrap();
        assert_eq!(again.failed, []);
        assert!(again.operations > 0);
        assert!(dataplane.verify().unwrap().plan.is_empty(), "the kernel has what it should have");
    });
}

/// Chains are made before the elements that lead to them, in a transaction of its own, which stays when the other fails.
#[test]
fn chains_of_a_change_that_was_refused_are_known() {
    in_namespace(|| {
        let mut dataplane = started_with_no_service();
        let obstacle = "{ 10.96.0.2 . tcp . 80 : 1:9 }";
        nft(&["add", "element", "ip", "ferroxy", "frontends", obstacle]);
        let rules = || nft(&["list", "chain", "ip", "ferroxy", "pick-3"]).matches("dnat").count();

        let changes = vec![plain("two", "10.96.0.2")];
        assert_eq!(dataplane.change(changes.clone()).unwrap().failed.len(), 1);
        let made = rules();
        assert!(made > 0, "the chain is there");
        assert_eq!(dataplane.change(changes.clone()).unwrap().failed.len(), 1);
        assert_eq!(rules(), made, "and is not made again");
        nft(&["delete", "element", "ip", "ferroxy", "frontends", obstacle]);
        assert!(dataplane.verify().unwrap().plan.is_empty(), "nor is it drift");
        dataplane.tidy().unwrap();
        assert!(!nft(&["list", "ruleset"]).contains("pick-3"), "it goes when nothing has come to need it");
        assert_eq!(dataplane.change(changes).unwrap().failed, []);
        assert_eq!(rules(), made);
        assert!(dataplane.verify().unwrap().plan.is_empty());
    });
}

/// The agent knows what others did by counting: the kernel counts every transaction, ours among them.
#[test]
fn what_was_taken_of_a_refused_change_is_counted() {
    in_namespace(|| {
        let mut dataplane = started_with_no_service();
        nft(&["add", "element", "ip", "ferroxy", "frontends", "{ 10.96.0.2 . tcp . 80 : 1:9 }"]);
        let before = dataplane.generation().unwrap();
        let outcome = dataplane.change(vec![plain("two", "10.96.0.2")]).unwrap();
        assert_eq!((outcome.failed.len(), outcome.receipt.transactions), (1, 1), "its chains");
        assert!(outcome.operations > 0, "so that they will be tidied away");
        let both = vec![plain("one", "10.96.0.1"), plain("two", "10.96.0.2")];
        let transactions =
            outcome.receipt.transactions + dataplane.change(both).unwrap().receipt.transactions;
        assert_eq!(dataplane.generation().unwrap() - before, transactions as u32);
    });
}

#[test]
fn nothing_is_tidied_while_there_may_be_services_unknown() {
    in_namespace(|| {
        let node = sample().node;
        let of = |changes: &[(ServiceName, Option<Arc<ServiceIntent>>)]| Intent {
            node: node.clone(),
            services: changes
                .iter()
                .map(|(name, service)| (name.clone(), service.clone().unwrap()))
                .collect(),
        };
        let (seen, unseen) = (plain("seen", "10.96.0.1"), plain("unseen", "10.96.0.2"));
        start(&mut Dataplane::open(&[Family::V4]).unwrap(), &of(&[seen.clone(), unseen]));
        let mut dataplane = Dataplane::open(&[Family::V4]).unwrap();
        dataplane.keep_unknown(true);
        start(&mut dataplane, &of(std::slice::from_ref(&seen)));
        dataplane.change(vec![(seen.0, None)]).unwrap();
        assert_eq!(dataplane.tidy().unwrap().operations, 0);
        let listed = nft(&["list", "table", "ip", "ferroxy"]);
        assert!(listed.contains("1:3 : goto pick-3") && listed.contains("chain pick-3"), "{listed}");
    });
}

/// Somebody has led a rule of theirs to a chain that should go.
#[test]
fn a_tidying_that_fails_halfway_takes_nothing_from_who_comes_next() {
    in_namespace(|| {
        let mut dataplane = started_with_no_service();
        let service = plain("one", "10.96.0.1");
        dataplane.change(vec![service.clone()]).unwrap();
        dataplane.change(vec![(service.0.clone(), None)]).unwrap();
        nft(&["add", "chain", "ip", "ferroxy", "theirs"]);
        nft(&["add", "rule", "ip", "ferroxy", "theirs", "goto", "pick-3"]);
        assert!(dataplane.tidy().is_err());
        assert_eq!(dataplane.change(vec![service]).unwrap().failed, []);
        let treatments = nft(&["list", "map", "ip", "ferroxy", "treatments"]);
        assert!(treatments.contains("1:3 : goto pick-3"), "{treatments}");
        dataplane.verify().unwrap();
        assert!(dataplane.verify().unwrap().plan.is_empty(), "one verification puts the rest right");
    });
}

#[test]
fn a_table_that_was_switched_off_is_made_anew() {
    in_namespace(|| {
        let mut dataplane = Dataplane::open(&[Family::V4]).unwrap();
        start(&mut dataplane, &sample());
        nft(&["add", "table", "ip", "ferroxy", "{ flags dormant; }"]);
        assert!(!dataplane.verify().unwrap().plan.is_empty());
        assert!(!nft(&["list", "table", "ip", "ferroxy"]).contains("dormant"));
    });
}

#[test]
fn the_program_is_probed_without_a_trace() {
    in_namespace(|| {
        let before = nft(&["list", "ruleset"]);
        Dataplane::open(&Family::ALL).unwrap().probe(&sample().node).unwrap();
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
fn counting_is_switched_on_and_off_while_services_stay() {
    in_namespace(|| {
        let mut dataplane = Dataplane::open(&Family::ALL).unwrap();
        start(&mut dataplane, &sample());
        let without = nft(&["list", "ruleset"]);
        assert!(!without.contains("jump traffic"), "{without}");
        let counting = NodeIntent { count_traffic: true, ..sample().node };
        dataplane.change_node(counting).unwrap();
        let with = nft(&["list", "ruleset"]);
        assert_eq!(with.matches("jump traffic").count(), 4, "two hooks in two families: {with}");
        assert!(dataplane.verify().unwrap().plan.is_empty(), "the kernel has what it should have");
        dataplane.change_node(sample().node).unwrap();
        assert_eq!(normalised(&nft(&["list", "ruleset"])), normalised(&without));
        assert!(dataplane.verify().unwrap().plan.is_empty(), "the kernel has what it should have");
    });
}

#[test]
fn what_was_counted_is_runtime_data() {
    use ferroxy_nftables::traffic::{Flow, Reader};
    in_namespace(|| {
        let counting = || {
            let mut intent = sample();
            intent.node.count_traffic = true;
            intent
        };
        let mut dataplane = Dataplane::open(&Family::ALL).unwrap();
        start(&mut dataplane, &counting());
        let element = "{ tcp . 10.96.0.80 . 80 . 10.244.1.5 . 8080 counter packets 3 bytes 180 }";
        for set in ["traffic-connections", "traffic-received"] {
            nft(&["add", "element", "ip", "ferroxy", set, element]);
        }
        assert!(dataplane.verify().unwrap().plan.is_empty(), "it is no drift");
        assert_eq!(Dataplane::open(&Family::ALL).unwrap().start(&counting()).unwrap().operations, 0);
        let read = Reader::open().unwrap().read().unwrap();
        let flow = Flow {
            protocol: Protocol::Tcp,
            frontend: "10.96.0.80:80".parse().unwrap(),
            endpoint: "10.244.1.5:8080".parse().unwrap(),
        };
        let traffic = read[&flow];
        assert_eq!((traffic.connections, traffic.received.packets, traffic.received.bytes), (3, 3, 180));
        assert_eq!((read.len(), traffic.sent.packets), (1, 0));
        dataplane.cleanup().unwrap();
        assert!(Reader::open().unwrap().read().unwrap().is_empty(), "nothing is counted, which is no error");
    });
}

/// The laws of `laws.rs` once more, with the real kernel in place of our model of it.
#[test]
fn following_changes_leaves_the_kernel_with_what_it_should_have() {
    use ferroxy_core::testing::{Cluster, clusters};
    use ferroxy_core::{Facts, resolve};
    use proptest::test_runner::TestRunner;

    fn follow(cluster: Cluster) {
        let mut facts = Facts::new(cluster.policy.clone());
        let mut intent = resolve::all(&facts).0;
        let mut dataplane = Dataplane::open(&Family::ALL).unwrap();
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
            assert_eq!(outcome.failed, [], "the kernel takes every change");
        }
        dataplane.tidy().unwrap();
        let mut connection = ferroxy_netlink::nftables::Connection::open().unwrap();
        assert_eq!(observe(&mut connection).unwrap(), dataplane.ledger().state());
        let restarted = Dataplane::open(&Family::ALL).unwrap().start(&intent).unwrap();
        assert_eq!(restarted.operations, 0, "a restart finds everything in place");
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

/// What kube-proxy's own nftables mode has left goes in the transaction that brings ours; a table that has only the name
/// is somebody's.
#[test]
fn tables_of_kube_proxy_go_as_ours_come() {
    in_namespace(|| {
        nft(&["add table ip kube-proxy { comment \"rules for kube-proxy\"; chain services { counter; }; }"]);
        nft(&["add table ip6 kube-proxy { chain mine { counter; }; }"]);
        let mut dataplane = Dataplane::open(&Family::ALL).unwrap();
        let preview = dataplane.preview(&sample()).unwrap();
        assert_eq!(preview.changes.last().unwrap().to_string(), "delete table ip kube-proxy");

        let outcome = dataplane.start(&sample()).unwrap();
        assert_eq!(outcome.replaced, [Family::V4]);
        assert_eq!(outcome.receipt.transactions, 1);
        assert_eq!(nft(&["list tables"]), "table ip6 kube-proxy\ntable ip ferroxy\ntable ip6 ferroxy\n");
        assert_eq!(observe(&mut Connection::open().unwrap()).unwrap(), render(&sample(), &Family::ALL));

        let again = dataplane.start(&sample()).unwrap();
        assert_eq!((again.replaced, again.operations), (vec![], 0));
    });
}

/// While not all of the cluster can be seen, their rules may be for what cannot.
#[test]
fn tables_of_kube_proxy_stay_while_nothing_unknown_may_go() {
    in_namespace(|| {
        nft(&["add table ip kube-proxy { comment \"rules for kube-proxy\"; }"]);
        let mut dataplane = Dataplane::open(&Family::ALL).unwrap();
        dataplane.keep_unknown(true);
        assert_eq!(dataplane.start(&sample()).unwrap().replaced, []);
        assert!(nft(&["list tables"]).contains("kube-proxy"));
    });
}
