//! Ring 0: laws that hold for every cluster, checked on random ones by executing the programs over rendered maps.

#![allow(clippy::unwrap_used, reason = "the functions that tests share are tests too; clippy does not know")]

mod cells;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ferroxy_core::intent::LocalDetector;
use ferroxy_core::testing::{Cluster, clusters, config, events, interesting_packets};
use ferroxy_core::{Family, Intent, Origin, Packet, Protocol, Route, ServiceName, Verdict, oracle, resolve};
use ferroxy_dataplane::{Acknowledged, ChoiceOfEndpoints};
use ferroxy_sockets::entry::{FrontendKey, FrontendValue};
use ferroxy_sockets::interpret::{Choice, Owner, Programs, Socket};
use ferroxy_sockets::{Clients, Ledger, Salt, State, Terms, diff, render};
use proptest::prelude::*;
use proptest::sample::{Index, select};

use cells::{Question, another_client, broken, is_localhost};

const COUNTEREXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/proptest-regressions/laws.txt");

fn terms(intent: &Intent, clients: Clients) -> Terms {
    Terms::new(&intent.node, clients, ChoiceOfEndpoints::ByClient, Salt(7))
}

fn clients() -> impl Strategy<Value = Clients> {
    select(vec![Clients::HOST, Clients::PODS, Clients::ALL])
}

/// The sockets on this node whose first packet would be this packet: of both families, if both can reach the destination.
fn sockets(intent: &Intent, packet: &Packet) -> Vec<Socket> {
    let owners: &[Owner] = match &packet.origin {
        Origin::Host => &[Owner::Host, Owner::HostNetworkPod],
        Origin::Interface(name) if name == "cbr0" => &[Owner::Pod, Owner::Container],
        // Not from this node.
        Origin::Interface(_) => &[],
    };
    let families: &[Family] = if packet.destination.is_ipv4() { &Family::ALL } else { &[Family::V6] };
    // An unbound socket gets the host's address on the outgoing interface: a socket with another address is bound.
    let is_bound = packet.origin == Origin::Host && is_unusual(intent, packet);
    let socket = |owner: Owner, family: Family| Socket {
        owner,
        family,
        protocol: packet.protocol.number(),
        source: is_bound.then_some(packet.source),
        bound_device: 0,
        destination: SocketAddr::new(packet.destination, packet.port),
    };
    owners.iter().flat_map(|owner| families.iter().map(move |family| socket(*owner, *family))).collect()
}

/// Source addresses that the kernel does not choose for a route to a Service: loopback, and addresses in the range of pods.
fn is_unusual(intent: &Intent, packet: &Packet) -> bool {
    let in_pods = match &intent.node.family(Family::of(packet.source)).local_detector {
        Some(LocalDetector::SourceIn(range)) => range.contains(&packet.source),
        _ => false,
    };
    packet.source.is_loopback() || in_pods
}

/// The verdict for a connection: what the programs choose, or what packets meet.
fn verdict(choices: &BTreeSet<Choice>, socket: &Socket, packets: &Verdict) -> Verdict {
    if *choices == BTreeSet::from([Choice::Unchanged]) {
        return packets.clone();
    }
    // A socket of the host has the source address that masquerading would give.
    let masqueraded = matches!(socket.owner, Owner::Host | Owner::HostNetworkPod);
    let endpoint = |choice: &Choice| match choice {
        Choice::Endpoint(address) => Some((*address, masqueraded)),
        Choice::Unchanged => None,
    };
    Verdict::Endpoints(choices.iter().filter_map(endpoint).collect::<BTreeMap<_, _>>())
}

/// The one difference: a pod that reaches itself sees its own address, because no packet leaves it.
fn without_hairpin(packet: &Packet, verdict: Verdict) -> Verdict {
    let Verdict::Endpoints(mut endpoints) = verdict else { return verdict };
    for (endpoint, masqueraded) in &mut endpoints {
        *masqueraded &= endpoint.ip() != packet.source;
    }
    Verdict::Endpoints(endpoints)
}

fn agrees(found: &Verdict, expected: &Verdict, packet: &Packet) -> bool {
    let is_pod = packet.origin != Origin::Host;
    found == expected || is_pod && *found == without_hairpin(packet, expected.clone())
}

