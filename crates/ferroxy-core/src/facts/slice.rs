//! An EndpointSlice as `facts` stores it. Endpoints take most of the memory: nine bytes for an IPv4 endpoint, plus the
//! name of its pod.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use super::field::{self, Faults, Notes, quoted};
use super::interner::{Id, Interner};
use super::names::Names;
use crate::diagnostic::{Cause, Diagnostic, Object};
use crate::event;
use crate::foreign;
use crate::name::{Family, Protocol, ServiceName};

/// The ports and endpoints of one slice.
#[derive(Debug, PartialEq)]
pub struct Slice {
    /// `namespace/name`.
    pub name: Arc<str>,
    /// `None`: the slice belongs to no Service; then no endpoints are stored.
    pub service: Option<ServiceName>,
    /// Sorted by name and protocol; not more than [`MOST_PORTS`].
    pub ports: Box<[SlicePort]>,
    /// How many ports it lists beyond those.
    pub ports_beyond: u32,
    faults: Faults,
    family: Family,
    /// How many endpoints it has.
    len: u32,
    /// For each endpoint its address, its conditions and its place; then the names of their pods, each followed by a newline.
    /// These are only shown to people, so a lookup may be slow. One allocation: most slices have few endpoints.
    endpoints: Box<[u8]>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct SlicePort {
    pub name: Arc<str>,
    pub protocol: Protocol,
    pub port: u16,
}

/// Location and topology hints of an endpoint. Most endpoints of a node share one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Place {
    pub node: Option<Box<str>>,
    pub zone: Option<Box<str>>,
    pub hint_zones: Box<[Box<str>]>,
    pub hint_nodes: Box<[Box<str>]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conditions(u8);

impl Conditions {
    const READY: u8 = 1;
    const SERVING: u8 = 2;
    const TERMINATING: u8 = 4;

    /// Absent conditions count as ready, serving and not terminating.
    pub fn new(ready: Option<bool>, serving: Option<bool>, terminating: Option<bool>) -> Conditions {
        let bit = |set: bool, bit: u8| if set { bit } else { 0 };
        Conditions(
            bit(ready.unwrap_or(true), Conditions::READY)
                | bit(serving.unwrap_or(true), Conditions::SERVING)
                | bit(terminating.unwrap_or(false), Conditions::TERMINATING),
        )
    }

    pub fn ready(self) -> bool {
        self.0 & Conditions::READY != 0
    }

    pub fn serving(self) -> bool {
        self.0 & Conditions::SERVING != 0
    }

    pub fn terminating(self) -> bool {
        self.0 & Conditions::TERMINATING != 0
    }
}

/// The size of an endpoint: address, conditions, place.
fn stride(family: Family) -> usize {
    address_length(family) + 1 + size_of::<u32>()
}

fn address_length(family: Family) -> usize {
    match family {
        Family::V4 => 4,
        Family::V6 => 16,
    }
}

/// The most ports of a slice: as many as the API accepts. More in a list are not read.
pub(crate) const MOST_PORTS: usize = 20_000;

/// Longest port name that the API accepts.
const LONGEST_PORT_NAME: usize = 63;

impl Slice {
    pub(super) fn read(
        name: Arc<str>,
        object: event::EndpointSlice,
        places: &mut Interner<Place>,
        names: &mut Names,
    ) -> Slice {
        let mut notes = Notes::about(Object::slice(&name));
        let service = read_service(&object, &mut notes);
        let family = read_family(&object.address_type, &mut notes);
        let mut reader = Reader::default();
        let (mut ports, mut ports_beyond) = (Box::default(), 0);
        if let (Some(_), Some(family)) = (&service, family) {
            ports_beyond = u32::try_from(object.ports.len().saturating_sub(MOST_PORTS)).unwrap_or(u32::MAX);
            ports = read_ports(object.ports, &mut notes, names);
            reader.read(object.endpoints, family, places, &mut notes);
        }
        Slice {
            name,
            service,
            ports,
            ports_beyond,
            family: family.unwrap_or(Family::V4),
            len: reader.len,
            endpoints: [reader.endpoints.as_slice(), reader.targets.as_bytes()].concat().into(),
            faults: notes.finish().into(),
        }
    }

    /// What is wrong with its fields.
    pub fn diagnostics(&self) -> &[Diagnostic] {
        self.faults.as_slice()
    }

    /// Releases the values that [`Slice::read`] interned.
    pub(super) fn release(self, places: &mut Interner<Place>) {
        for id in (0..self.len()).filter_map(|index| self.place(index)) {
            places.release(id);
        }
    }

