//! Measures each writer of rules, from the first sync of a large cluster to cleanup: `cargo bench -p ferroxy-iptables
//! --bench writers -- [services] [endpoints] [builtin|nft|builtin-legacy|legacy]`. Runs in network namespaces of its own,
//! and needs root.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a bench that cannot go on should stop at once"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroxy_core::testing::service;
use ferroxy_core::{Endpoint, Family, Intent, NodeIntent, ServiceIntent};
use ferroxy_dataplane::{Dataplane, Verifies};
use ferroxy_iptables::Iptables;
use ferroxy_iptables::door::Door;
use ferroxy_iptables::tool::{Limits, Tools, Variant};
use ferroxy_lab::Namespace;

const CHANGES: u32 = 10;
const WRITERS: [&str; 4] = ["builtin", "nft", "builtin-legacy", "legacy"];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut numbers = arguments.iter().filter_map(|argument| argument.parse::<u32>().ok());
    let (services, endpoints) = (numbers.next().unwrap_or(1000), numbers.next().unwrap_or(10));
    let intent = cluster(services, endpoints);
    println!("{services} Services x {endpoints} endpoints, IPv4");
    for writer in WRITERS {
        let is_asked_for = arguments.iter().any(|argument| argument == writer);
        let any = arguments.iter().any(|argument| WRITERS.contains(&argument.as_str()));
        if is_asked_for || !any {
            Namespace::new("bench").unwrap().run(|| live(writer, &intent)).unwrap();
        }
    }
}

fn live(writer: &str, intent: &Intent) {
    let open = || {
        let tool = |variant| Door::tool(Tools::find_variant(Family::V4, variant).unwrap());
        let door = match writer {
            "builtin" => Door::nf_tables(Family::V4).unwrap(),
            "builtin-legacy" => Door::legacy(Family::V4).unwrap(),
            "nft" => tool(Variant::NfTables),
            _ => tool(Variant::Legacy),
        };
        Iptables::through(vec![door], Limits { run: Duration::from_secs(3600), ..Limits::default() })
    };
    let mut dataplane = open();
    timed(writer, "first sync", 1, || {
        let receipt = dataplane.start(intent).unwrap().receipt;
        format!("{receipt:?}")
    });
    let (name, full) = intent.services.iter().nth(intent.services.len() / 2).unwrap();
    let mut fewer = ServiceIntent::clone(full);
    fewer.ports[0].cluster.pop();
    let fewer = Arc::new(fewer);
    timed(writer, "one change", CHANGES, || {
        let mut said = String::new();
        for number in 0..CHANGES {
            let wanted = if number % 2 == 0 { &fewer } else { full };
            let outcome = dataplane.change(vec![(name.clone(), Some(wanted.clone()))]).unwrap();
            said = format!("{:?}", outcome.receipt);
        }
        said
    });
    timed(writer, "a Service comes and goes", CHANGES, || {
        let mut said = String::new();
        for number in 0..CHANGES {
            let (name, new) = service(60_000, 0..10);
            let wanted = (number % 2 == 0).then_some(new);
            said = format!("{:?}", dataplane.change(vec![(name, wanted)]).unwrap().receipt);
        }
        said
    });
    timed(writer, "verified", 1, || format!("{:?}", dataplane.verify().unwrap().receipt));
    let mut again = open();
    timed(writer, "restart", 1, || format!("{:?}", again.start(intent).unwrap().receipt));
    timed(writer, "cleanup", 1, || format!("{}", again.cleanup().unwrap().len()));
}

fn timed(writer: &str, what: &str, times: u32, work: impl FnOnce() -> String) {
    let (began, before) = (Instant::now(), cpu());
    let said = work();
    let (wall, after) = (began.elapsed(), cpu());
    let each = |seconds: f64| seconds * 1e3 / f64::from(times);
    let (wall, user, system) = (each(wall.as_secs_f64()), each(after.0 - before.0), each(after.1 - before.1));
    println!("{writer:14} {what:26} {wall:>8.0} ms  CPU: {user:>6.0} own, {system:>6.0} kernel  {said}");
}

/// The user and system CPU seconds of this process and its ended children.
fn cpu() -> (f64, f64) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<f64> =
        stat.rsplit_once(") ").unwrap().1.split(' ').skip(11).take(4).map(|it| it.parse().unwrap()).collect();
    ((fields[0] + fields[2]) / 100.0, (fields[1] + fields[3]) / 100.0)
}

/// Every endpoint has an address of its own.
fn cluster(services: u32, endpoints: u32) -> Intent {
    let service = |number: u32| {
        let (name, service) = service(number as u16, 0..1);
        let mut service = ServiceIntent::clone(&service);
        let endpoint = |slot: u32| Endpoint {
            ip: std::net::Ipv4Addr::from_bits(0x0b00_0000 + number * endpoints + slot).into(),
            port: 8080,
            is_local: false,
        };
        service.ports[0].cluster = (0..endpoints).map(endpoint).collect();
        service.ports[0].size = endpoints;
        (name, Arc::new(service))
    };
    Intent { node: NodeIntent::default(), services: (0..services).map(service).collect() }
}