/// The other difference: node ports answer the host on localhost, too, as on any other address of the host.
fn on_localhost(intent: &Intent, packet: &Packet) -> Option<Verdict> {
    if packet.origin != Origin::Host || !is_localhost(packet.destination) {
        return None;
    }
    let ports = intent.services.values().flat_map(|service| &service.ports);
    let mut ports =
        ports.filter(|port| port.protocol == Protocol::Tcp && port.family == Family::of(packet.destination));
    let routes = [Route::ExternalCluster, Route::ExternalLocal];
    let port = ports.find(|port| {
        let mut frontends = port.frontends.iter();
        frontends.any(|it| it.address.is_none() && it.port == packet.port && routes.contains(&it.route))
    })?;
    let endpoint = |it: &ferroxy_core::Endpoint| (SocketAddr::new(it.ip, it.port), true);
    Some(Verdict::Endpoints(port.cluster.iter().map(endpoint).collect()))
}

type Oracle = fn(&Intent, &Packet) -> Verdict;

/// The oracles of all dataplanes above which sockets can be translated.
const ORACLES: [(&str, Oracle, ChoiceOfEndpoints); 3] = [
    ("nftables", oracle::oracle, ChoiceOfEndpoints::ByClient),
    ("iptables", oracle::iptables, ChoiceOfEndpoints::ByClient),
    ("ipvs", oracle::ipvs, ChoiceOfEndpoints::ByFrontend),
];

fn compare(
    cluster: &Cluster,
    clients: Clients,
    remembers: bool,
    own: &[IpAddr],
) -> Result<(), TestCaseError> {
    let mut intent = cluster.intent();
    intent.node.host_addresses = own.iter().copied().collect();
    let programs = Programs::new(clients, remembers).unwrap();
    for mode in ORACLES {
        let state = render(&intent, &Terms { choice: mode.2, ..terms(&intent, clients) });
        let wrong = wrong(&intent, mode, clients, &programs, &state);
        prop_assert!(wrong.is_none(), "{} {}", mode.0, wrong.unwrap_or_default());
    }
    Ok(())
}

/// The first connection that these maps handle wrongly: it reaches other endpoints than packets do, or it is left to packets
/// although it must be translated.
fn wrong(
    intent: &Intent,
    (_, oracle, choice): (&str, Oracle, ChoiceOfEndpoints),
    clients: Clients,
    programs: &Programs,
    state: &State,
) -> Option<String> {
    for packet in &interesting_packets(intent) {
        let (expected, gift) = (oracle(intent, packet), on_localhost(intent, packet));
        let by_others = oracle(intent, &another_client(packet));
        for socket in &sockets(intent, packet) {
            let choices = programs.choices(state, socket).unwrap();
            let found = verdict(&choices, socket, &expected);
            if gift.as_ref() != Some(&found) && !agrees(&found, &expected, packet) {
                return Some(format!("{socket:?}: {found:?} instead of {expected:?}"));
            }
            let question = Question {
                intent,
                choice,
                clients,
                socket,
                packet,
                by_packets: &expected,
                by_others: &by_others,
                on_localhost: gift.as_ref(),
            };
            if let Some(why) = broken(&question, &choices) {
                return Some(why);
            }
        }
    }
    None
}

/// Endpoints that a socket can reach.
fn reached(verdict: &Verdict) -> BTreeSet<SocketAddr> {
    match verdict {
        Verdict::Endpoints(endpoints) => endpoints.keys().copied().collect(),
        _ => BTreeSet::new(),
    }
}

fn acknowledged(intent: &Intent) -> Acknowledged {
    let mut all = Acknowledged::new(intent.node.clone());
    for (name, service) in &intent.services {
        all.set_service(name, Some(service.clone()));
    }
    all
}