    pub fn family(&self) -> Family {
        self.family
    }

    /// The number of a port.
    pub fn port(&self, name: &str, protocol: Protocol) -> Option<u16> {
        let found = self.ports.binary_search_by(|port| (&*port.name, port.protocol).cmp(&(name, protocol)));
        Some(self.ports.get(found.ok()?)?.port)
    }

    /// How many endpoints it has.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn address(&self, index: usize) -> Option<IpAddr> {
        let address = self.endpoint(index)?.get(..address_length(self.family))?;
        match self.family {
            Family::V4 => <[u8; 4]>::try_from(address).ok().map(IpAddr::from),
            Family::V6 => <[u8; 16]>::try_from(address).ok().map(IpAddr::from),
        }
    }

    pub fn conditions(&self, index: usize) -> Option<Conditions> {
        self.endpoint(index)?.get(address_length(self.family)).copied().map(Conditions)
    }

    pub(super) fn place(&self, index: usize) -> Option<Id> {
        self.endpoint(index)?.last_chunk().map(|bytes| Id::from_bytes(*bytes))
    }

    /// The name of the pod of each endpoint; empty if unknown.
    pub fn targets(&self) -> impl Iterator<Item = &str> {
        let targets = self.endpoints.get(self.len() * stride(self.family)..).unwrap_or_default();
        std::str::from_utf8(targets).unwrap_or_default().split_terminator('\n')
    }

    /// The name of the pod; empty if unknown.
    pub fn target(&self, index: usize) -> &str {
        self.targets().nth(index).unwrap_or("")
    }

    /// The bytes of the endpoint with this index.
    fn endpoint(&self, index: usize) -> Option<&[u8]> {
        let stride = stride(self.family);
        (index < self.len()).then(|| self.endpoints.get(index * stride..(index + 1) * stride))?
    }
}

fn read_service(object: &event::EndpointSlice, notes: &mut Notes) -> Option<ServiceName> {
    let label = "metadata.labels[kubernetes.io/service-name]";
    let effect = "its endpoints are not used";
    let Some(service) = object.service.as_deref().filter(|name| !name.is_empty()) else {
        notes.add(label, "the label is missing, so the slice belongs to no Service", effect);
        return None;
    };
    let service = notes.keep(field::name(service, super::identity::LONGEST_NAME), label, effect)?;
    Some(ServiceName::new(&object.namespace, service))
}

fn read_family(text: &str, notes: &mut Notes) -> Option<Family> {
    let read = match text {
        "FQDN" => Err("host names are not supported".to_owned()),
        _ => field::family(text),
    };
    notes.keep(read, "addressType", "its endpoints are not used")
}

fn read_ports(ports: Vec<event::SlicePort>, notes: &mut Notes, names: &mut Names) -> Box<[SlicePort]> {
    let mut seen = HashSet::new();
    let mut kept = Vec::new();
    if ports.len() > MOST_PORTS {
        let reason = format!("there are {} ports, more than {MOST_PORTS}", ports.len());
        notes.add("ports", reason, "the endpoints get no traffic for the last of them");
    }
    for (i, port) in ports.into_iter().take(MOST_PORTS).enumerate() {
        let Some(port) = read_port(i, port, notes, names) else { continue };
        if seen.insert((port.name.clone(), port.protocol)) {
            kept.push(port);
        } else {
            let reason =
                format!("the name {} is already used by another {} port", quoted(&port.name), port.protocol);
            notes.add(format_args!("ports[{i}].name"), reason, "the port is skipped");
        }
    }
    kept.sort_unstable_by(|one, other| (&one.name, one.protocol).cmp(&(&other.name, other.protocol)));
    kept.into()
}

fn read_port(i: usize, port: event::SlicePort, notes: &mut Notes, names: &mut Names) -> Option<SlicePort> {
    let at = |field: &str| format!("ports[{i}].{field}");
    let skipped = "the port is skipped";
    let name = port.name.ok_or_else(|| "the name is missing (an empty string is a valid name)".to_owned());
    let name = notes.keep(name, at("name"), skipped)?;
    notes.keep(field::name(&name, LONGEST_PORT_NAME), at("name"), skipped)?;
    let protocol = notes.keep(field::protocol(&port.protocol), at("protocol"), skipped)?;
    let number = port.port.ok_or_else(|| "the port number is missing".to_owned()).and_then(field::port);
    let port = notes.keep(number, at("port"), skipped)?;
    Some(SlicePort { name: names.share(&name), protocol, port })
}

