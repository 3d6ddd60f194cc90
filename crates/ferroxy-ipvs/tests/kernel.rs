//! The dataplane against a real kernel, in a network namespace of each test's own: the kernel has the wanted State, as read by us
//! and by the official tools. Needs root and a kernel with IPVS, which few build machines have: only `make test-vm` runs these
//! tests, in a virtual machine.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the functions that tests share are tests too; clippy does not know"
)]

mod support;

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroxy_core::intent::{FamilyIntent, NodePortAddresses};
use ferroxy_core::{Facts, Family, Intent, NodeIntent, Policy, Protocol, resolve};
use ferroxy_dataplane::{Change, Dataplane, Drains, Persists, Programmed, Settings, Value, Verifies};
use ferroxy_iptables::settings::PROGRAM;
use ferroxy_ipvs::dataplane::observe::observe;
use ferroxy_ipvs::doors::Doors;
use ferroxy_ipvs::drain::LIMIT;
use ferroxy_ipvs::settings::{EXCLUDE_CIDRS, SCHEDULER};
use ferroxy_ipvs::{Ipvs, Parameters, State, render};
use ferroxy_lab::conformance;
use ferroxy_netlink::route::{Address, Connection};
use ferroxy_source::manifest::ManifestSource;
use support::service;

/// Cases that together have every kind of set, server and rule.
const CASES: [&str; 7] = [
    "clusterip-affinity",
    "dual-stack",
    "external-ip",
    "lb-local-none",
    "lb-source-ranges",
    "lb-source-ranges-allow",
    "sctp",
];

/// Runs the test in a thread that has moved to a fresh network namespace, which has the addresses of the recorded node.
fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        // SAFETY: a new network namespace changes nothing that Rust's memory model relies on.
        let moved = unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) };
        moved.expect("this test needs CAP_SYS_ADMIN to make a network namespace");
        let mut links = Connection::open().unwrap();
        links.create_dummy("eth0").unwrap();
        for name in ["lo", "eth0"] {
            let index = links.link(name).unwrap().index;
            links.set_up(index).unwrap();
        }
        let link = links.link("eth0").unwrap().index;
        for (ip, prefix_length) in
            [("172.18.0.2", 16), ("10.244.1.1", 24), ("172.31.255.2", 30), ("fd00:172:18::2", 64)]
        {
            links.add_address(Address { link, ip: ip.parse().unwrap(), prefix_length }).unwrap();
        }
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect("the tool is installed");
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn sorted(text: &str) -> BTreeSet<String> {
    text.lines().map(|line| line.trim_end().to_owned()).collect()
}

fn recorded_intent(name: &str) -> Intent {
    let case = conformance::case(name).unwrap();
    let mut facts = Facts::new(Policy { node_name: "ka".into(), ..Policy::default() });
    ManifestSource::open(&case.folder, |event| drop(facts.apply(event))).unwrap();
    let mut intent = resolve::all(&facts).0;
    for family in [&mut intent.node.v4, &mut intent.node.v6] {
        family.node_port_addresses = NodePortAddresses::AllLocal;
    }
    intent
}

fn wanted(intent: &Intent) -> State {
    let host_addresses = Doors::open(&[], &Settings::default()).unwrap().host_addresses().unwrap();
    render(intent, &Parameters { host_addresses, ..Parameters::default() }, &Family::ALL)
}

fn open() -> Ipvs {
    Ipvs::open(&Family::ALL, &Settings::default()).unwrap()
}

/// As [`open`], but the host's tools write and read the rules.
fn open_with_tools() -> Ipvs {
    let mut settings = Settings::default();
    settings.set(&PROGRAM, Value::Text("tool".into()));
    Ipvs::open(&Family::ALL, &settings).unwrap()
}

