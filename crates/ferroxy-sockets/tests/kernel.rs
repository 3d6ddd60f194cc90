//! Ring 2: real sockets in cgroups of their own. The kernel does the same as the interpreter, and damage is repaired while
//! connections go on.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "the functions that tests share are tests too; clippy does not know")]

mod bpftool;
mod kernel_clients;
mod node;
mod sessions;
mod unusual_sockets;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;

use ferroxy_bpf::kernel::{Attach, Cgroup, Link, Map, Pinned, Program};
use ferroxy_bpf::{Assembler, Register};
use ferroxy_core::testing::{clusters, interesting_packets};
use ferroxy_core::{Family, Intent, Origin, Protocol};
use ferroxy_dataplane::{Changed, ChoiceOfEndpoints, Dataplane};
use ferroxy_sockets::interpret::{Choice, Owner, Programs, Socket};
use ferroxy_sockets::{Clients, Options, Salt, Terms, render};
use node::{Node, PORTS, intent, peer, peer_here, report, service};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

const FRONTEND: &str = "10.96.0.1:80";
const MAPPED: &str = "[::ffff:10.96.0.1]:80";

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Where connections to a target end: enough connections to see all of three endpoints.
fn peers(namespace: &ferroxy_lab::Namespace, target: &str) -> BTreeSet<SocketAddr> {
    let target = address(target);
    namespace.run(move || (0..60).map(|_| peer_here(target)).collect()).unwrap()
}

fn endpoints(numbers: impl IntoIterator<Item = u8>) -> BTreeSet<SocketAddr> {
    numbers.into_iter().map(|n| address(&format!("10.244.0.{n}:8080"))).collect()
}

#[test]
fn host_and_pods_reach_endpoints_and_others_the_frontend() {
    let Some(node) = Node::new() else { return };
    let dataplane = node.start(&intent([service(1, 1..4)]), node.options());
    for client in [&node.host, &node.pod] {
        assert_eq!(peers(client, FRONTEND), endpoints(1..4), "{}", client.name());
        assert_eq!(peers(client, MAPPED), endpoints(1..4), "{}: an IPv6 socket", client.name());
        assert_eq!(peer(client, "10.96.0.1:81"), address("10.96.0.1:81"), "another port");
    }
    assert_eq!(peer(&node.container, FRONTEND), address(FRONTEND), "a container that is no pod");
    let clients = report(&dataplane).clients;
    assert!(clients.iter().all(|it| it.inactive.is_none() && it.connections >= 120), "{clients:?}");
    assert_eq!((report(&dataplane).frontends, report(&dataplane).endpoints), (1, 0));
}

/// If a Service has more endpoints than a frontend can list, they are in the map of endpoints.
#[test]
fn any_number_of_endpoints_is_reached() {
    let Some(node) = Node::new() else { return };
    let counts = [1, 2, 3, 4, 5, 9];
    let services = counts.map(|count| service(count.into(), 1..=count));
    let dataplane = node.start(&intent(services), node.options());
    assert_eq!((report(&dataplane).frontends, report(&dataplane).endpoints), (6, 14));
    for count in counts {
        for target in [format!("10.96.0.{count}:80"), format!("[::ffff:10.96.0.{count}]:80")] {
            let mut found = BTreeSet::new();
            // By chance: each round misses one of nine with the probability of one in a hundred.
            while found.len() < count.into() {
                found.extend(peers(&node.pod, &target));
            }
            assert_eq!(found, endpoints(1..=count), "{target}");
        }
    }
}

#[test]
fn only_the_clients_that_are_asked_for() {
    for (clients, host, pod) in [(Clients::HOST, true, false), (Clients::PODS, false, true)] {
        let Some(node) = Node::new() else { return };
        let options = Options { clients, ..node.options() };
        let mut dataplane = node.start(&intent([service(1, [1])]), options);
        let expected = |translated| address(if translated { "10.244.0.1:8080" } else { FRONTEND });
        assert_eq!(peer(&node.host, FRONTEND), expected(host));
        assert_eq!(peer(&node.pod, FRONTEND), expected(pod));
        // From all clients to some: the other programs are detached.
        drop(node.start(&intent([service(1, [1])]), node.options()));
        assert_eq!(peer(&node.pod, FRONTEND), expected(true));
        node.on_host(|| dataplane.start(&intent([service(1, [1])])).unwrap());
        assert_eq!(peer(&node.host, FRONTEND), expected(host));
        assert_eq!(peer(&node.pod, FRONTEND), expected(pod));
    }
}

