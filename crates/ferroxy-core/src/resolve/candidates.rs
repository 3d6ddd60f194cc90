//! Rule: which endpoints belong to a Service port: those of all its slices that have a port of the same name and
//! protocol, each address and port once.

use std::net::SocketAddr;

use crate::facts::{Conditions, Facts, Place, Service, ServicePort, Slice};
use crate::intent::Endpoint;
use crate::name::Family;

#[derive(Debug, Default)]
pub(crate) struct Candidates<'f> {
    /// Sorted by `ip:port` as text, as in kube-proxy; each `ip:port` once.
    pub(crate) usable: Vec<Candidate<'f>>,
    /// Further entries with an address and port that `usable` already contains.
    pub(crate) duplicates: Vec<Candidate<'f>>,
    /// How many endpoints are left out because there are too many, see `limits.rs`.
    pub(crate) beyond: usize,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate<'f> {
    pub(crate) endpoint: Endpoint,
    pub(crate) conditions: Conditions,
    pub(crate) place: &'f Place,
    pub(crate) slice: Slice<'f>,
    /// Index into the slice's endpoints.
    pub(crate) index: usize,
}

impl Candidate<'_> {
    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::new(self.endpoint.ip, self.endpoint.port)
    }
}

/// `size`: how many endpoints the slices list for the port.
pub(crate) fn find<'f>(
    facts: &'f Facts,
    service: &Service,
    port: &ServicePort,
    family: Family,
    size: usize,
) -> Candidates<'f> {
    let limit = facts.policy().limits.endpoints_of_port();
    let mut found = Candidates { beyond: size.saturating_sub(limit), ..Candidates::default() };
    let each = || {
        let slices = facts.slices_of(&service.name).filter(|slice| size > 0 && slice.family() == family);
        let slices = slices.filter_map(|slice| Some((slice, slice.port(&port.name, port.protocol)?)));
        slices.flat_map(|(slice, number)| endpoints(facts, slice, number))
    };
    let mut all: Vec<Candidate<'f>> = if found.beyond == 0 {
        each().collect()
    } else {
        // Unready endpoints only if there is room for them. Nothing beyond the limit is collected: all entries may be
        // very many.
        let is_ready = |candidate: &Candidate<'f>| candidate.conditions.ready();
        each().filter(is_ready).chain(each().filter(|it| !is_ready(it))).take(limit).collect()
    };
    // Of two entries for one address and port, one that is not terminating wins, then one that is ready (slices are
    // updated one after the other when a pod moves between them), then the first slice by name.
    all.sort_by_cached_key(|candidate| {
        (AsText::of(candidate.address()), candidate.conditions.terminating(), !candidate.conditions.ready())
    });
    for candidate in all {
        match found.usable.last() {
            Some(last) if last.address() == candidate.address() => found.duplicates.push(candidate),
            _ => found.usable.push(candidate),
        }
    }
    found
}

fn endpoints<'f>(facts: &'f Facts, slice: Slice<'f>, port: u16) -> impl Iterator<Item = Candidate<'f>> {
    (0..slice.len()).filter_map(move |index| {
        let place = facts.place(&slice, index)?;
        let is_local = place.node.as_deref() == Some(facts.policy().node_name.as_str());
        Some(Candidate {
            endpoint: Endpoint { ip: slice.address(index)?, port, is_local },
            conditions: slice.conditions(index)?,
            place,
            slice,
            index,
        })
    })
}

/// Sorts as the text of an address does, but without an allocation for IPv4: every change of a Service sorts all its
/// endpoints.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum AsText {
    /// Four bits for each of at most 21 characters, the first one in the highest bits. The codes are in the order of
    /// ASCII: no character, `.`, the digits, `:`.
    V4(u128),
    /// After IPv4, because the text begins with a bracket.
    V6(String),
}

