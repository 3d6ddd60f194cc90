//! How much memory a large cluster takes: bytes on the heap, counted, not guessed from the outside.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};

use ferroxy_core::event::{self, Event};
use ferroxy_core::policy::Limits;
use ferroxy_core::{Facts, Policy, ServiceName, resolve};

/// The system's allocator, with a count of the bytes in use.
struct Counting;

static LIVE: AtomicIsize = AtomicIsize::new(0);
/// The most that was in use at a time.
static PEAK: AtomicIsize = AtomicIsize::new(0);

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let size = layout.size() as isize;
        PEAK.fetch_max(LIVE.fetch_add(size, Ordering::Relaxed) + size, Ordering::Relaxed);
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
fn memory() {
    a_hundred_thousand_endpoints_fit_in_three_megabytes_and_are_given_back();
    endpoints_beyond_the_limit_are_not_collected();
    diagnostics_beyond_the_limit_are_not_collected();
}

/// Also returns how many bytes `work` needs at its peak.
fn peak_of<T>(work: impl FnOnce() -> T) -> (T, isize) {
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let result = work();
    (result, PEAK.load(Ordering::Relaxed) - before)
}

/// A hundred thousand endpoints of one Service, where ten thousand are allowed.
fn endpoints_beyond_the_limit_are_not_collected() {
    let limits = Limits { endpoints: 10_000, ..Limits::default() };
    let mut facts = Facts::new(Policy { limits, ..Policy::default() });
    facts.apply(service(0));
    for number in 0..SLICES {
        let Event::Slice(slice) = slice(number, true) else { unreachable!() };
        facts.apply(Event::Slice(event::EndpointSlice { service: Some("service-0".into()), ..slice }));
    }
    let name = ServiceName::new("production", "service-0");
    let (resolution, peak) = peak_of(|| resolve::service(&facts, &name));
    let Some(intent) = resolution.intent else { unreachable!("the Service is ours") };
    assert_eq!((intent.ports[0].cluster.len(), intent.left_out.endpoints), (10_000, 90_000));
    assert!(peak < 4_000_000, "{peak} bytes to resolve 10,000 endpoints");
    let (serving, peak) = peak_of(|| resolve::serving(&facts, &name, &intent.ports[0]));
    assert_eq!(serving.len(), 10_000);
    assert!(peak < 2_000_000, "{peak} bytes for 10,000 addresses");
}

/// A thousand Services with ten slices each, all with as many Diagnostics as an object can have.
fn diagnostics_beyond_the_limit_are_not_collected() {
    let mut facts = Facts::new(Policy::default());
    for number in 0..1000 {
        let Event::Service(mut broken) = service(number) else { unreachable!() };
        broken.external_ips = vec!["no address".into(); 30];
        facts.apply(Event::Service(broken));
        for part in 0..10 {
            let endpoints = vec![event::SliceEndpoint::default(); 30];
            let Event::Slice(slice) = slice(number, true) else { unreachable!() };
            let name = format!("{}-{part}", slice.name);
            facts.apply(Event::Slice(event::EndpointSlice { name, endpoints, ..slice }));
        }
    }
    let (of_one, peak) = peak_of(|| resolve::service(&facts, &ServiceName::new("production", "service-0")));
    assert_eq!(of_one.diagnostics.len(), 51, "and the number of the others");
    assert!(peak < 100_000, "{peak} bytes for 51 Diagnostics");
    let ((_, all), peak) = peak_of(|| resolve::all(&facts));
    assert_eq!(all.len(), 1001);
    assert!(peak < 5_000_000, "{peak} bytes for 1,001 Diagnostics");
}

fn a_hundred_thousand_endpoints_fit_in_three_megabytes_and_are_given_back() {
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
    assert!(full < 3_000_000, "{full} bytes");

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
