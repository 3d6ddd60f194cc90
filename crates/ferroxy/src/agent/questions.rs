//! Questions to the agent: read-only, answered from its Facts and from what is in force, between two rounds of work.
//!
//! A question does bounded work: it stops after a number of Services, or of endpoints, and says where to go on. The agent's
//! thread does not render or write JSON: the thread that asked does.

use std::net::IpAddr;
use std::sync::Arc;

use ferroxy_core::explain::{Explanation, Standing, brief, explain};
use ferroxy_core::facts::{Service, ServiceKind};
use ferroxy_core::{Diagnostic, NodeIntent, Packet, Protocol, ServiceIntent, ServiceName, resolve};
use tokio::sync::oneshot::Sender;

use super::Agent;
use crate::journal::Sizes;
use crate::packet::Asked;
use crate::view::objects::{self, Known};

/// The most Services that one question looks at.
pub const MOST_SERVICES: usize = 200;

/// About how many endpoints and frontends one question looks at. A larger Service is looked at alone.
const MOST_WORK: usize = 4_096;

/// The most addresses and ports of a Service in a list.
const MOST_LISTED: usize = 20;

#[derive(Debug)]
pub enum Question {
    /// The Services after `after`, at most `limit`.
    Services {
        after: Option<ServiceName>,
        limit: usize,
        reply: Sender<Part<Row>>,
    },
    /// These Services, except unknown ones.
    Named {
        names: Vec<ServiceName>,
        reply: Sender<Part<Row>>,
    },
    Explain {
        name: ServiceName,
        reply: Sender<Box<Explained>>,
    },
    /// The packet that `asked` describes, or the reason why it describes none.
    Packet {
        asked: Asked,
        reply: Sender<Result<Box<Described>, String>>,
    },
    /// The Services in force that may affect a packet, of those after `after`.
    Concerned {
        packet: Packet,
        after: Option<ServiceName>,
        reply: Sender<Part<Arc<ServiceIntent>>>,
    },
    /// All known objects as manifests, and what is in force: for the Services after `after`. The first part includes the
    /// cluster-wide objects and the node.
    Objects {
        after: Option<ServiceName>,
        limit: usize,
        reply: Sender<Part<Known>>,
    },
    /// The addresses of the host; `None` while they are not known.
    HostAddresses {
        reply: Sender<Option<Vec<IpAddr>>>,
    },
}

/// A part of a list.
#[derive(Debug)]
pub struct Part<T> {
    pub items: Vec<T>,
    /// The Service after which the next part begins; `None` at the end.
    pub next: Option<ServiceName>,
}

/// A Service in a list.
#[derive(Debug, PartialEq)]
pub struct Row {
    pub name: ServiceName,
    pub kind: &'static str,
    /// At most `MOST_LISTED`.
    pub addresses: Vec<IpAddr>,
    pub address_count: usize,
    /// At most `MOST_LISTED`: number and protocol.
    pub ports: Vec<(u16, Protocol)>,
    pub port_count: usize,
    pub node_ports: Vec<u16>,
    pub used: usize,
    pub total: usize,
    pub is_probed: bool,
    pub problems: usize,
    pub problem: Option<String>,
    pub state: State,
    /// The reason, if the Service is not handled.
    pub not_handled: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Fine,
    Problem,
    Refused,
    Pending,
    NotHandled,
}

impl State {
    pub fn words(self) -> &'static str {
        match self {
            State::Fine => "ok",
            State::Problem => "problem",
            State::Refused => "refused",
            State::Pending => "pending",
            State::NotHandled => "not handled",
        }
    }
}

/// One Service in detail.
#[derive(Debug)]
pub struct Explained {
    pub explanation: Explanation,
    /// The desired Intent of the Service; `None` if this node needs none.
    pub desired: Option<Arc<ServiceIntent>>,
    pub in_force: InForce,
    /// Features of the Service that the dataplane of this host does not support.
    pub shortcomings: Vec<Diagnostic>,
    pub node: NodeIntent,
    pub host_addresses: Vec<IpAddr>,
}

/// How much of a Service the kernel has acknowledged.
#[derive(Debug, PartialEq, Eq)]
pub enum InForce {
    All,
    /// A change waits to be programmed.
    NotYet,
    /// The kernel refused it, for this reason.
    Refused(String),
}

/// A packet, and what is needed to follow it.
#[derive(Debug)]
pub struct Described {
    pub packet: Packet,
    pub node: NodeIntent,
    pub host_addresses: Vec<IpAddr>,
}