impl AsText {
    fn of(address: SocketAddr) -> AsText {
        let SocketAddr::V4(v4) = address else { return AsText::V6(address.to_string()) };
        let (mut text, mut room) = (0, u128::BITS);
        let mut put = |character: u16| {
            room -= 4;
            text |= u128::from(character) << room;
        };
        let [a, b, c, d] = v4.ip().octets().map(u16::from);
        for (number, separator) in [(a, 1), (b, 1), (c, 1), (d, 12), (v4.port(), 0)] {
            let units = [10_000, 1_000, 100, 10, 1].into_iter().skip_while(|unit| *unit > number.max(1));
            units.for_each(|unit| put(number / unit % 10 + 2));
            put(separator);
        }
        AsText::V4(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{EndpointSlice, Event, SliceEndpoint, SlicePort};
    use crate::policy::Policy;
    use crate::resolve::tests::read;
    use crate::{Protocol, event};

    fn slice(name: &str, ports: &[(&str, &str, i64)], endpoints: Vec<SliceEndpoint>) -> Event {
        let port = |(name, protocol, port): &(&str, &str, i64)| SlicePort {
            name: Some(name.to_string()),
            protocol: protocol.to_string(),
            port: Some(*port),
        };
        Event::Slice(EndpointSlice {
            namespace: "default".into(),
            name: name.into(),
            service: Some("web".into()),
            address_type: "IPv4".into(),
            ports: ports.iter().map(port).collect(),
            endpoints,
            last_change: None,
        })
    }

    fn endpoint(address: &str) -> SliceEndpoint {
        SliceEndpoint { addresses: vec![address.into()], ..Default::default() }
    }

    fn leaving(address: &str) -> SliceEndpoint {
        SliceEndpoint { ready: Some(false), terminating: Some(true), ..endpoint(address) }
    }

    fn candidates_of(events: Vec<Event>, name: &str) -> (Vec<String>, usize) {
        let mut facts = Facts::new(Policy { node_name: "ka".into(), ..Policy::default() });
        for event in events {
            facts.apply(event);
        }
        let service = read(event::Service { cluster_ip: "10.96.0.1".into(), ..Default::default() });
        let port = ServicePort {
            name: name.into(),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: None,
            target_port: "".into(),
            index: 0,
        };
        let found = find(&facts, &service, &port, Family::V4, usize::from(u8::MAX));
        let text = |c: &Candidate| {
            format!("{}{}", c.address(), if c.conditions.terminating() { " leaving" } else { "" })
        };
        (found.usable.iter().map(text).collect(), found.duplicates.len())
    }

    #[test]
    fn slices_may_map_the_port_differently() {
        let events = vec![
            slice("web-1", &[("http", "TCP", 8080)], vec![endpoint("10.0.0.1")]),
            slice("web-2", &[("http", "TCP", 9090), ("http", "UDP", 53)], vec![endpoint("10.0.0.1")]),
            slice("web-3", &[("web", "TCP", 80)], vec![endpoint("10.0.0.2")]),
            slice("web-4", &[("http", "UDP", 80)], vec![endpoint("10.0.0.3")]),
        ];
        assert_eq!(candidates_of(events, "http"), (vec!["10.0.0.1:8080".into(), "10.0.0.1:9090".into()], 0));
    }

    #[test]
    fn endpoints_sort_as_text() {
        let addresses = ["10.0.0.9", "10.0.0.10", "10.0.0.1"].map(endpoint).to_vec();
        let events = vec![slice("web-1", &[("", "", 80)], addresses)];
        assert_eq!(candidates_of(events, "").0, ["10.0.0.10:80", "10.0.0.1:80", "10.0.0.9:80"]);
    }

    #[test]
    fn addresses_sort_as_their_text_does() {
        let octets = [0, 1, 2, 9, 10, 11, 19, 20, 99, 100, 110, 199, 200, 255];
        let ports = [0, 1, 9, 10, 80, 99, 100, 808, 8080, 9999, 10_000, 65_535];
        let last = octets.iter().map(|octet| [10, 0, 0, *octet]);
        let first = octets.iter().map(|octet| [*octet, 0, 0, 1]);
        let v4 = last.chain(first).flat_map(|ip| ports.map(|port| SocketAddr::from((ip, port))));
        let v6 = ["[::1]:80", "[2001:db8::1]:443"].map(|text| text.parse().unwrap());
        let all: Vec<SocketAddr> = v4.chain(v6).collect();
        for one in &all {
            for other in &all {
                let by_text = one.to_string().cmp(&other.to_string());
                assert_eq!(AsText::of(*one).cmp(&AsText::of(*other)), by_text, "{one} {other}");
            }
        }
    }

    #[test]
    fn of_duplicates_the_one_that_stays_counts() {
        for order in [["web-1", "web-2"], ["web-2", "web-1"]] {
            let events = vec![
                slice(order[0], &[("", "", 80)], vec![leaving("10.0.0.1")]),
                slice(order[1], &[("", "", 80)], vec![endpoint("10.0.0.1"), endpoint("10.0.0.1")]),
            ];
            assert_eq!(candidates_of(events, ""), (vec!["10.0.0.1:80".into()], 2));
        }
    }
}