#[test]
fn changes_take_effect_and_a_restart_writes_nothing() {
    let Some(node) = Node::new() else { return };
    let mut dataplane = node.start(&intent([service(1, 1..4)]), node.options());
    let change = |dataplane: &mut ferroxy_sockets::Accelerated, endpoints: Vec<u8>| {
        let (name, service) = service(1, endpoints);
        node.on_host(|| dataplane.change(vec![(name, Some(service))]).unwrap().operations)
    };
    // One write is for the dataplane below.
    assert!(change(&mut dataplane, vec![2, 3]) <= 4);
    assert_eq!(peers(&node.pod, FRONTEND), endpoints([2, 3]));
    assert!(change(&mut dataplane, vec![2, 3, 9]) <= 3);
    assert_eq!(peers(&node.pod, FRONTEND), endpoints([2, 3, 9]));
    change(&mut dataplane, vec![]);
    assert_eq!(peer(&node.pod, FRONTEND), address(FRONTEND), "refusals are left to packets");
    // The slots are in another order now than the endpoints of the Service.
    change(&mut dataplane, vec![4, 6]);
    change(&mut dataplane, vec![4, 5, 6]);
    drop(dataplane);
    assert_eq!(peers(&node.host, FRONTEND), endpoints(4..7), "it outlives the process");

    let same = intent([service(1, 4..7)]);
    let mut dataplane = node.open(node.options());
    let preview = node.on_host(|| dataplane.preview(&same).unwrap());
    assert!(!preview.text.contains("sockets"), "{}", preview.text);
    let before = dataplane.translates_sockets().unwrap().read();
    assert_eq!(before.frontends, 0);
    let outcome = node.on_host(|| dataplane.start(&same).unwrap());
    assert_eq!(outcome.operations, 0, "a restart writes nothing");
    let gone = node.on_host(|| dataplane.change(vec![(service(1, []).0, None)]).unwrap());
    assert!(gone.operations >= 2);
    assert_eq!((report(&dataplane).frontends, report(&dataplane).endpoints), (0, 0));
    assert_eq!(peer(&node.host, FRONTEND), address(FRONTEND));
}

/// The verifier is stricter with few privileges: the agent keeps CAP_BPF, and has neither CAP_PERFMON nor CAP_SYS_ADMIN.
#[test]
fn programs_are_accepted_with_few_privileges() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    for (names_peers, count_traffic) in [(false, false), (true, false), (false, true), (true, true)] {
        let Some(node) = Node::new() else { return };
        let options = Options { names_peers, ..node.options() };
        let mut intent = intent([service(1, 1..4), service(2, 1..9)]);
        intent.node.count_traffic = count_traffic;
        let mut dataplane = node.open(options);
        node.on_host(|| {
            let mut sets = capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::SYS_ADMIN | CapabilitySet::PERFMON);
            set_capabilities(None, sets).unwrap();
            dataplane.start(&intent).unwrap();
        });
        let clients = report(&dataplane).clients;
        assert!(clients.iter().all(|it| it.inactive.is_none()), "{clients:?}");
        if !names_peers {
            assert_eq!(peers(&node.pod, FRONTEND), endpoints(1..4));
            assert!(peers(&node.pod, "10.96.0.2:80").is_subset(&endpoints(1..9)));
        }
    }
}

#[test]
fn own_addresses_of_the_host_are_left_to_packets() {
    let Some(node) = Node::new() else { return };
    let mut dataplane = node.start(&intent([service(1, [1])]), node.options());
    assert_eq!(peer(&node.pod, FRONTEND), address("10.244.0.1:8080"));
    let mut with_address = intent([]).node;
    with_address.host_addresses = ["10.96.0.1".parse().unwrap()].into();
    assert!(!node.on_host(|| dataplane.has_node(&with_address).unwrap()));
    node.on_host(|| dataplane.change_node(with_address.clone()).unwrap());
    assert!(node.on_host(|| dataplane.has_node(&with_address).unwrap()));
    assert_eq!(peer(&node.pod, FRONTEND), address(FRONTEND), "as NodeLocal DNSCache needs it");
    node.on_host(|| dataplane.change_node(intent([]).node).unwrap());
    assert_eq!(peer(&node.pod, FRONTEND), address("10.244.0.1:8080"));
}

