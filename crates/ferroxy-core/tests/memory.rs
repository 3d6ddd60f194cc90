//! How much memory a large cluster takes: bytes on the heap, counted, not guessed from the outside.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};

use ferroxy_core::event::{self, Event};
use ferroxy_core::{Facts, Policy};

/// The system's allocator, with a count of the bytes in use.
struct Counting;

static LIVE: AtomicIsize = AtomicIsize::new(0);

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: `memory` came from `alloc` above with this layout.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SLICES: usize = 1000;
const ENDPOINTS_PER_SLICE: usize = 100;
const NODES: usize = 5000;

fn slice(number: usize, ready: bool) -> Event {
    let endpoint = |i: usize| {
        let id = number * ENDPOINTS_PER_SLICE + i;
        let node = id % NODES;
        event::SliceEndpoint {
            addresses: vec![format!("10.{}.{}.{}", 1 + id / 65_536, id / 256 % 256, id % 256)],
            ready: Some(ready),
            serving: Some(true),
            terminating: Some(false),
            node_name: Some(format!("ip-10-0-{}-{}.eu-west-1.compute.internal", node / 256, node % 256)),
            zone: Some(format!("eu-west-1{}", ["a", "b", "c"][node % 3])),
            hint_zones: vec![format!("eu-west-1{}", ["a", "b", "c"][node % 3])],
            hint_nodes: vec![],
            target: Some(format!("service-{number}-5d9c7b8f6d-{id:05x}")),
        }
    };
    Event::Slice(event::EndpointSlice {
        namespace: "production".into(),
        name: format!("service-{number}-abcde"),
        service: Some(format!("service-{number}")),
        address_type: "IPv4".into(),
        ports: vec![event::SlicePort { name: Some("http".into()), protocol: "TCP".into(), port: Some(8080) }],
        endpoints: (0..ENDPOINTS_PER_SLICE).map(endpoint).collect(),
        last_change: None,
    })
}

fn service(number: usize) -> Event {
    let cluster_ip = format!("10.96.{}.{}", number / 250, 1 + number % 250);
    Event::Service(event::Service {
        namespace: "production".into(),
        name: format!("service-{number}"),
        created: Some(1_700_000_000),
        kind: "ClusterIP".into(),
        cluster_ips: vec![cluster_ip.clone()],
        cluster_ip,
        ip_families: vec!["IPv4".into()],
        ports: vec![event::ServicePort { name: "http".into(), port: 80, ..Default::default() }],
        ..Default::default()
    })
}

/// One test only: the count is the process's, so a second test would be counted too.
#[test]
fn a_hundred_thousand_endpoints_fit_in_ten_megabytes_and_are_given_back() {
    let before = LIVE.load(Ordering::Relaxed);
    let in_use = || LIVE.load(Ordering::Relaxed) - before;
    let mut facts = Facts::new(Policy::default());
    for number in 0..SLICES {
        facts.apply(service(number));
        facts.apply(slice(number, true));
    }
    assert_eq!(facts.counts().endpoints, SLICES * ENDPOINTS_PER_SLICE);
    let full = in_use();
    println!("{full} bytes for {} endpoints", SLICES * ENDPOINTS_PER_SLICE);
    assert!(full < 10_000_000, "{full} bytes");

    for number in 0..SLICES {
        facts.apply(slice(number, false));
    }
    let churned = in_use();
    assert!(churned < full + full / 20, "changing every endpoint took {} bytes more", churned - full);

    for number in 0..SLICES {
        let (namespace, name) = ("production".to_owned(), format!("service-{number}-abcde"));
        facts.apply(Event::SliceGone { namespace, name });
        let (namespace, name) = ("production".to_owned(), format!("service-{number}"));
        facts.apply(Event::ServiceGone { namespace, name });
    }
    let empty = in_use();
    assert!(empty < full / 10, "{empty} bytes are left of {full}");
}