/// Writes the endpoints of a [`Slice`].
#[derive(Default)]
struct Reader {
    len: u32,
    endpoints: Vec<u8>,
    targets: String,
}

impl Reader {
    fn read(
        &mut self,
        endpoints: Vec<event::SliceEndpoint>,
        family: Family,
        places: &mut Interner<Place>,
        notes: &mut Notes,
    ) {
        self.endpoints.reserve_exact(endpoints.len() * stride(family));
        for (i, endpoint) in endpoints.into_iter().enumerate() {
            let Some(address) = read_address(i, &endpoint.addresses, family, notes) else { continue };
            match address {
                IpAddr::V4(v4) => self.endpoints.extend(v4.octets()),
                IpAddr::V6(v6) => self.endpoints.extend(v6.octets()),
            }
            let conditions = Conditions::new(endpoint.ready, endpoint.serving, endpoint.terminating);
            self.endpoints.push(conditions.0);
            // Without line breaks, as it is printable.
            self.targets.push_str(&foreign::kept(endpoint.target.as_deref().unwrap_or("")));
            self.targets.push('\n');
            note_hints_beyond(i, &endpoint, notes);
            self.endpoints.extend(places.intern(place_of(endpoint)).to_bytes());
            self.len += 1;
        }
    }
}

/// Only the first address is used: by the API, all addresses are the same endpoint.
fn read_address(i: usize, addresses: &[String], family: Family, notes: &mut Notes) -> Option<IpAddr> {
    let effect = "the endpoint is skipped";
    let Some(first) = addresses.first() else {
        notes.add_as(Cause::Endpoint, format_args!("endpoints[{i}].addresses"), "the list is empty", effect);
        return None;
    };
    let right_family = |address: IpAddr| match Family::of(address) == family {
        true => Ok(address),
        false => Err(format!("{address} is not an {family} address, as addressType requires")),
    };
    let read = field::ordinary_address(first).and_then(right_family);
    let field = format_args!("endpoints[{i}].addresses[0]");
    read.map_err(|reason| notes.add_as(Cause::Endpoint, field, reason, effect)).ok()
}

/// The most hints of an endpoint that are kept. The API accepts eight.
const MOST_HINTS: usize = 16;

fn note_hints_beyond(i: usize, endpoint: &event::SliceEndpoint, notes: &mut Notes) {
    for (field, hints) in [("forZones", &endpoint.hint_zones), ("forNodes", &endpoint.hint_nodes)] {
        if hints.len() > MOST_HINTS {
            let reason = format!("there are {} hints, more than {MOST_HINTS}", hints.len());
            let effect = "traffic follows the first of them only";
            notes.add(format_args!("endpoints[{i}].hints.{field}"), reason, effect);
        }
    }
}

