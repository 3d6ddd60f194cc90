//! What is measured: the way of a cluster, and of one change, from the API server's lines to the bytes for the kernel.
//! Everything but sockets. Counts nothing.

use ferroxy_core::{Event, Facts, Family, Policy, resolve};
use ferroxy_lab::api::cluster::Cluster;
use ferroxy_nftables::apply::encode;
use ferroxy_nftables::ledger::{Change, Ledger};
use ferroxy_nftables::{Plan, TABLE};
use ferroxy_source::{Kind, kube};

/// A line of a watch, and of which.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    pub kind: Kind,
    pub text: String,
}

/// What goes to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sent {
    pub operations: usize,
    pub messages: usize,
    pub bytes: usize,
}

pub fn lines_of(cluster: Cluster) -> Vec<Line> {
    let each = |index| {
        let service = Line::new(Kind::Service, &cluster.service(index));
        let slices = cluster.slices(index).into_iter().map(|slice| Line::new(Kind::Slice, &slice));
        std::iter::once(service).chain(slices)
    };
    (0..cluster.services).flat_map(each).collect()
}

/// Endpoints that move, each of another Service as far as there are any.
pub fn moves(cluster: Cluster, number: usize) -> Vec<Line> {
    let moved = |round| cluster.moved(round % cluster.services, round % cluster.endpoints, round);
    (0..number).map(|round| Line::new(Kind::Slice, &moved(round))).collect()
}

pub fn decode(lines: &[Line]) -> Vec<Event> {
    lines.iter().map(Line::read).collect()
}

impl Line {
    fn new(kind: Kind, object: &str) -> Line {
        Line { kind, text: format!("{{\"type\":\"MODIFIED\",\"object\":{object}}}") }
    }

    fn read(&self) -> Event {
        kube::event_of(self.kind, self.text.as_bytes()).expect("a change of an object")
    }
}

/// What an agent knows.
pub struct Node {
    facts: Facts,
    ledger: Ledger,
    /// At the start.
    pub sent: Sent,
}

impl Node {
    pub fn start(events: Vec<Event>) -> Node {
        let mut facts = Facts::new(Policy::default());
        events.into_iter().for_each(|event| drop(facts.apply(event)));
        let (intent, _) = resolve::all(&facts);
        let ledger = Ledger::new(&Family::ALL, intent.node);
        let program = ledger.plan_program();
        let mut node = Node { facts, ledger, sent: Sent::default() };
        let services = intent.services.into_iter().map(|(name, service)| (name, Some(service)));
        node.sent = node.program(services.collect(), program);
        node
    }

    pub fn change(&mut self, line: &Line) -> Sent {
        let touched = self.facts.apply(line.read());
        let resolve = |name| {
            let intent = resolve::service(&self.facts, &name).intent;
            (name, intent.map(Into::into))
        };
        let changes = touched.services.into_iter().map(resolve).collect();
        self.program(changes, Plan::default())
    }

    fn program(&mut self, changes: Vec<Change>, with: Plan) -> Sent {
        let (mut plan, settlement) = self.ledger.plan(&changes);
        plan.changes.extend(with.changes);
        let plan = plan.at_once();
        let batch = encode(&plan.changes, TABLE);
        self.ledger.settle(settlement);
        Sent { operations: plan.len(), messages: batch.messages(), bytes: batch.bytes() }
    }
}
