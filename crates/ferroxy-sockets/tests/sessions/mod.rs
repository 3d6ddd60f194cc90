//! Session affinity at real sockets, and the budgets of maps: what the programs remember, and how much memory the maps take.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Duration;

use ferroxy_bpf::kernel::{Map, Pinned};
use ferroxy_core::{ServiceIntent, ServiceName};
use ferroxy_dataplane::Dataplane;
use ferroxy_sockets::Clients;
use ferroxy_sockets::entry::SessionValue;
use rustix::time::{ClockId, clock_gettime};

use super::node::{Node, intent, peer, report, service};
use super::{FRONTEND, MAPPED, address, endpoints, generation, peers};

/// The longest timeout that is allowed, because the clock of an emulated machine can be far too fast.
const SECONDS: u32 = 86_400;

/// The Service of `service`, with session affinity.
fn sticky(number: u16, endpoints: impl IntoIterator<Item = u8>) -> (ServiceName, Arc<ServiceIntent>) {
    let (name, plain) = service(number, endpoints);
    let mut service = ServiceIntent::clone(&plain);
    service.ports[0].affinity = Some(SECONDS);
    (name, Arc::new(service))
}

#[test]
pub fn clients_stay_at_their_endpoint() {
    let Some(node) = Node::new() else { return };
    let mut dataplane = node.start(&intent([sticky(1, 1..100)]), node.options());
    let at = [&node.host, &node.pod].map(|client| {
        let all: Vec<_> = peers(client, FRONTEND).into_iter().chain(peers(client, MAPPED)).collect();
        assert!(all.iter().all(|peer| *peer == all[0]), "{}: {all:?}", client.name());
        all[0]
    });
    assert_eq!(peer(&node.container, FRONTEND), address(FRONTEND), "a container that is no pod");
    let stayed = || [&node.host, &node.pod].map(|client| peer(client, FRONTEND));
    assert_eq!(stayed(), at);

    // Other endpoints come and leave, and slots move.
    let number = |peer: std::net::SocketAddr| match peer.ip() {
        std::net::IpAddr::V4(ip) => ip.octets()[3],
        std::net::IpAddr::V6(_) => 0,
    };
    let kept: Vec<u8> = at.into_iter().map(number).collect();
    let others = (1..100).filter(|n| n % 5 == 0);
    let few: std::collections::BTreeSet<u8> = kept.iter().copied().chain(others).collect();
    let change = |dataplane: &mut ferroxy_sockets::Accelerated, (name, service)| {
        node.on_host(|| dataplane.change(vec![(name, Some(service))]).unwrap())
    };
    change(&mut dataplane, sticky(1, few.clone()));
    assert_eq!(stayed(), at);
    // The same after a restart, and in a generation with more room.
    drop(dataplane);
    let mut dataplane = node.start(&intent([sticky(1, few)]), node.options());
    assert_eq!(stayed(), at);
    let first = generation(&node.pins());
    let many = (2..700).map(|n| service(n, 1..101)).map(|(name, service)| (name, Some(service)));
    node.on_host(|| dataplane.change(many.collect()).unwrap());
    assert_ne!(generation(&node.pins()), first);
    assert_eq!(stayed(), at);
    // The endpoints of both clients leave: the clients must go elsewhere, and stay there.
    let done = change(&mut dataplane, sticky(1, [200, 201, 202]));
    let [host, pod] = stayed();
    assert!(endpoints(200..203).contains(&host) && endpoints(200..203).contains(&pod));
    assert_eq!(stayed(), [host, pod]);
    assert!(done.operations > 3);
    // Without affinity, clients reach all endpoints.
    change(&mut dataplane, service(1, 1..4));
    assert_eq!(peers(&node.pod, FRONTEND), endpoints(1..4));
}

/// Makes every session older.
fn age(node: &Node, seconds: u64) {
    let now = clock_gettime(ClockId::Monotonic);
    let now = Duration::new(now.tv_sec as u64, now.tv_nsec as u32).as_nanos() as u64;
    let map = Map::open_pinned(&generation(&node.pins()).join("sessions")).unwrap();
    let mut all = Vec::new();
    map.for_each(|key, value| all.push((key.to_vec(), SessionValue(value.try_into().unwrap())))).unwrap();
    assert!(!all.is_empty());
    for (key, value) in all {
        map.update(&key, &value.at(now.wrapping_sub(seconds * 1_000_000_000)).0).unwrap();
    }
}

#[test]
pub fn sessions_end_some_time_after_the_last_connection() {
    let Some(node) = Node::new() else { return };
    let _dataplane = node.start(&intent([sticky(1, 1..100)]), node.options());
    let at = peer(&node.pod, FRONTEND);
    for _ in 0..20 {
        // Each connection prolongs the session.
        age(&node, u64::from(SECONDS) / 2);
        assert_eq!(peer(&node.pod, FRONTEND), at);
    }
    let elsewhere = (0..50).any(|_| {
        age(&node, u64::from(SECONDS) + 1);
        peer(&node.pod, FRONTEND) != at
    });
    assert!(elsewhere, "fifty times one of 99 at random");
}

/// Repairs and growth count nothing twice.
#[test]
pub fn connections_are_counted_once() {
    let Some(node) = Node::new() else { return };
    let mut dataplane = node.start(&intent([service(1, [1])]), node.options());
    peer(&node.pod, FRONTEND);
    std::fs::remove_file(node.pins().join("link-connect4-pods")).unwrap();
    node.on_host(|| dataplane.verifies().unwrap().verify().unwrap());
    peer(&node.pod, FRONTEND);
    let pods =
        |dataplane: &_| report(dataplane).clients.iter().find(|it| it.clients == "pods").unwrap().connections;
    assert_eq!(pods(&dataplane), 2);
    let many = (2..700).map(|n| service(n, 1..101)).map(|(name, service)| (name, Some(service)));
    node.on_host(|| dataplane.change(many.collect()).unwrap());
    peer(&node.pod, FRONTEND);
    assert_eq!(pods(&dataplane), 3);
}

/// As the kernel accounts it. (Linux before 6.4 reports the maximum instead.)
#[test]
fn the_largest_cluster_takes_less_than_30_megabytes() {
    let Some(node) = Node::new() else { return };
    let options = ferroxy_sockets::Options { clients: Clients::PODS, ..node.options() };
    let dataplane = node.start(&intent((0..44_000).map(|n| service(n, 1..4))), options);
    assert_eq!((report(&dataplane).frontends, report(&dataplane).endpoints), (44_000, 0));
    let files = std::fs::read_dir(generation(&node.pins())).unwrap().flatten();
    let memory = files.filter_map(|file| {
        let map = Map::open_pinned(&file.path()).ok()?;
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", map.as_fd().as_raw_fd())).unwrap();
        let bytes =
            info.lines().find_map(|line| line.strip_prefix("memlock:"))?.trim().parse::<u64>().unwrap();
        Some((file.file_name(), bytes))
    });
    let memory: Vec<_> = memory.collect();
    let sum: u64 = memory.iter().map(|(_, bytes)| bytes).sum();
    assert!(sum > 10_000_000 && sum < 30_000_000, "{sum}: {memory:?}");
}