proptest! {
    #![proptest_config(config(96, COUNTEREXAMPLES))]

    #[test]
    fn sockets_reach_what_packets_reach(
        cluster in clusters(),
        clients in clients(),
        remembers in any::<bool>(),
        own in proptest::sample::subsequence(vec!["10.96.0.2".parse().unwrap(), "203.0.113.1".parse().unwrap()], 0..=2),
    ) {
        compare(&cluster, clients, remembers, &own)?;
    }

    /// The law notices every omission of a renderer: a frontend, a client of a frontend, or an endpoint.
    #[test]
    fn a_renderer_that_translates_too_little_is_noticed(cluster in clusters(), clients in clients(), index in any::<Index>()) {
        let intent = cluster.intent();
        let programs = Programs::new(clients, false).unwrap();
        for mode in ORACLES {
            let whole = render(&intent, &Terms { choice: mode.2, ..terms(&intent, clients) });
            if whole.frontends.is_empty() {
                continue;
            }
            let (key, value) = whole.frontends.iter().nth(index.index(whole.frontends.len())).unwrap();
            for role in [Clients::HOST, Clients::PODS].into_iter().filter(|role| value.clients().contains(*role)) {
                let mut less = whole.clone();
                less.frontends.get_mut(key).unwrap().0[FrontendValue::CLIENTS] &= !role.0;
                let found = wrong(&intent, mode, clients, &programs, &less);
                prop_assert!(found.is_some(), "{}: {} without {}", mode.0, key.address(), role.words());
            }
            let mut less = whole.clone();
            less.frontends.remove(key);
            prop_assert!(wrong(&intent, mode, clients, &programs, &less).is_some(), "{}: no {}", mode.0, key.address());
        }
    }

    /// The law of subsets: if any elements are missing, the same endpoints are possible, some by packets.
    #[test]
    fn any_subset_of_the_elements_is_right(
        cluster in clusters(),
        clients in clients(),
        gone in proptest::collection::vec(any::<Index>(), 0..12),
    ) {
        let intent = cluster.intent();
        let programs = Programs::new(clients, false).unwrap();
        let whole = render(&intent, &terms(&intent, clients));
        let mut state = whole.clone();
        for index in gone.iter().filter(|_| !whole.is_empty()) {
            let index = index.index(whole.len());
            let slots = index.checked_sub(whole.frontends.len());
            let members = slots.and_then(|index| index.checked_sub(whole.endpoints.len()));
            match (slots, members) {
                (None, _) => drop(state.frontends.remove(whole.frontends.keys().nth(index).unwrap())),
                (Some(index), None) => drop(state.endpoints.remove(whole.endpoints.keys().nth(index).unwrap())),
                (_, Some(index)) => drop(state.members.remove(whole.members.keys().nth(index).unwrap())),
            }
        }
        for packet in interesting_packets(&intent) {
            let expected = on_localhost(&intent, &packet).unwrap_or_else(|| oracle(&intent, &packet));
            for socket in sockets(&intent, &packet) {
                for choice in programs.choices(&state, &socket).unwrap() {
                    if let Choice::Endpoint(endpoint) = choice {
                        prop_assert!(reached(&expected).contains(&endpoint), "{:?}: {}", socket, endpoint);
                    }
                }
            }
        }
    }

    /// The law of cuts: after any number of writes, a socket reaches what it reached before or what it must reach now.
    #[test]
    fn every_prefix_of_a_plan_is_right(cluster in clusters(), event in events(), clients in clients()) {
        let mut facts = cluster.facts();
        let before = resolve::all(&facts).0;
        let touched = facts.apply(event);
        let mut after = before.clone();
        resolve::update(&facts, &touched, &mut after);
        // A change of the node is followed by a repair of everything, which is a Plan like any other.
        let ledger = Ledger::new(terms(&before, clients));
        let mut state = ledger.state(&acknowledged(&before));
        let desired = Ledger::new(terms(&after, clients)).state(&acknowledged(&after));
        let plan = diff(&state, &desired);
        let programs = Programs::new(clients, false).unwrap();
        for op in plan.ops() {
            state.apply(op);
            for packet in interesting_packets(&after) {
                let verdict =
                    |intent| on_localhost(intent, &packet).unwrap_or_else(|| oracle(intent, &packet));
                let possible: BTreeSet<_> =
                    [verdict(&before), verdict(&after)].iter().flat_map(reached).collect();
                for socket in sockets(&after, &packet) {
                    for choice in programs.choices(&state, &socket).unwrap() {
                        if let Choice::Endpoint(endpoint) = choice {
                            prop_assert!(possible.contains(&endpoint), "after {}: {:?}: {}", op, socket, endpoint);
                        }
                    }
                }
            }
        }
        prop_assert_eq!(state, desired);
    }

    #[test]
    fn changes_lead_to_the_state_of_a_start_but_for_the_order(cluster in clusters(), clients in clients()) {
        let mut facts = ferroxy_core::Facts::new(cluster.policy.clone());
        let mut intent = resolve::all(&facts).0;
        let mut ledger = Ledger::new(terms(&intent, clients));
        let mut maps = State::default();
        for event in &cluster.events {
            let before = acknowledged(&intent);
            let touched = facts.apply(event.clone());
            let old = intent.clone();
            resolve::update(&facts, &touched, &mut intent);
            let after = acknowledged(&intent);
            let names: BTreeSet<&ServiceName> = old.services.keys().chain(intent.services.keys()).collect();
            let differ = names.into_iter().filter(|name| old.services.get(*name) != intent.services.get(*name));
            let names: Vec<ServiceName> = differ.cloned().collect();
            let (seen, order) = (ledger.fragment(&before, &names), ledger.before(&before, &names));
            ledger.enter(&after, &names, &order);
            diff(&seen, &ledger.fragment(&after, &names)).ops().for_each(|op| maps.apply(op));
            let now = terms(&intent, clients);
            if *ledger.terms() != now {
                let seen = ledger.state(&after);
                ledger.set_terms(now);
                diff(&seen, &ledger.state(&after)).ops().for_each(|op| maps.apply(op));
            }
            prop_assert_eq!(&maps, &ledger.state(&after), "after {:?}", event);
            let sorted = |state: &State| {
                let mut endpoints: Vec<_> = state.endpoints.values().copied().collect();
                endpoints.sort_unstable();
                (state.frontends.clone(), state.members.clone(), endpoints)
            };
            prop_assert_eq!(sorted(&maps), sorted(&render(&intent, &terms(&intent, clients))));
        }
    }
}