/// Notices and repairs what was done to the maps and links. Connections are possible all the time.
fn repairs(damage: impl Fn(&Node, &Path)) {
    repairs_with(1..4, &damage);
    repairs_with(1..8, &damage);
}

fn repairs_with(range: std::ops::Range<u8>, damage: impl Fn(&Node, &Path)) {
    let Some(node) = Node::new() else { return };
    let all = (1..4).map(|n| service(n, range.clone()));
    let mut dataplane = node.start(&intent(all), node.options());
    assert_eq!(node.on_host(|| dataplane.verifies().unwrap().changed_by_others().unwrap()), Changed::Nothing);
    damage(&node, &node.pins());
    let either: BTreeSet<_> = endpoints(range.clone()).into_iter().chain([address(FRONTEND)]).collect();
    assert!(peers(&node.pod, FRONTEND).is_subset(&either));
    assert_eq!(node.on_host(|| dataplane.verifies().unwrap().changed_by_others().unwrap()), Changed::Ours);
    let repair = node.on_host(|| dataplane.verifies().unwrap().verify().unwrap());
    assert!(repair.operations > 0 && !repair.examples.is_empty(), "{repair:?}");
    for client in [&node.host, &node.pod] {
        let found = peers(client, FRONTEND);
        assert!(found.is_subset(&endpoints(range.clone())), "{}: {found:?}", client.name());
    }
    assert_eq!(node.on_host(|| dataplane.verifies().unwrap().changed_by_others().unwrap()), Changed::Nothing);
}

fn generation(pins: &Path) -> std::path::PathBuf {
    let entries = std::fs::read_dir(pins).unwrap().flatten();
    entries.map(|entry| entry.path()).find(|path| path.is_dir()).unwrap()
}

fn delete_half(map: &Map) {
    let mut keys = Vec::new();
    map.for_each(|key, _| keys.push(key.to_vec())).unwrap();
    assert!(keys.iter().step_by(2).all(|key| map.delete(key).unwrap()));
}

#[test]
fn deleted_frontends_are_repaired() {
    repairs(|_, pins| delete_half(&Map::open_pinned(&generation(pins).join("frontends")).unwrap()));
}

#[test]
fn deleted_endpoints_are_repaired() {
    repairs_with(1..8, |_, pins| {
        delete_half(&Map::open_pinned(&generation(pins).join("endpoints")).unwrap());
    });
}

#[test]
fn a_detached_link_is_attached_again() {
    repairs(|_, pins| std::fs::remove_file(pins.join("link-connect4-pods")).unwrap());
}

/// Programs go on with maps that are not pinned, but a restart would not find them.
#[test]
fn maps_that_are_not_pinned_are_replaced() {
    repairs(|_, pins| std::fs::remove_dir_all(generation(pins)).unwrap());
}

#[test]
fn missing_pins_are_made_again() {
    repairs(|_, pins| {
        ferroxy_sockets::remove_pins(pins).unwrap();
    });
}