impl Agent {
    pub(super) fn answer(&self, question: Question) {
        match question {
            Question::Services { after, limit, reply } => send(reply, || self.rows(after.as_ref(), limit)),
            Question::Named { names, reply } => send(reply, || self.named(&names)),
            Question::Explain { name, reply } => send(reply, || Box::new(self.explained(&name))),
            Question::Packet { asked, reply } => send(reply, || self.described(&asked).map(Box::new)),
            Question::Concerned { packet, after, reply } => {
                send(reply, || self.concerned(&packet, after.as_ref()));
            }
            Question::Objects { after, limit, reply } => send(reply, || self.objects(after.as_ref(), limit)),
            Question::HostAddresses { reply } => {
                send(reply, || self.facts.host_addresses().map(|it| it.iter().copied().collect()));
            }
        }
    }

    fn named(&self, names: &[ServiceName]) -> Part<Row> {
        let known = |name| self.facts.service(name).map(|service| self.row(service));
        Part { items: names.iter().take(MOST_SERVICES).filter_map(known).collect(), next: None }
    }

    fn rows(&self, after: Option<&ServiceName>, limit: usize) -> Part<Row> {
        let names = self.facts.service_names_after(after);
        let row = |name: &ServiceName| self.facts.service(name).map(|service| self.row(service));
        let size = |name: &ServiceName| 1 + self.facts.listed_endpoints(name);
        part(names, limit.min(MOST_SERVICES), |name, items| {
            items.extend(row(name));
            size(name)
        })
    }

    fn row(&self, service: Service) -> Row {
        let name = service.name.clone();
        let found = brief(&self.facts, &name);
        let in_force = self.dataplane.acknowledged().service(&name);
        let refused = self.status.now().refused.get(&name).cloned();
        let not_handled = if let Standing::NotOurs(why) = &found.standing { Some(why.words()) } else { None };
        let (mut problems, mut problem) = (found.problems, found.problem);
        let state = match () {
            () if not_handled.is_some() => State::NotHandled,
            () if refused.is_some() => State::Refused,
            () if self.queue.has(&name) => State::Pending,
            () if problems > 0 => State::Problem,
            () => State::Fine,
        };
        if let Some(reason) = refused {
            problems += 1;
            problem = Some(format!("The kernel refused the Service: {reason}"));
        }
        let (addresses, ports) = (addresses(&service), ports(&service));
        let largest = |intent: &ServiceIntent| intent.ports.iter().map(|port| port.size as usize).max();
        Row {
            kind: kind(service.kind),
            address_count: addresses.len(),
            addresses: addresses.into_iter().take(MOST_LISTED).collect(),
            port_count: ports.len(),
            ports: ports.into_iter().take(MOST_LISTED).collect(),
            node_ports: service.ports.iter().filter_map(|it| it.node_port).take(MOST_LISTED).collect(),
            used: Sizes::of(in_force.as_deref()).endpoints,
            total: in_force
                .as_deref()
                .and_then(largest)
                .unwrap_or_else(|| self.facts.listed_endpoints(&name)),
            is_probed: found.is_probed,
            problems,
            problem,
            state,
            not_handled,
            name,
        }
    }

    fn explained(&self, name: &ServiceName) -> Explained {
        let desired = resolve::service(&self.facts, name).intent.map(Arc::new);
        let refused = self.status.now().refused.get(name).cloned();
        let in_force = match refused {
            Some(reason) => InForce::Refused(reason),
            None if self.dataplane.acknowledged().service(name) == desired => InForce::All,
            None => InForce::NotYet,
        };
        let shortcomings = desired.as_ref().map(|it| self.dataplane.shortcomings(it)).unwrap_or_default();
        Explained {
            explanation: explain(&self.facts, name),
            desired,
            in_force,
            shortcomings,
            node: self.dataplane.acknowledged().node().clone(),
            host_addresses: resolve::known_addresses(&self.facts).into_iter().collect(),
        }
    }

    fn described(&self, asked: &Asked) -> Result<Described, String> {
        let in_force = self.dataplane.acknowledged();
        let packet = asked.packet(&self.facts, in_force.node(), |name| in_force.service(name));
        Ok(Described {
            packet: packet.map_err(|error| format!("{error:#}"))?,
            node: in_force.node().clone(),
            host_addresses: resolve::known_addresses(&self.facts).into_iter().collect(),
        })
    }

