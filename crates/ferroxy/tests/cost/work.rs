//! The measured work: a cluster, and one change, from the API server's lines through the agent to the bytes for the kernel.
//! Everything except sockets. Counts nothing.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ferroxy::agent::{Agent, Input, Periods, inbox};
use ferroxy::serve::Status;
use ferroxy_core::{Event, Facts, Family, Intent, NodeIntent, Policy};
use ferroxy_dataplane::{Acknowledged, Change, Dataplane, Failure, Outcome, Preview, Receipt};
use ferroxy_lab::api::cluster::Cluster;
use ferroxy_nftables::encode::encode;
use ferroxy_nftables::ledger::Ledger;
use ferroxy_nftables::{MODE, Plan, Settings, TABLE};
use ferroxy_source::{Kind, kube};

/// A line of a watch, and the kind of object that the watch is for.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    pub kind: Kind,
    pub text: String,
}

/// The amount that would be sent to the kernel.
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

/// Moves of endpoints, each of another Service as long as there are enough Services.
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

/// An agent without a kernel.
pub struct Node {
    agent: Agent,
    sent: Arc<Mutex<Sent>>,
}

impl Node {
    pub fn start(events: Vec<Event>) -> Node {
        let mut facts = Facts::new(Policy::default());
        events.into_iter().for_each(|event| drop(facts.apply(event)));
        let sent = Arc::default();
        let encoder = Encoder { ledger: Ledger::default(), sent: Arc::clone(&sent) };
        let status = Arc::new(Status::new(&Family::ALL, Duration::from_secs(30)));
        let mut agent = Agent::new(&MODE, facts, Box::new(encoder), Periods::default(), status);
        assert_eq!(agent.start(&inbox().1), None, "no input asks it to stop");
        Node { agent, sent }
    }

    /// The amount sent by the last call of the dataplane.
    pub fn sent(&self) -> Sent {
        *self.sent.lock().unwrap()
    }

    pub fn change(&mut self, line: &Line) -> Sent {
        self.agent.handle([Input::Events(vec![line.read()])]);
        self.sent()
    }
}

/// nftables mode up to the socket.
#[derive(Debug)]
struct Encoder {
    ledger: Ledger,
    sent: Arc<Mutex<Sent>>,
}

impl Encoder {
    fn program(&mut self, changes: Vec<Change>, with: Plan) -> Outcome {
        let (mut plan, settlement) = self.ledger.plan(&changes);
        plan.changes.extend(with.changes);
        let plan = plan.at_once();
        let batch = encode(&plan.changes, TABLE);
        self.ledger.settle(settlement);
        let (operations, messages, bytes) = (plan.len(), batch.messages(), batch.bytes());
        *self.sent.lock().unwrap() = Sent { operations, messages, bytes };
        Outcome { receipt: Receipt { commits: 1, messages, bytes }, operations, ..Outcome::default() }
    }
}

impl Dataplane for Encoder {
    fn start(&mut self, intent: &Intent) -> Result<Outcome, Failure> {
        self.ledger = Ledger::new(&Family::ALL, intent.node.clone(), Settings::default());
        let program = self.ledger.plan_program();
        let services = intent.services.iter().map(|(name, service)| (name.clone(), Some(service.clone())));
        Ok(self.program(services.collect(), program))
    }

    fn change(&mut self, changes: Vec<Change>) -> Result<Outcome, Failure> {
        Ok(self.program(changes, Plan::default()))
    }

    fn change_node(&mut self, _: NodeIntent) -> Result<Outcome, Failure> {
        Err(Failure::unsupported("the node does not change here"))
    }

    fn acknowledged(&self) -> &Acknowledged {
        self.ledger.acknowledged()
    }

    fn preview(&mut self, _: &Intent) -> Result<Preview, Failure> {
        Err(Failure::unsupported("there is no kernel"))
    }

    fn cleanup(&mut self) -> Result<Vec<String>, Failure> {
        Err(Failure::unsupported("there is no kernel"))
    }
}