fn place_of(endpoint: event::SliceEndpoint) -> Place {
    let some = |text: Option<String>| text.filter(|text| !text.is_empty()).map(|text| foreign::kept(&text));
    let list = |texts: Vec<String>| texts.iter().take(MOST_HINTS).map(|text| foreign::kept(text)).collect();
    Place {
        node: some(endpoint.node_name),
        zone: some(endpoint.zone),
        hint_zones: list(endpoint.hint_zones),
        hint_nodes: list(endpoint.hint_nodes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(object: event::EndpointSlice) -> Slice {
        Slice::read("default/web-1".into(), object, &mut Interner::new(), &mut Names::default())
    }

    fn endpoint(address: &str) -> event::SliceEndpoint {
        event::SliceEndpoint {
            addresses: vec![address.into()],
            target: Some(format!("pod-{address}")),
            ..Default::default()
        }
    }

    fn slice(address_type: &str, endpoints: &[&str]) -> event::EndpointSlice {
        event::EndpointSlice {
            namespace: "default".into(),
            service: Some("web".into()),
            address_type: address_type.into(),
            ports: vec![event::SlicePort { name: Some(String::new()), port: Some(80), ..Default::default() }],
            endpoints: endpoints.iter().map(|address| endpoint(address)).collect(),
            ..Default::default()
        }
    }

    fn fields(slice: &Slice) -> Vec<&str> {
        slice.diagnostics().iter().map(|d| d.field.as_str()).collect()
    }

    #[test]
    fn bad_endpoints_are_skipped_and_the_others_keep_their_names() {
        let slice = read(slice("IPv4", &["10.244.1.5", "10.244.01.6", "fd00::7", "127.0.0.1", "10.244.1.8"]));
        let kept: Vec<_> =
            (0..slice.len()).map(|i| (slice.address(i).unwrap().to_string(), slice.target(i))).collect();
        assert_eq!(kept, [("10.244.1.5".into(), "pod-10.244.1.5"), ("10.244.1.8".into(), "pod-10.244.1.8")]);
        assert_eq!(
            fields(&slice),
            ["endpoints[1].addresses[0]", "endpoints[2].addresses[0]", "endpoints[3].addresses[0]"]
        );
    }

    #[test]
    fn slices_that_cannot_be_used_keep_nothing() {
        let fqdn = read(slice("FQDN", &["example.org"]));
        assert!(fqdn.is_empty() && fqdn.ports.is_empty());
        assert_eq!(fields(&fqdn), ["addressType"]);
        let mut unlabelled = slice("IPv4", &["10.244.1.5"]);
        unlabelled.service = None;
        let unlabelled = read(unlabelled);
        assert!(unlabelled.is_empty());
        assert_eq!(fields(&unlabelled), ["metadata.labels[kubernetes.io/service-name]"]);
    }

    #[test]
    fn bad_ports_are_skipped() {
        let port = |name: Option<&str>, protocol: &str, port| event::SlicePort {
            name: name.map(Into::into),
            protocol: protocol.into(),
            port,
        };
        let mut object = slice("IPv6", &["fd00::5"]);
        object.ports = vec![
            port(Some("a"), "TCP", Some(80)),
            port(None, "TCP", Some(81)),
            port(Some("b"), "TCP", None),
            port(Some("c"), "QUIC", Some(83)),
            port(Some("a"), "TCP", Some(84)),
            port(Some("a"), "UDP", Some(0)),
            port(Some("a"), "UDP", Some(85)),
        ];
        let slice = read(object);
        let kept: Vec<_> = slice.ports.iter().map(|p| p.port).collect();
        assert_eq!(kept, [80, 85]);
        assert_eq!(slice.diagnostics().len(), 5);
        assert_eq!(slice.family(), Family::V6);
    }

    #[test]
    fn ports_beyond_the_limit_are_not_read() {
        let ports = |count: usize| {
            let port = |n: usize| event::SlicePort {
                name: Some(format!("p{n}")),
                port: Some(80),
                ..Default::default()
            };
            event::EndpointSlice { ports: (0..count).map(port).collect(), ..slice("IPv4", &["10.0.0.1"]) }
        };
        let full = read(ports(MOST_PORTS));
        assert_eq!((full.ports.len(), full.ports_beyond, full.diagnostics().len()), (MOST_PORTS, 0, 0));
        let more = read(ports(MOST_PORTS + 3));
        assert_eq!((more.ports.len(), more.ports_beyond), (MOST_PORTS, 3));
        assert_eq!(fields(&more), ["ports"]);
        assert_eq!(more.diagnostics()[0].reason, "there are 20003 ports, more than 20000");
    }

    #[test]
    fn hints_beyond_the_limit_are_ignored_and_noted() {
        let mut places = Interner::new();
        let mut object = slice("IPv4", &["10.0.0.1", "10.0.0.2"]);
        let zones = |count: usize| (0..count).map(|n| format!("zone-{n}")).collect();
        object.endpoints[0].hint_zones = zones(MOST_HINTS);
        object.endpoints[1].hint_zones = zones(MOST_HINTS + 1);
        object.endpoints[1].hint_nodes = zones(40);
        let slice = Slice::read("default/web-1".into(), object, &mut places, &mut Names::default());
        assert_eq!(fields(&slice), ["endpoints[1].hints.forZones", "endpoints[1].hints.forNodes"]);
        assert_eq!(slice.diagnostics()[0].reason, "there are 17 hints, more than 16");
    }

    #[test]
    fn absent_conditions_mean_ready() {
        let absent = Conditions::new(None, None, None);
        assert!(absent.ready() && absent.serving() && !absent.terminating());
        let leaving = Conditions::new(Some(false), Some(true), Some(true));
        assert!(!leaving.ready() && leaving.serving() && leaving.terminating());
    }

    #[test]
    fn release_leaves_nothing_behind() {
        let mut places = Interner::new();
        let read = Slice::read(
            "default/web-1".into(),
            slice("IPv4", &["10.0.0.1", "10.0.0.2"]),
            &mut places,
            &mut Names::default(),
        );
        assert_eq!(places.len(), 1);
        read.release(&mut places);
        assert_eq!(places.len(), 0);
    }
}