#[test]
fn a_cgroup_of_pods_that_comes_later_is_used_then() {
    let Some(mut node) = Node::new() else { return };
    let late = node.cgroups.root().join("node/later");
    let options = Options { pods_cgroup: Some(late.clone()), ..node.options() };
    let mut dataplane = node.start(&intent([service(1, [1])]), options);
    let inactive =
        |dataplane: &_| report(dataplane).clients.iter().filter(|it| it.inactive.is_some()).count();
    assert_eq!(inactive(&dataplane), 1, "only pods");
    assert_eq!(peer(&node.host, FRONTEND), address("10.244.0.1:8080"));
    node.pod.set_cgroup(node.cgroups.create("node/later/pod1").unwrap());
    assert_eq!(peer(&node.pod, FRONTEND), address(FRONTEND));
    assert_eq!(node.on_host(|| dataplane.verifies().unwrap().changed_by_others().unwrap()), Changed::Ours);
    node.on_host(|| dataplane.verifies().unwrap().verify().unwrap());
    assert_eq!((peer(&node.pod, FRONTEND), inactive(&dataplane)), (address("10.244.0.1:8080"), 0));

    // The cgroup is removed and created again: the link to the old cgroup is dead.
    for cgroup in ["node/later/pod1", "node/later"] {
        remove_cgroup(&node.cgroups.root().join(cgroup));
    }
    node.cgroups.create("node/later/pod1").unwrap();
    assert_eq!(peer(&node.pod, FRONTEND), address(FRONTEND));
    assert_eq!(node.on_host(|| dataplane.verifies().unwrap().changed_by_others().unwrap()), Changed::Ours);
    node.on_host(|| dataplane.verifies().unwrap().verify().unwrap());
    assert_eq!(peer(&node.pod, FRONTEND), address("10.244.0.1:8080"));
}