#[test]
#[ignore = "needs a kernel with IPVS: make test-vm"]
fn the_kernel_has_what_was_wanted_and_a_restart_sends_nothing() {
    in_namespace(|| {
        run("ipvsadm", &["-A", "-t", "192.0.2.9:80", "-s", "rr"]);
        let mut dataplane = open();
        dataplane.probe(&NodeIntent::default()).unwrap();
        let mut before = State::default();
        for case in CASES {
            // From each case to the next, only the differences are changed.
            let intent = recorded_intent(case);
            let outcome = dataplane.start(&intent).unwrap();
            assert_eq!(outcome.refused, []);
            let (wanted, mut seen) = (
                wanted(&intent),
                observe(&mut Doors::open(&Family::ALL, &Settings::default()).unwrap()).unwrap(),
            );
            seen.servers.values_mut().for_each(|it| it.endpoints.retain(|_, weight| *weight > 0));
            assert_eq!(seen, wanted, "{case}");
            assert_eq!(open().start(&intent).unwrap().operations, 0, "{case}");
            assert_eq!(
                open_with_tools().start(&intent).unwrap().operations,
                0,
                "{case}: the tools read the same"
            );
            assert_ne!(before, wanted);
            before = wanted;
        }
        // The other way round: what the tools write, we read.
        dataplane.cleanup().unwrap();
        for case in CASES {
            let intent = recorded_intent(case);
            open_with_tools().start(&intent).unwrap();
            assert_eq!(open().start(&intent).unwrap().operations, 0, "{case}");
        }
        let removed = dataplane.cleanup().unwrap();
        assert!(removed.contains(&"device kube-ipvs0".to_owned()), "{removed:?}");
        assert!(dataplane.is_cold().unwrap());
        assert_eq!(open().cleanup().unwrap(), [] as [&str; 0]);
        assert_eq!(run("ipset", &["list", "-n"]), "");
        assert!(!run("iptables-save", &[]).contains("KUBE-"));
        assert_eq!(
            sorted(&run("ipvsadm", &["-Sn"])),
            ["-A -t 192.0.2.9:80 -s rr".to_owned()].into(),
            "a foreign one stays"
        );
    });
}

/// Our State prints the same text as the official tools.
#[test]
#[ignore = "needs a kernel with IPVS: make test-vm"]
fn the_tools_print_the_same() {
    in_namespace(|| {
        let mut dataplane = open();
        for case in ["sctp", "lb-source-ranges"] {
            let intent = recorded_intent(case);
            dataplane.cleanup().unwrap();
            dataplane.start(&intent).unwrap();
            let text = wanted(&intent).to_string();
            let (servers, rest) = text.split_once("# ipset save\n").unwrap();
            let (sets, _) = rest.split_once("# ip address").unwrap();
            let servers = servers.strip_prefix("# ipvsadm -Sn\n").unwrap();
            assert_eq!(sorted(servers), sorted(&run("ipvsadm", &["-Sn"])), "{case}");
            assert_eq!(sorted(sets), sorted(&run("ipset", &["save"])), "{case}");
        }
    });
}

#[test]
#[ignore = "needs a kernel with IPVS: make test-vm"]
fn drift_is_mended_and_refusals_name_the_service() {
    in_namespace(|| {
        let intent = recorded_intent("lb-source-ranges");
        let mut dataplane = open();
        dataplane.start(&intent).unwrap();
        run("ipvsadm", &["-D", "-t", "10.96.0.80:80"]);
        run("ipset", &["flush", "KUBE-CLUSTER-IP"]);
        run("ip", &["address", "del", "10.96.0.80/32", "dev", "kube-ipvs0"]);
        run("iptables", &["-t", "nat", "-F", "KUBE-SERVICES"]);
        run("iptables", &["-F", "KUBE-IPVS-OUT-FILTER"]);
        let repair = dataplane.verify().unwrap();
        assert!(repair.operations >= 7 && repair.unrepaired.is_none(), "{repair:?}");
        assert_eq!(dataplane.verify().unwrap().operations, 0);
        let service = intent.services.values().next().unwrap();
        let Programmed::Parts { right, wanted } = dataplane.programmed(&intent, service).unwrap() else {
            panic!("it is programmed");
        };
        assert_eq!(right, wanted);
        let settings: Settings = [(SCHEDULER.name, Value::Text("nosuch".into()))].into_iter().collect();
        let mut other = Ipvs::open(&Family::ALL, &settings).unwrap();
        let words = other.probe(&NodeIntent::default()).unwrap_err().to_string();
        assert_eq!(
            words,
            "the kernel has no IPVS scheduler nosuch (module ip_vs_nosuch), try `modprobe ip_vs_nosuch`"
        );
        let refused = other.start(&intent).unwrap().refused;
        assert_eq!(refused.len(), intent.services.len());
        assert!(refused[0].reason.contains("the kernel has no IPVS scheduler nosuch"), "{refused:?}");
    });
}