    fn concerned(&self, packet: &Packet, after: Option<&ServiceName>) -> Part<Arc<ServiceIntent>> {
        let mut services = self.dataplane.acknowledged().services_after(after);
        let (mut items, mut work, mut last) = (Vec::new(), 0, None);
        for (name, service) in services.by_ref().take(MOST_SERVICES) {
            work += 1 + size(&service);
            last = Some(name);
            if concerns(&service, packet) {
                items.push(service);
            }
            if work >= MOST_WORK {
                break;
            }
        }
        Part { items, next: last.filter(|_| services.next().is_some()).cloned() }
    }

    fn objects(&self, after: Option<&ServiceName>, limit: usize) -> Part<Known> {
        let acknowledged = self.dataplane.acknowledged();
        // Services that wait to be removed are only in the ledger.
        let names = merged(self.facts.service_names_after(after), acknowledged.names_after(after));
        let mut all = part(names, limit.min(MOST_SERVICES), |name, items| {
            let in_force = acknowledged.service(name);
            // Every listed endpoint becomes JSON here. Intents in force are only unpacked.
            let work = 1 + 4 * self.facts.listed_endpoints(name) + in_force.as_deref().map_or(0, size);
            items.extend(objects::of_service(&self.facts, name).into_iter().map(Known::Object));
            items.extend(in_force.map(Known::Service));
            work
        });
        if after.is_none() {
            let of_cluster = objects::of_cluster(&self.facts).into_iter().map(Known::Object);
            all.items.splice(0..0, of_cluster.chain([Known::Node(Box::new(acknowledged.node().clone()))]));
        }
        all
    }
}

/// Does nothing if the asking thread has stopped waiting.
fn send<T>(reply: Sender<T>, answer: impl FnOnce() -> T) {
    if !reply.is_closed() {
        drop(reply.send(answer()));
    }
}

/// Merges two sorted lists of names into one sorted list without duplicates.
fn merged<'n>(
    one: impl Iterator<Item = &'n ServiceName>,
    other: impl Iterator<Item = &'n ServiceName>,
) -> impl Iterator<Item = &'n ServiceName> {
    let (mut one, mut other) = (one.peekable(), other.peekable());
    std::iter::from_fn(move || match (one.peek(), other.peek()) {
        (Some(a), Some(b)) if a == b => {
            other.next();
            one.next()
        }
        (Some(a), Some(b)) if a > b => other.next(),
        (Some(_), _) => one.next(),
        (None, _) => other.next(),
    })
}

/// Looks at names until there are enough of them, or until the work that `look` reports is enough.
fn part<'n, T>(
    mut names: impl Iterator<Item = &'n ServiceName>,
    limit: usize,
    mut look: impl FnMut(&ServiceName, &mut Vec<T>) -> usize,
) -> Part<T> {
    let (mut items, mut work, mut last) = (Vec::new(), 0, None);
    for name in names.by_ref().take(limit) {
        work += look(name, &mut items);
        last = Some(name);
        if work >= MOST_WORK {
            break;
        }
    }
    let next = last.filter(|_| names.next().is_some()).cloned();
    Part { items, next }
}

/// The number of frontends and endpoints.
fn size(service: &ServiceIntent) -> usize {
    service.ports.iter().map(|it| it.frontends.len() + it.cluster.len() + it.local.len()).sum()
}

/// Whether the Service has the address that the packet goes to, or the node port.
fn concerns(service: &ServiceIntent, packet: &Packet) -> bool {
    let is_meant = |address: IpAddr| address == packet.destination;
    service.cluster_ips.iter().copied().any(is_meant)
        || service.ports.iter().any(|port| {
            let endpoints = port.cluster.iter().chain(&port.local);
            let frontends = &mut port.frontends.iter();
            endpoints.into_iter().any(|endpoint| is_meant(endpoint.ip))
                || frontends.any(|frontend| match frontend.address {
                    Some(address) => is_meant(address),
                    None => frontend.port == packet.port && port.protocol == packet.protocol,
                })
        })
}

fn kind(kind: ServiceKind) -> &'static str {
    match kind {
        ServiceKind::ClusterIp => "ClusterIP",
        ServiceKind::NodePort => "NodePort",
        ServiceKind::LoadBalancer => "LoadBalancer",
        ServiceKind::ExternalName => "ExternalName",
    }
}

fn addresses(service: &Service) -> Vec<IpAddr> {
    let cluster_ips = service.cluster_ips.iter().flatten().copied();
    let external = service.external_ips.iter().map(|listed| listed.value);
    cluster_ips.chain(external).chain(service.load_balancer_ips.iter().map(|it| it.value.ip)).collect()
}

fn ports(service: &Service) -> Vec<(u16, Protocol)> {
    service.ports.iter().map(|port| (port.port, port.protocol)).collect()
}

#[cfg(test)]
mod tests;
