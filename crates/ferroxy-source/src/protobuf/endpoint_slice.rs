//! `discovery.k8s.io/v1` EndpointSlice: the fields that a proxy reads.

use ferroxy_core::event::{EndpointSlice, SliceEndpoint, SlicePort};

use super::Room;
use super::metadata::Metadata;
use super::reader::{Malformed, Value, fields, int32, text};
use crate::object::{Key, Kind, Object};
use crate::wire::Decoded;
use crate::wire::endpoint_slice::{HEADLESS, SERVICE_NAME};
use crate::wire::field::Notes;

pub(super) fn read(
    metadata: &Metadata<'_>,
    message: &[u8],
    room: &mut Room,
    notes: &mut Notes,
) -> Result<Decoded, Malformed> {
    let Some(name) = metadata.name() else { return Ok(Decoded::Nameless) };
    let namespace = metadata.namespace();
    if metadata.label(HEADLESS).is_some() {
        return Ok(Decoded::LeftOut(Key { kind: Kind::Slice, namespace, name }));
    }
    let mut slice = EndpointSlice {
        name,
        namespace,
        service: metadata.label(SERVICE_NAME),
        last_change: metadata.last_change(notes),
        ..EndpointSlice::default()
    };
    for field in fields(message) {
        match field? {
            (2, Value::Bytes(it)) => {
                let endpoint = endpoint(it, room)?;
                room.add(&mut slice.endpoints, endpoint)?;
            }
            (3, Value::Bytes(it)) => room.add(&mut slice.ports, port(it)?)?,
            (4, Value::Bytes(it)) => slice.address_type = text(it),
            _ => {}
        }
    }
    Ok(Decoded::Object(Object::slice(slice)))
}

fn port(message: &[u8]) -> Result<SlicePort, Malformed> {
    let mut port = SlicePort::default();
    for field in fields(message) {
        match field? {
            (1, Value::Bytes(it)) => port.name = Some(text(it)),
            (2, Value::Bytes(it)) => port.protocol = text(it),
            (3, Value::Number(it)) => port.port = Some(int32(it)),
            _ => {}
        }
    }
    Ok(port)
}

fn endpoint(message: &[u8], room: &mut Room) -> Result<SliceEndpoint, Malformed> {
    let mut endpoint = SliceEndpoint::default();
    for field in fields(message) {
        match field? {
            (1, Value::Bytes(it)) => room.add(&mut endpoint.addresses, text(it))?,
            (2, Value::Bytes(it)) => read_conditions(it, &mut endpoint)?,
            (4, Value::Bytes(it)) => endpoint.target = target(it)?,
            (6, Value::Bytes(it)) => endpoint.node_name = Some(text(it)),
            (7, Value::Bytes(it)) => endpoint.zone = Some(text(it)),
            (8, Value::Bytes(it)) => read_hints(it, &mut endpoint, room)?,
            _ => {}
        }
    }
    Ok(endpoint)
}

fn read_conditions(message: &[u8], endpoint: &mut SliceEndpoint) -> Result<(), Malformed> {
    for field in fields(message) {
        match field? {
            (1, Value::Number(it)) => endpoint.ready = Some(it != 0),
            (2, Value::Number(it)) => endpoint.serving = Some(it != 0),
            (3, Value::Number(it)) => endpoint.terminating = Some(it != 0),
            _ => {}
        }
    }
    Ok(())
}

/// `targetRef.name`. JSON omits an empty one.
fn target(message: &[u8]) -> Result<Option<String>, Malformed> {
    let mut name = None;
    for field in fields(message) {
        if let (3, Value::Bytes(it)) = field? {
            name = (!it.is_empty()).then(|| text(it));
        }
    }
    Ok(name)
}

fn read_hints(message: &[u8], endpoint: &mut SliceEndpoint, room: &mut Room) -> Result<(), Malformed> {
    for field in fields(message) {
        match field? {
            (1, Value::Bytes(it)) => room.add(&mut endpoint.hint_zones, name(it)?)?,
            (2, Value::Bytes(it)) => room.add(&mut endpoint.hint_nodes, name(it)?)?,
            _ => {}
        }
    }
    Ok(())
}

/// The name in a `ForZone` or a `ForNode`.
fn name(message: &[u8]) -> Result<String, Malformed> {
    let mut name = String::new();
    for field in fields(message) {
        if let (1, Value::Bytes(it)) = field? {
            name = text(it);
        }
    }
    Ok(name)
}