#[test]
#[ignore = "needs a kernel with IPVS: make test-vm"]
fn node_ports_answer_on_addresses_the_node_gets_later() {
    in_namespace(|| {
        let intent = recorded_intent("sctp");
        let mut dataplane = open();
        dataplane.start(&intent).unwrap();
        run("ip", &["address", "add", "192.0.2.7/24", "dev", "eth0"]);
        // A virtual server of another program, on an address of a Service.
        run("ipvsadm", &["-A", "-t", "10.96.0.80:99", "-s", "rr"]);
        dataplane.verify().unwrap();
        let servers = run("ipvsadm", &["-Sn"]);
        assert!(servers.contains("-A --sctp-service 192.0.2.7:30077 -s rr"), "{servers}");
        assert!(
            !servers.contains("10.96.0.80:99"),
            "what stands at our addresses is taken for ours: {servers}"
        );
        let excluded = Value::Cidrs(vec!["10.96.0.80/32".parse().unwrap()]);
        let settings: Settings = [(EXCLUDE_CIDRS.name, excluded)].into_iter().collect();
        run("ipvsadm", &["-A", "-t", "10.96.0.80:99", "-s", "rr"]);
        Ipvs::open(&Family::ALL, &settings).unwrap().cleanup().unwrap();
        assert!(run("ipvsadm", &["-Sn"]).contains("10.96.0.80:99"), "unless it is said that it is not");
    });
}

/// A connection outlives its endpoint's removal, and the endpoint gets no new connections. When the connection has ended, or
/// after the limit, the endpoint is removed.
#[test]
#[ignore = "needs a kernel with IPVS: make test-vm"]
fn an_endpoint_drains() {
    in_namespace(|| {
        // Pods on the node itself: two addresses of its own.
        let pods = [Ipv4Addr::new(172, 18, 0, 2), Ipv4Addr::new(10, 244, 1, 1)];
        let listeners = pods.map(|ip| TcpListener::bind((ip, 8080)).unwrap());
        let intent = |count: usize| {
            let (name, service) = service(1, Protocol::Tcp, 0..2);
            let mut service = Arc::unwrap_or_clone(service);
            for (endpoint, ip) in service.ports[0].cluster.iter_mut().zip(pods) {
                (endpoint.ip, endpoint.port) = (ip.into(), 8080);
            }
            service.ports[0].cluster.truncate(count);
            (name, Some(Arc::new(service)))
        };
        let v4 = FamilyIntent { node_port_addresses: NodePortAddresses::AllLocal, ..FamilyIntent::default() };
        let node = NodeIntent { v4, ..NodeIntent::default() };
        let mut dataplane = open();
        dataplane.start(&Intent { node, ..Intent::default() }).unwrap();
        assert_eq!(dataplane.change(vec![intent(2)]).unwrap().refused, []);
        let to: SocketAddr = "10.96.0.1:80".parse().unwrap();
        let connect = || TcpStream::connect_timeout(&to, ferroxy_lab::ANSWER).expect("an endpoint answers");
        // Round robin: each endpoint gets one connection.
        let clients = [connect(), connect()];
        let [here, there] = &listeners;
        let servers = [here.accept().unwrap().0, there.accept().unwrap().0];
        dataplane.change(vec![intent(1)]).unwrap();
        assert_eq!(dataplane.draining(), 1);
        assert_eq!(dataplane.drain().unwrap().operations, 0, "it has a connection");
        there.set_nonblocking(true).unwrap();
        let more = [connect(), connect(), connect()];
        assert!(there.accept().is_err(), "new ones go elsewhere");
        assert!(run("ipvsadm", &["-Sn"]).contains("-r 10.244.1.1:8080 -m -w 0"));
        // The endpoint is added and removed again.
        dataplane.change(vec![intent(2)]).unwrap();
        assert_eq!(dataplane.draining(), 0);
        assert!(run("ipvsadm", &["-Sn"]).contains("-r 10.244.1.1:8080 -m -w 1"));
        dataplane.change(vec![intent(1)]).unwrap();
        assert_eq!(dataplane.drain().unwrap().operations, 0);
        // A restart finds the endpoint while it drains.
        drop(dataplane);
        let mut dataplane = open();
        let (name, service) = intent(1);
        let services = [(name, service.unwrap())].into();
        let v4 = FamilyIntent { node_port_addresses: NodePortAddresses::AllLocal, ..FamilyIntent::default() };
        let node = NodeIntent { v4, ..NodeIntent::default() };
        assert_eq!(dataplane.start(&Intent { node, services }).unwrap().operations, 0);
        assert_eq!(dataplane.draining(), 1);
        assert_eq!(dataplane.drain_at(Instant::now() + LIMIT).unwrap().operations, 1, "its time is over");
        assert!(!run("ipvsadm", &["-Sn"]).contains("-r 10.244.1.1:8080"));
        assert_eq!(dataplane.draining(), 0);
        drop((clients, servers, more));
    });
}

