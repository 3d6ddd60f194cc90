//! The cost of writing rules in iptables mode, in both variants: allocations of a start and of a change, and instructions. With the
//! real kernel, in network namespaces of their own. Needs root.

use std::sync::Arc;

use ferroxy_core::testing::service;
use ferroxy_core::{Family, Intent, NodeIntent, ServiceIntent};
use ferroxy_dataplane::Dataplane;
use ferroxy_iptables::Iptables;
use ferroxy_iptables::door::Door;
use ferroxy_iptables::tool::{Limits, Variant};
use ferroxy_lab::{Capability, Namespace, require};

use crate::budgets::Costs;
use crate::counting::counted;
use crate::instructions;
use crate::{ENDPOINTS, SERVICES};

/// Names the variant, the number of Services and the number of changes, for the process that valgrind runs.
const WORK: &str = "FERROXY_COST_WRITER";

/// The names of the counts of a variant.
struct Names {
    variant: Variant,
    word: &'static str,
    start: [&'static str; 3],
    change: [&'static str; 3],
}

const NAMES: [Names; 2] = [
    Names {
        variant: Variant::NfTables,
        word: "nft",
        start: [
            "iptables mode (nft), starting with a Service: allocations",
            "iptables mode (nft), starting with a Service: bytes allocated",
            "iptables mode (nft), starting with a Service: instructions",
        ],
        change: [
            "iptables mode (nft), one endpoint that moves: allocations",
            "iptables mode (nft), one endpoint that moves: bytes allocated",
            "iptables mode (nft), one endpoint that moves: instructions",
        ],
    },
    Names {
        variant: Variant::Legacy,
        word: "legacy",
        start: [
            "iptables mode (legacy), starting with a Service: allocations",
            "iptables mode (legacy), starting with a Service: bytes allocated",
            "iptables mode (legacy), starting with a Service: instructions",
        ],
        change: [
            "iptables mode (legacy), one endpoint that moves: allocations",
            "iptables mode (legacy), one endpoint that moves: bytes allocated for each Service",
            "iptables mode (legacy), one endpoint that moves: instructions for each Service",
        ],
    },
];

pub fn count(costs: &mut Costs) {
    if !require(&[Capability::NetworkNamespaces, Capability::NfTables]) {
        return;
    }
    for names in &NAMES {
        Namespace::new("cost").unwrap().run(|| allocations(costs, names)).unwrap();
        if instructions::can_be_counted() {
            count_instructions(costs, names);
        }
    }
}

/// A legacy table is replaced as a whole, so the cost of a change grows with the table.
fn shared_by(names: &Names) -> u64 {
    if names.variant == Variant::Legacy { SERVICES as u64 } else { 1 }
}

fn allocations(costs: &mut Costs, names: &Names) {
    let intent = cluster(SERVICES);
    let mut dataplane = open(names.variant);
    let (_, starting) = counted(|| dataplane.start(&intent).unwrap());
    costs.found(names.start[0], starting.allocations / SERVICES as u64);
    costs.found(names.start[1], starting.bytes / SERVICES as u64);
    // The first changes allocate memory that later ones use again.
    let mut last = None;
    for number in 0..4 {
        last = Some(counted(|| change(&mut dataplane, &intent, number)).1);
    }
    let changing = last.unwrap();
    costs.found(names.change[0], changing.allocations);
    costs.found(names.change[1], changing.bytes / shared_by(names));
}

fn count_instructions(costs: &mut Costs, names: &Names) {
    const CHANGES: usize = 20;
    let run = |services: usize, changes: usize| {
        let work = format!("{} {services} {changes}", names.word);
        let namespace = Namespace::new("cost").unwrap();
        namespace.run(|| instructions::of_test("what_a_writer_does", WORK, work.as_ref())).unwrap()
    };
    let (few, many) = (run(SERVICES / 4, 0), run(SERVICES, 0));
    costs.found(names.start[2], many.saturating_sub(few) / (SERVICES - SERVICES / 4) as u64);
    let changed = run(SERVICES, CHANGES).saturating_sub(many) / CHANGES as u64;
    costs.found(names.change[2], changed / shared_by(names));
}

/// The work that valgrind runs.
pub fn work() {
    let work = std::env::var(WORK).expect("what to do");
    let words: Vec<&str> = work.split(' ').collect();
    let names = NAMES.iter().find(|names| names.word == words[0]).unwrap();
    let intent = cluster(words[1].parse().unwrap());
    let mut dataplane = open(names.variant);
    dataplane.start(&intent).unwrap();
    for number in 0..words[2].parse().unwrap() {
        change(&mut dataplane, &intent, number);
    }
    // Dropping it is not part of the work.
    std::mem::forget((dataplane, intent));
}

fn open(variant: Variant) -> Iptables {
    let door = match variant {
        Variant::NfTables => Door::nf_tables(Family::V4),
        Variant::Legacy => Door::legacy(Family::V4),
    };
    Iptables::through(vec![door.unwrap()], Limits::default())
}

fn cluster(services: usize) -> Intent {
    let services = (0..services as u16).map(|number| service(number, 0..ENDPOINTS as u16));
    Intent { node: NodeIntent::default(), services: services.collect() }
}

/// Removes an endpoint of a Service, or adds it again.
fn change(dataplane: &mut Iptables, intent: &Intent, number: usize) {
    let (name, full) = intent.services.iter().nth(intent.services.len() / 2).unwrap();
    let mut wanted = Arc::clone(full);
    if number.is_multiple_of(2) {
        let mut fewer = ServiceIntent::clone(full);
        fewer.ports[0].cluster.pop();
        wanted = Arc::new(fewer);
    }
    let outcome = dataplane.change(vec![(name.clone(), Some(wanted))]).unwrap();
    assert!(outcome.operations > 0 && outcome.refused.is_empty());
}
