//! Which connections must be translated, written down a second time from the table of the document, and not from the renderer:
//! the oracle decides whether a source address is kept.

mod table;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use ferroxy_core::intent::NodePortAddresses;
use ferroxy_core::{
    Family, Frontend, Intent, Origin, Packet, PortIntent, Protocol, Route, ServiceIntent, Verdict,
};
use ferroxy_dataplane::ChoiceOfEndpoints;
use ferroxy_sockets::Clients;
use ferroxy_sockets::interpret::{Choice, Owner, Socket};

/// A connection, and the verdicts on its packets.
pub struct Question<'a> {
    pub intent: &'a Intent,
    pub choice: ChoiceOfEndpoints,
    pub clients: Clients,
    pub socket: &'a Socket,
    pub packet: &'a Packet,
    pub by_packets: &'a Verdict,
    /// The verdict on packets of [`another_client`].
    pub by_others: &'a Verdict,
    /// Only for the host, at a node port on localhost.
    pub on_localhost: Option<&'a Verdict>,
}

impl Question<'_> {
    /// The endpoints that the programs must choose from; `None` if the programs need not translate the connection.
    pub fn must_reach(&self) -> Option<BTreeSet<SocketAddr>> {
        let role = role(self.socket.owner)?;
        let is_plain = self.socket.protocol == Protocol::Tcp.number() && self.socket.source.is_none();
        if !is_plain || !self.clients.contains(role) {
            return None;
        }
        let frontends = self.frontends();
        let [(service, port, frontend)] = frontends.as_slice() else { return None };
        if !service.annotations.is_empty() || frontend.allowed_sources.is_some() {
            return None;
        }
        let by_scheduler = self.choice == ChoiceOfEndpoints::ByFrontend;
        if by_scheduler && (port.affinity.is_some() || frontend.route == Route::ExternalLocal) {
            return None;
        }
        if self.packet.destination.is_loopback() {
            return self.on_localhost.and_then(endpoints);
        }
        if frontend.address.is_some_and(|address| self.intent.node.host_addresses.contains(&address)) {
            return None;
        }
        self.keeps_the_right_source(role, frontend.route).then(|| endpoints(self.by_packets)).flatten()
    }

    /// All frontends with this address and port. Node ports only if they answer on a list of addresses, or on localhost.
    fn frontends(&self) -> Vec<(&ServiceIntent, &PortIntent, &Frontend)> {
        let Packet { destination, port: number, .. } = *self.packet;
        let family = Family::of(destination);
        let listed = match &self.intent.node.family(family).node_port_addresses {
            NodePortAddresses::These(these) => these.contains(&destination),
            NodePortAddresses::AllLocal => false,
        };
        let answers = listed || is_localhost(destination);
        let mut found = Vec::new();
        for service in self.intent.services.values() {
            for port in service.ports.iter().filter(|it| it.family == family && it.protocol == Protocol::Tcp)
            {
                let here = |it: &&Frontend| it.address.map_or(answers, |address| address == destination);
                let frontends = port.frontends.iter().filter(here).filter(|it| it.port == number);
                found.extend(frontends.map(|frontend| (&**service, port, frontend)));
            }
        }
        found
    }

    /// A socket of the host has the address of the outgoing interface, as if it were masqueraded; a pod's socket has the pod's
    /// address. Uses the verdict on another client, because a client that is the endpoint itself is masqueraded in any case.
    fn keeps_the_right_source(&self, role: Clients, route: Route) -> bool {
        let Verdict::Endpoints(endpoints) = self.by_others else { return false };
        let masqueraded: BTreeSet<bool> = endpoints.values().copied().collect();
        if role == Clients::HOST {
            return masqueraded == BTreeSet::from([true]);
        }
        let node = &self.intent.node;
        // Without a detector, packets of pods go to the endpoints on this node, as packets of clients outside do.
        let is_known = node.family(Family::of(self.packet.destination)).local_detector.is_some();
        let is_kept = !node.masquerade_all && (route != Route::ExternalLocal || is_known);
        is_kept && masqueraded == BTreeSet::from([false])
    }
}

/// The same packet from another client of the same kind, which is not an endpoint.
pub fn another_client(packet: &Packet) -> Packet {
    let source = match (packet.origin == Origin::Host, packet.destination.is_ipv4()) {
        (true, true) => "192.168.7.99",
        (true, false) => "fd00:99::1",
        (false, true) => "10.244.1.250",
        (false, false) => "fd00:10:244:1::fa",
    };
    Packet { source: source.parse().unwrap(), ..packet.clone() }
}

/// Which rule the choices of the programs break, in words: a connection is always or never translated, and if it must be
/// translated, all of the endpoints are possible.
pub fn broken(question: &Question, choices: &BTreeSet<Choice>) -> Option<String> {
    let socket = question.socket;
    if choices.contains(&Choice::Unchanged) && choices.len() > 1 {
        return Some(format!("{socket:?} is translated sometimes: {choices:?}"));
    }
    let wanted: BTreeSet<Choice> = question.must_reach()?.into_iter().map(Choice::Endpoint).collect();
    (*choices != wanted).then(|| format!("{socket:?} has {choices:?} instead of {wanted:?}"))
}

pub fn role(owner: Owner) -> Option<Clients> {
    match owner {
        Owner::Host | Owner::HostNetworkPod => Some(Clients::HOST),
        Owner::Pod => Some(Clients::PODS),
        Owner::Container => None,
    }
}

fn endpoints(verdict: &Verdict) -> Option<BTreeSet<SocketAddr>> {
    match verdict {
        Verdict::Endpoints(endpoints) if !endpoints.is_empty() => Some(endpoints.keys().copied().collect()),
        _ => None,
    }
}

pub fn is_localhost(address: IpAddr) -> bool {
    use std::net::{Ipv4Addr, Ipv6Addr};
    [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)].contains(&address)
}