/// A single change costs the same in a cluster of 50 Services and of 5,000, counted in operations and messages. Its time is
/// printed, but not checked, because times mean nothing under emulation.
#[test]
#[ignore = "needs a kernel with IPVS: make test-vm"]
fn a_change_is_a_handful_of_messages_whatever_the_cluster() {
    in_namespace(|| {
        let mut dataplane = open();
        let costs = [50, 5000].map(|count| {
            let services = (0..count).map(|n| service(n, Protocol::Tcp, 0..5)).collect();
            assert_eq!(dataplane.start(&Intent { services, ..Intent::default() }).unwrap().refused, []);
            let before: Vec<_> = changes().map(|(what, change)| cost(&mut dataplane, what, change)).collect();
            // The changes undo each other, so they can run again: take the better of two times.
            let again: Vec<_> = changes().map(|(what, change)| cost(&mut dataplane, what, change)).collect();
            let times = before.iter().zip(&again).map(|((what, _, time), (_, _, other))| {
                format!("{what} {:.1} ms", time.min(other).as_secs_f64() * 1000.0)
            });
            tell(&format!("{count} Services of 5 endpoints: {}", times.collect::<Vec<_>>().join(", ")));
            before.into_iter().map(|(what, counts, _)| (what, counts)).collect::<Vec<_>>()
        });
        assert_eq!(costs[0], costs[1]);
        assert!(
            costs[0].iter().all(|(_, (operations, messages))| operations.max(messages) < &10),
            "{costs:?}"
        );
        assert!(!dataplane.cleanup().unwrap().is_empty());
    });
}

/// Each change concerns one Service, and the last two undo the others.
fn changes() -> impl Iterator<Item = (&'static str, Change)> {
    let (one, other) = (7, 10_000);
    let with = |number, endpoints| {
        let (name, service) = service(number, Protocol::Tcp, endpoints);
        (name, Some(service))
    };
    let (gone, _) = with(other, 0..5);
    [
        ("an endpoint comes:", with(one, 0..6)),
        ("a Service comes:", with(other, 0..5)),
        ("an endpoint goes:", with(one, 0..5)),
        ("a Service goes:", (gone, None)),
    ]
    .into_iter()
}

/// Operations and messages of a change, and how long it took.
fn cost(
    dataplane: &mut Ipvs,
    what: &'static str,
    change: Change,
) -> (&'static str, (usize, usize), Duration) {
    let start = Instant::now();
    let outcome = dataplane.change(vec![change]).unwrap();
    let time = start.elapsed();
    assert_eq!(outcome.refused, []);
    assert!(outcome.operations > 0, "{what} nothing was done");
    // An endpoint that is still draining would be revived instead of added.
    dataplane.drain_at(Instant::now() + LIMIT).unwrap();
    (what, (outcome.operations, outcome.receipt.messages), time)
}

/// Not println!, whose output the test harness keeps to itself.
fn tell(line: &str) {
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).unwrap();
}
