//! The cost of a start and of a change, counted and not timed: allocations, memory, operations, bytes, instructions. Fails
//! when a count grows beyond its budget (`budgets.txt`), or when the cost of one change depends on the size of the cluster.
//!
//! `UPDATE_COSTS=1 cargo test --test cost` writes what was counted as the new budgets: say in the commit why they grew.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the functions that tests share are tests too; clippy does not know"
)]

mod budgets;
mod counting;
mod instructions;
mod work;
mod writers;

use ferroxy_lab::api::cluster::Cluster;

use budgets::Costs;
use counting::{Counted, counted};
use work::{Node, Sent, lines_of, moves};

/// So many that one-time costs are negligible beside the cost of each Service.
const SERVICES: usize = 400;
const ENDPOINTS: usize = 10;

/// One test for everything, so that no two tests write the budgets at the same time.
#[test]
fn nothing_costs_more_than_it_did() {
    let mut costs = Costs::read();
    start(&mut costs);
    keep(&mut costs);
    change(&mut costs);
    instructions(&mut costs);
    writers::count(&mut costs);
    costs.judge();
}

fn start(costs: &mut Costs) {
    let lines = lines_of(Cluster::new(SERVICES, ENDPOINTS));
    let each = |count: u64| count / SERVICES as u64;

    let (events, decoding) = counted(|| work::decode(&lines));
    costs.found("decoding a Service and its slice: allocations", each(decoding.allocations));
    costs.found("decoding a Service and its slice: bytes allocated", each(decoding.bytes));

    let (node, starting) = counted(|| Node::start(events));
    costs.found("starting with a Service: allocations", each(starting.allocations));
    costs.found("starting with a Service: bytes allocated", each(starting.bytes));
    costs.found("starting with a Service: bytes sent", each(node.sent().bytes as u64));
    costs.found("starting with any number of Services: messages", node.sent().messages as u64);

    let ((), ending) = counted(|| drop(node));
    costs.found("keeping a Service: bytes", each(ending.freed));
}

/// Uses so many Services that memory is tidied at the end of a start, as in a large cluster.
fn keep(costs: &mut Costs) {
    const MANY: usize = 4000;
    let node = Node::start(work::decode(&lines_of(Cluster::new(MANY, 1))));
    let ((), ending) = counted(|| drop(node));
    let each = ending.given_back / MANY as u64;
    costs.found("keeping one of many Services with one endpoint: bytes of the allocator", each);
}

fn change(costs: &mut Costs) {
    let (sent, counted) = one_change_among(SERVICES);
    costs.found("one endpoint that moves: allocations", counted.allocations);
    costs.found("one endpoint that moves: bytes allocated", counted.bytes);
    costs.found("one endpoint that moves: operations", sent.operations as u64);
    costs.found("one endpoint that moves: messages", sent.messages as u64);
    costs.found("one endpoint that moves: bytes sent", sent.bytes as u64);

    let (few, many) = (one_change_among(20), one_change_among(20 * SERVICES / 4));
    assert_eq!(few, many, "the cost of a change is the size of the change, not that of the cluster");
}

fn one_change_among(services: usize) -> (Sent, Counted) {
    let cluster = Cluster::new(services, ENDPOINTS);
    let mut node = Node::start(work::decode(&lines_of(cluster)));
    let mut moves = moves(cluster, 3).into_iter();
    // The first changes allocate memory that later ones use again.
    for line in moves.by_ref().take(2) {
        node.change(&line);
    }
    let line = moves.next().unwrap();
    counted(|| node.change(&line))
}

/// Counts whole processes. The difference of two counts has no one-time costs, such as reading the files.
fn instructions(costs: &mut Costs) {
    const MOVES: usize = 100;
    if !instructions::can_be_counted() {
        return;
    }
    let few = Cluster::new(SERVICES / 4, ENDPOINTS);
    let many = Cluster::new(SERVICES, ENDPOINTS);
    let idle = instructions::of(few, 0);
    let started = instructions::of(many, 0);
    let each = started.saturating_sub(idle) / (many.services - few.services) as u64;
    costs.found("starting with a Service: instructions", each);

    let among_few = instructions::of(few, MOVES).saturating_sub(idle) / MOVES as u64;
    let among_many = instructions::of(many, MOVES).saturating_sub(started) / MOVES as u64;
    costs.found("one endpoint that moves: instructions", among_many);
    println!("{among_few:>12} the same among {} instead of {} Services", few.services, many.services);
    // Trees are a little deeper.
    assert!(
        among_many * 100 < among_few * 103,
        "a change among {} Services takes {among_few} instructions, among {} it takes {among_many}",
        few.services,
        many.services,
    );
}

#[test]
#[ignore = "run by the other test, under valgrind"]
fn what_is_counted() {
    instructions::work();
}

#[test]
#[ignore = "run by the other test, under valgrind"]
fn what_a_writer_does() {
    writers::work();
}
