//! Reads the fields of an EndpointSlice.

use std::collections::HashSet;
use std::net::IpAddr;

use super::{Conditions, Contents, PackedSlice, Place, SlicePort, Stored};
use crate::diagnostic::{Cause, Diagnostic, Object};
use crate::event;
use crate::facts::field::{self, Notes, quoted};
use crate::facts::identity::LONGEST_NAME;
use crate::facts::interner::Interner;
use crate::foreign;
use crate::name::{Family, ServiceName};

/// The most ports of a slice: as many as the API accepts. Further ports are not read.
pub(crate) const MOST_PORTS: usize = 20_000;

/// Longest port name that the API accepts.
const LONGEST_PORT_NAME: usize = 63;

/// Returns the Service and the packed slice, if the slice belongs to a Service; and what is wrong with its fields.
pub(in crate::facts) fn read(
    name: &str,
    object: event::EndpointSlice,
    places: &mut Interner<Place>,
    lists_of_ports: &mut Interner<Box<[SlicePort]>>,
) -> (Option<(ServiceName, PackedSlice)>, Box<[Diagnostic]>) {
    let mut notes = Notes::about(Object::slice(name));
    let service = read_service(&object, &mut notes);
    let family = read_family(&object.address_type, &mut notes);
    let Some(service) = service else { return (None, notes.finish()) };
    let (mut ports, mut ports_beyond, mut endpoints) = (Box::default(), 0, Vec::new());
    if let Some(family) = family {
        ports_beyond = u32::try_from(object.ports.len().saturating_sub(MOST_PORTS)).unwrap_or(u32::MAX);
        ports = read_ports(object.ports, &mut notes);
        endpoints = read_endpoints(object.endpoints, family, places, &mut notes);
    }
    let faults = notes.finish();
    let packed = PackedSlice::new(&Contents {
        name,
        service: &service,
        family: family.unwrap_or(Family::V4),
        ports: lists_of_ports.intern(ports),
        ports_beyond,
        endpoints: &endpoints,
        has_faults: !faults.is_empty(),
    });
    (Some((service, packed)), faults)
}

fn read_service(object: &event::EndpointSlice, notes: &mut Notes) -> Option<ServiceName> {
    let label = "metadata.labels[kubernetes.io/service-name]";
    let effect = "its endpoints are not used";
    let Some(service) = object.service.as_deref().filter(|name| !name.is_empty()) else {
        notes.add(label, "the label is missing, so the slice belongs to no Service", effect);
        return None;
    };
    let service = notes.keep(field::name(service, LONGEST_NAME), label, effect)?;
    Some(ServiceName::new(&object.namespace, service))
}

fn read_family(text: &str, notes: &mut Notes) -> Option<Family> {
    let read = match text {
        "FQDN" => Err("host names are not supported".to_owned()),
        _ => field::family(text),
    };
    notes.keep(read, "addressType", "its endpoints are not used")
}

fn read_ports(ports: Vec<event::SlicePort>, notes: &mut Notes) -> Box<[SlicePort]> {
    let mut seen = HashSet::new();
    let mut kept = Vec::new();
    if ports.len() > MOST_PORTS {
        let reason = format!("there are {} ports, more than {MOST_PORTS}", ports.len());
        notes.add("ports", reason, "the ports beyond that are ignored");
    }
    for (i, port) in ports.into_iter().take(MOST_PORTS).enumerate() {
        let Some(port) = read_port(i, port, notes) else { continue };
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

fn read_port(i: usize, port: event::SlicePort, notes: &mut Notes) -> Option<SlicePort> {
    let at = |field: &str| format!("ports[{i}].{field}");
    let skipped = "the port is skipped";
    let name = port.name.ok_or_else(|| "the name is missing (an empty string is a valid name)".to_owned());
    let name = notes.keep(name, at("name"), skipped)?;
    notes.keep(field::name(&name, LONGEST_PORT_NAME), at("name"), skipped)?;
    let protocol = notes.keep(field::protocol(&port.protocol), at("protocol"), skipped)?;
    let number = port.port.ok_or_else(|| "the port number is missing".to_owned()).and_then(field::port);
    let port = notes.keep(number, at("port"), skipped)?;
    Some(SlicePort { name: name.into(), protocol, port })
}

fn read_endpoints(
    endpoints: Vec<event::SliceEndpoint>,
    family: Family,
    places: &mut Interner<Place>,
    notes: &mut Notes,
) -> Vec<Stored> {
    let mut kept = Vec::with_capacity(endpoints.len());
    for (i, mut endpoint) in endpoints.into_iter().enumerate() {
        let Some(address) = read_address(i, &endpoint.addresses, family, notes) else { continue };
        note_hints_beyond(i, &endpoint, notes);
        kept.push(Stored {
            address,
            conditions: Conditions::new(endpoint.ready, endpoint.serving, endpoint.terminating),
            target: endpoint.target.take().map(foreign::kept_whole).unwrap_or_default(),
            place: places.intern(place_of(endpoint)),
        });
    }
    kept
}

/// Only the first address is used: according to the API, all addresses of an entry are the same endpoint.
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
pub(super) const MOST_HINTS: usize = 16;

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
    let some = |text: Option<String>| text.filter(|text| !text.is_empty()).map(foreign::kept_whole);
    let list = |texts: Vec<String>| texts.into_iter().take(MOST_HINTS).map(foreign::kept_whole).collect();
    Place {
        node: some(endpoint.node_name),
        zone: some(endpoint.zone),
        hint_zones: list(endpoint.hint_zones),
        hint_nodes: list(endpoint.hint_nodes),
    }
}