/// The kernel detaches a program a moment after its link is gone.
fn only_these_run(cgroup: &Cgroup, expected: BTreeSet<u32>) {
    let end = std::time::Instant::now() + ferroxy_lab::PATIENCE;
    let found = || cgroup.effective(Attach::Connect4).unwrap().into_iter().collect::<BTreeSet<u32>>();
    while found() != expected {
        assert!(std::time::Instant::now() < end, "{:?} instead of {expected:?}", found());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// A thread that has ended is in its cgroup for a moment still.
fn remove_cgroup(cgroup: &Path) {
    let end = std::time::Instant::now() + ferroxy_lab::PATIENCE;
    while let Err(error) = std::fs::remove_dir(cgroup) {
        assert!(std::time::Instant::now() < end, "{}: {error}", cgroup.display());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn without_a_bpffs_packets_serve_everything() {
    let Some(node) = Node::new() else { return };
    let folder = tempfile::tempdir().unwrap();
    let options = Options { pins: folder.path().join("ferroxy"), ..node.options() };
    let dataplane = node.start(&intent([service(1, [1])]), options);
    let clients = report(&dataplane).clients;
    assert!(clients.iter().all(|it| it.inactive.as_deref().unwrap().contains("bpffs")), "{clients:?}");
    assert_eq!(peer(&node.host, FRONTEND), address(FRONTEND));
}

#[test]
fn a_self_test_that_fails_leaves_the_host_to_packets() {
    let Some(node) = Node::new() else { return };
    // The agent is outside of the cgroup: the programs do not run for it, and perhaps for nothing else.
    let elsewhere = node.cgroups.create("elsewhere").unwrap();
    let options = Options { cgroup: Some(elsewhere.clone()), pods_cgroup: Some(elsewhere), ..node.options() };
    let dataplane = node.start(&intent([service(1, [1])]), options);
    let clients = report(&dataplane).clients;
    assert!(clients[0].inactive.as_deref().unwrap().contains("self-test"), "{clients:?}");
    assert!(!node.pins().join("link-connect4-host").exists());
}

#[test]
fn other_programs_at_the_same_place_run_too_and_stay() {
    let Some(node) = Node::new() else { return };
    let mut program = Assembler::new();
    program.set(Register::R0, 1).exit();
    let code = program.finish().unwrap();
    let cgroup = Cgroup::open(&node.cgroups.root().join("node/kubepods")).unwrap();
    let attach = || {
        let program = Program::load("other", Attach::Connect4, &code, &[]).unwrap();
        let link = Link::create("other", &program, &cgroup, Attach::Connect4).unwrap();
        (program.info().unwrap().id, link)
    };
    let (before, _link) = attach();
    let mut dataplane = node.start(&intent([service(1, [1])]), node.options());
    let (after, _other) = attach();
    assert_eq!(peer(&node.pod, FRONTEND), address("10.244.0.1:8080"));
    node.on_host(|| dataplane.cleanup().unwrap());
    only_these_run(&cgroup, BTreeSet::from([before, after]));
}

#[test]
fn maps_grow_and_beyond_the_limit_packets_serve() {
    let Some(node) = Node::new() else { return };
    let options = Options { most_elements: 16, ..node.options() };
    let mut dataplane = node.start(&intent([service(1, 1..6)]), options.clone());
    let add = |dataplane: &mut ferroxy_sockets::Accelerated, n: u16, endpoints: std::ops::Range<u8>| {
        let (name, service) = service(n, endpoints);
        node.on_host(|| dataplane.change(vec![(name, Some(service))]).unwrap());
    };
    add(&mut dataplane, 2, 1..7);
    assert!(peers(&node.host, "10.96.0.2:80").is_subset(&endpoints(1..7)));
    add(&mut dataplane, 3, 1..7);
    let left_out = report(&dataplane).left_out;
    assert_eq!(left_out.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["default/s3"]);
    assert_eq!(peer(&node.host, "10.96.0.3:80"), address("10.96.0.3:80"), "by packets");
    assert!(peers(&node.host, FRONTEND).is_subset(&endpoints(1..6)), "the others stay");
    assert_eq!(node.on_host(|| dataplane.verifies().unwrap().changed_by_others().unwrap()), Changed::Nothing);
    // There is room again: the Service that was left out is tried again at its next change.
    add(&mut dataplane, 2, 1..2);
    add(&mut dataplane, 3, 1..7);
    assert!(peers(&node.host, "10.96.0.3:80").is_subset(&endpoints(1..7)));
    assert_eq!(report(&dataplane).left_out, vec![]);
    // A start leaves out as many as it must.
    let all = intent((1..6).map(|n| service(n, 1..6)));
    drop(dataplane);
    let dataplane = node.start(&all, options);
    assert_eq!(report(&dataplane).left_out.len(), 2);
}

#[test]
fn a_map_that_is_full_is_replaced_by_a_larger_one() {
    let Some(node) = Node::new() else { return };
    let mut dataplane = node.start(&intent([service(1, 1..4)]), node.options());
    let first = generation(&node.pins());
    // The least room is 65,536 elements: this many Services have more.
    let many: Vec<_> =
        (2..700).map(|n| service(n, 1..101)).map(|(name, service)| (name, Some(service))).collect();
    node.on_host(|| dataplane.change(many).unwrap());
    assert_ne!(generation(&node.pins()), first);
    assert_eq!((report(&dataplane).frontends, report(&dataplane).endpoints), (699, 698 * 100));
    assert_eq!(peers(&node.pod, FRONTEND), endpoints(1..4));
    assert!(endpoints(1..101).contains(&peer(&node.pod, "10.96.2.187:80")));
    assert_eq!(node.on_host(|| dataplane.verifies().unwrap().changed_by_others().unwrap()), Changed::Nothing);
}

#[test]
fn cleanup_leaves_nothing() {
    let Some(node) = Node::new() else { return };
    let mut dataplane = node.start(&intent([service(1, 1..4)]), node.options());
    let removed = node.on_host(|| dataplane.cleanup().unwrap());
    assert!(removed.contains(&"program connect4-host for sockets".to_owned()), "{removed:?}");
    assert!(!node.pins().exists());
    for cgroup in ["node", "node/kubepods"] {
        let cgroup = Cgroup::open(&node.cgroups.root().join(cgroup)).unwrap();
        only_these_run(&cgroup, BTreeSet::new());
    }
    assert_eq!(peer(&node.pod, FRONTEND), address(FRONTEND));
}

#[test]
fn peers_have_the_name_of_the_service_if_asked() {
    use std::os::fd::AsFd;
    let Some(node) = Node::new() else { return };
    let options = Options { names_peers: true, ..node.options() };
    let dataplane = node.start(&intent([service(1, 1..4)]), options);
    for client in [&node.host, &node.pod] {
        for target in [FRONTEND, MAPPED] {
            assert_eq!(peer(client, target), address(FRONTEND), "{}", client.name());
        }
    }
    let clients = report(&dataplane).clients;
    assert!(clients.iter().all(|it| it.connections > 1), "they were translated all the same: {clients:?}");
    // Disconnected and connected elsewhere: the remembered peer is outdated.
    let second = node.host.run(|| {
        use rustix::net::{AddressFamily, SocketType, connect, connect_unspec, getpeername, socket};
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        connect(socket.as_fd(), &address(FRONTEND)).unwrap();
        connect_unspec(socket.as_fd()).unwrap();
        connect(socket.as_fd(), &address("192.0.2.1:80")).unwrap();
        SocketAddr::try_from(getpeername(socket.as_fd()).unwrap().unwrap()).unwrap()
    });
    assert_eq!(second.unwrap(), address("192.0.2.1:80"));
}

/// Random clusters: a socket only connects to endpoints that are possible in the interpreter.
#[test]
fn the_kernel_does_what_the_interpreter_says() {
    let Some(node) = Node::new() else { return };
    let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/proptest-regressions/kernel.txt");
    let config = ferroxy_core::testing::config(24, kept);
    let programs = Programs::new(Clients::ALL, false).unwrap();
    let agree = |intent: Intent| {
        let dataplane = node.start(&intent, node.options());
        let terms = Terms::new(&intent.node, Clients::ALL, ChoiceOfEndpoints::ByClient, Salt(1));
        let state = render(&intent, &terms);
        prop_assert_eq!(report(&dataplane).frontends, state.frontends.len() as u64);
        let mut asked = BTreeSet::new();
        for packet in interesting_packets(&intent) {
            let destination = SocketAddr::new(packet.destination, packet.port);
            let answers = PORTS.contains(&packet.port) && !packet.destination.is_loopback();
            let is_tcp = packet.protocol == Protocol::Tcp && packet.origin == Origin::Host;
            if !answers || !is_tcp || link_local(destination) || !asked.insert(destination) {
                continue;
            }
            for (owner, client) in
                [(Owner::Host, &node.host), (Owner::Pod, &node.pod), (Owner::Container, &node.container)]
            {
                let socket = Socket {
                    owner,
                    family: Family::of(destination.ip()),
                    protocol: Protocol::Tcp.number(),
                    source: None,
                    bound_device: 0,
                    destination,
                };
                let choices = programs.choices(&state, &socket).unwrap();
                let found =
                    client.run(|| (0..4).map(|_| peer_here(destination)).collect::<BTreeSet<_>>()).unwrap();
                let allowed: BTreeSet<SocketAddr> = choices
                    .iter()
                    .map(|choice| match choice {
                        Choice::Unchanged => destination,
                        Choice::Endpoint(endpoint) => *endpoint,
                    })
                    .collect();
                prop_assert!(found.is_subset(&allowed), "{socket:?}: {found:?}, not {allowed:?}");
            }
        }
        Ok(())
    };
    TestRunner::new(config).run(&clusters().prop_map(|cluster| cluster.intent()), agree).unwrap();
}

fn link_local(address: SocketAddr) -> bool {
    matches!(address.ip(), std::net::IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// The same with the kernel of ring 3, one after the other.
#[test]
#[ignore = "an older kernel: make test-vm"]
fn on_an_older_kernel() {
    host_and_pods_reach_endpoints_and_others_the_frontend();
    any_number_of_endpoints_is_reached();
    only_the_clients_that_are_asked_for();
    changes_take_effect_and_a_restart_writes_nothing();
    programs_are_accepted_with_few_privileges();
    own_addresses_of_the_host_are_left_to_packets();
    deleted_frontends_are_repaired();
    deleted_endpoints_are_repaired();
    a_detached_link_is_attached_again();
    missing_pins_are_made_again();
    a_cgroup_of_pods_that_comes_later_is_used_then();
    a_self_test_that_fails_leaves_the_host_to_packets();
    other_programs_at_the_same_place_run_too_and_stay();
    maps_grow_and_beyond_the_limit_packets_serve();
    a_map_that_is_full_is_replaced_by_a_larger_one();
    cleanup_leaves_nothing();
    peers_have_the_name_of_the_service_if_asked();
    sessions::clients_stay_at_their_endpoint();
    sessions::sessions_end_some_time_after_the_last_connection();
    sessions::connections_are_counted_once();
    unusual_sockets::every_way_to_connect_is_translated_but_for_bound_sockets();
    the_kernel_does_what_the_interpreter_says();
}