/// What happens on a node, to a Service with session affinity.
#[derive(Debug, Clone)]
enum Step {
    /// A client connects to one of the frontends, some seconds later. Client 0 is the host.
    Connect { client: u64, frontend: usize, later: u64, count: u64 },
    /// The Service has these endpoints now; those with an even number are on this node.
    Change(BTreeSet<u16>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let connect = (0..4_u64, 0..3_usize, 0..70_u64, any::<u64>())
        .prop_map(|(client, frontend, later, count)| Step::Connect { client, frontend, later, count });
    let change = proptest::collection::btree_set(0..8_u16, 1..6).prop_map(Step::Change);
    proptest::collection::vec(prop_oneof![4 => connect, 1 => change], 1..60)
}

const TIMEOUT: u32 = 100;

/// A cluster IP with a policy `Local`, an external IP with that policy, and a second external IP: they share sessions.
fn sticky(numbers: &BTreeSet<u16>) -> (ServiceName, std::sync::Arc<ferroxy_core::ServiceIntent>) {
    let (name, plain) = ferroxy_core::testing::service(1, numbers.iter().copied());
    let mut service = ferroxy_core::ServiceIntent::clone(&plain);
    let port = &mut service.ports[0];
    port.affinity = Some(TIMEOUT);
    port.local = port.cluster.clone();
    port.local.retain(|it| matches!(it.ip, IpAddr::V4(ip) if ip.octets()[3] % 2 == 0));
    let external = |last, route| {
        let address = Some(IpAddr::from([203, 0, 113, last]));
        ferroxy_core::Frontend { address, route, ..port.frontends[0].clone() }
    };
    let (one, two) = (external(1, Route::ExternalLocal), external(2, Route::ExternalLocal));
    let local = if port.local.is_empty() { Route::Drop } else { Route::Local };
    port.frontends[0].route = local;
    port.frontends.extend([one, two]);
    (name, std::sync::Arc::new(service))
}

proptest! {
    #![proptest_config(config(192, COUNTEREXAMPLES))]

    /// The law of sessions: a client stays at its endpoint, if that is possible and its last connection is not too long ago.
    #[test]
    fn clients_stay_as_long_as_they_can(steps in steps(), does_more in any::<bool>()) {
        let programs = Programs::new(Clients::ALL, does_more).unwrap();
        let mut intent = Intent { services: [sticky(&(0..4).collect())].into(), ..Intent::default() };
        intent.node.v4.local_detector = Some(LocalDetector::SourceIn("10.244.0.0/16".parse().unwrap()));
        let mut in_force = acknowledged(&intent);
        let mut ledger = Ledger::new(terms(&intent, Clients::ALL));
        let (mut memory, mut now) = (ferroxy_sockets::interpret::Memory::default(), 0);
        let mut known: BTreeMap<u64, (SocketAddr, u64)> = BTreeMap::new();
        let mut made = 0;
        for step in steps {
            match step {
                Step::Change(numbers) => {
                    let (name, service) = sticky(&numbers);
                    let (names, order) = ([name.clone()], ledger.before(&in_force, std::slice::from_ref(&name)));
                    in_force.set_service(&name, Some(service));
                    ledger.enter(&in_force, &names, &order);
                }
                Step::Connect { client, frontend, later, count } => {
                    now += later;
                    let service = in_force.services().next().unwrap().1;
                    let port = &service.ports[0];
                    let pool = if frontend == 0 { &port.local } else { &port.cluster };
                    let pool: BTreeSet<SocketAddr> = pool.iter().map(|it| SocketAddr::new(it.ip, it.port)).collect();
                    let socket = Socket {
                        owner: if client == 0 { Owner::Host } else { Owner::Pod },
                        family: Family::V4,
                        protocol: Protocol::Tcp.number(),
                        source: None,
                        bound_device: 0,
                        destination: SocketAddr::new(port.frontends[frontend].address.unwrap(), 80),
                    };
                    let moment = ferroxy_sockets::interpret::Moment { pod: client, now: now * 1_000_000_000, count };
                    let choice = programs.choose(&ledger.state(&in_force), &mut memory, &socket, moment).unwrap();
                    let Choice::Endpoint(chosen) = choice else {
                        prop_assert!(pool.is_empty());
                        continue;
                    };
                    let before = known.insert(client, (chosen, now));
                    let stays = before.filter(|(at, last)| pool.contains(at) && now - last <= u64::from(TIMEOUT));
                    prop_assert!(pool.contains(&chosen));
                    prop_assert!(stays.is_none_or(|(at, _)| at == chosen), "{:?} instead of {:?}", chosen, stays);
                    made += 1;
                }
            }
        }
        let counted: u64 = memory.flows.values().sum();
        prop_assert_eq!(counted, if does_more { made } else { 0 }, "flows");
    }
}

#[test]
fn sockets_that_are_none_of_our_business_stay_unchanged() {
    let (name, service) = ferroxy_core::testing::service(1, 0..3);
    let intent = Intent { services: [(name, service)].into(), ..Intent::default() };
    let detected = Terms { detects_pods: [true, true], ..terms(&intent, Clients::ALL) };
    let (state, programs) = (render(&intent, &detected), Programs::new(Clients::ALL, false).unwrap());
    let plain = |owner| Socket {
        owner,
        family: Family::V4,
        protocol: Protocol::Tcp.number(),
        source: None,
        bound_device: 0,
        destination: "10.96.0.1:80".parse().unwrap(),
    };
    let unchanged =
        |socket: Socket| programs.choices(&state, &socket).unwrap() == BTreeSet::from([Choice::Unchanged]);
    for owner in [Owner::Host, Owner::HostNetworkPod, Owner::Pod] {
        assert_eq!(programs.choices(&state, &plain(owner)).unwrap().len(), 3, "{owner:?}");
        assert!(
            unchanged(Socket { source: Some("192.0.2.1".parse().unwrap()), ..plain(owner) }),
            "bound address"
        );
        assert!(unchanged(Socket { bound_device: 2, ..plain(owner) }), "bound device");
        assert!(unchanged(Socket { protocol: Protocol::Udp.number(), ..plain(owner) }));
        assert!(unchanged(Socket { destination: "10.96.0.1:81".parse().unwrap(), ..plain(owner) }));
    }
    assert!(unchanged(plain(Owner::Container)), "a container that is no pod");
    let only_host = Programs::new(Clients::HOST, false).unwrap();
    assert_eq!(only_host.choices(&state, &plain(Owner::Pod)).unwrap(), BTreeSet::from([Choice::Unchanged]));
}

/// If one of many endpoints leaves, the writes are a slot, the count and the slot that is left over, at any size of the cluster.
/// With session affinity the member is one more write. A few endpoints are one write, all at once.
#[test]
fn one_change_costs_three_writes_at_most() {
    let cases = [
        (50, 10, None, 3),
        (50_000, 10, None, 3),
        (50, 10, Some(60), 4),
        (50, 4, None, 1),
        (50_000, 3, None, 1),
    ];
    for (services, endpoints, affinity, most) in cases {
        let service = |number: u16, endpoints: Vec<u16>| {
            let (name, plain) = ferroxy_core::testing::service(number, endpoints);
            let mut service = ferroxy_core::ServiceIntent::clone(&plain);
            service.ports[0].affinity = affinity;
            (name, std::sync::Arc::new(service))
        };
        let all: BTreeMap<_, _> = (0..services).map(|n| service(n, (0..endpoints).collect())).collect();
        let intent = Intent { services: all, ..Intent::default() };
        let mut in_force = acknowledged(&intent);
        let mut ledger = Ledger::new(terms(&intent, Clients::ALL));
        for gone in 0..endpoints {
            for present in [false, true] {
                let (name, changed) = service(7, (0..endpoints).filter(|n| present || *n != gone).collect());
                let names = [name.clone()];
                let (seen, order) = (ledger.fragment(&in_force, &names), ledger.before(&in_force, &names));
                in_force.set_service(&name, Some(changed));
                ledger.enter(&in_force, &names, &order);
                let plan = diff(&seen, &ledger.fragment(&in_force, &names));
                assert!((1..=most).contains(&plan.len()), "{plan}");
            }
        }
    }
}

/// While the kernel writes a value, or reuses its memory for another value, a program may read any mixture of the two. An endpoint
/// that the program reads from it is a whole endpoint of one of the two values, and never another frontend's.
#[test]
fn a_value_that_is_half_written_gives_whole_endpoints_or_none() {
    let programs = Programs::new(Clients::ALL, false).unwrap();
    let endpoint = |(n, port): (u8, u16)| SocketAddr::from(([10, 244, n, 200 - n], port));
    let list = |from: u8, count: u8| -> Vec<SocketAddr> {
        (from..from + count).map(|n| endpoint((n, 8000 + u16::from(n) * 257))).collect()
    };
    let (key, other) =
        (FrontendKey::new([10, 96, 0, 1].into(), 80), FrontendKey::new([10, 96, 0, 2].into(), 80));
    let value = |key: &FrontendKey, from, count| FrontendValue::listed(key, Clients::ALL, &list(from, count));
    let socket = |family| Socket {
        owner: Owner::Pod,
        family,
        protocol: Protocol::Tcp.number(),
        source: None,
        bound_device: 0,
        destination: key.address(),
    };
    let counts = 1..=FrontendValue::MOST as u8;
    for (before, after) in counts.clone().flat_map(|before| counts.clone().map(move |after| (before, after)))
    {
        for owner in [&key, &other] {
            let (old, new) = (value(&key, 1, before), value(owner, 2, after));
            let is_ours = *owner == key;
            let allowed: BTreeSet<_> =
                list(1, before).into_iter().chain(list(2, after).into_iter().filter(|_| is_ours)).collect();
            for (cut, family) in
                (0..=FrontendValue::SIZE).flat_map(|cut| Family::ALL.map(|family| (cut, family)))
            {
                let mut torn = old;
                torn.0[..cut].copy_from_slice(&new.0[..cut]);
                let state = State { frontends: [(key, torn)].into(), ..State::default() };
                for choice in programs.choices(&state, &socket(family)).unwrap() {
                    let right = matches!(choice, Choice::Endpoint(it) if allowed.contains(&it));
                    assert!(right || choice == Choice::Unchanged, "{before} to {after} at {cut}: {choice:?}");
                }
            }
        }
    }
}
