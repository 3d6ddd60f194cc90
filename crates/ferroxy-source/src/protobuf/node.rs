//! `v1` Node: its zone, addresses, pod CIDRs, and whether it is being removed.

use ferroxy_core::event::Node;

use super::Room;
use super::metadata::Metadata;
use super::reader::{Malformed, Value, fields, text};
use crate::object::Object;
use crate::wire::Decoded;
use crate::wire::node::ZONE;

pub(super) fn read(metadata: &Metadata<'_>, message: &[u8], room: &mut Room) -> Result<Decoded, Malformed> {
    let Some(name) = metadata.name() else { return Ok(Decoded::Nameless) };
    let mut node = Node { name, zone: metadata.label(ZONE), deleting: metadata.deleting, ..Node::default() };
    for field in fields(message) {
        match field? {
            (2, Value::Bytes(it)) => read_spec(it, &mut node, room)?,
            (3, Value::Bytes(it)) => read_status(it, &mut node, room)?,
            _ => {}
        }
    }
    Ok(Decoded::Object(Object::node(node)))
}

fn read_spec(message: &[u8], node: &mut Node, room: &mut Room) -> Result<(), Malformed> {
    let mut single = String::new();
    for field in fields(message) {
        match field? {
            (1, Value::Bytes(it)) => single = text(it),
            (5, Value::Bytes(it)) => room.add(&mut node.taints, taint(it)?)?,
            (7, Value::Bytes(it)) => room.add(&mut node.pod_cidrs, text(it))?,
            _ => {}
        }
    }
    if node.pod_cidrs.is_empty() && !single.is_empty() {
        node.pod_cidrs.push(single);
    }
    Ok(())
}

/// The key of a taint.
fn taint(message: &[u8]) -> Result<String, Malformed> {
    let mut key = String::new();
    for field in fields(message) {
        if let (1, Value::Bytes(it)) = field? {
            key = text(it);
        }
    }
    Ok(key)
}

fn read_status(message: &[u8], node: &mut Node, room: &mut Room) -> Result<(), Malformed> {
    for field in fields(message) {
        if let (5, Value::Bytes(it)) = field? {
            room.add(&mut node.addresses, address(it)?)?;
        }
    }
    Ok(())
}

fn address(message: &[u8]) -> Result<(String, String), Malformed> {
    let mut address = (String::new(), String::new());
    for field in fields(message) {
        match field? {
            (1, Value::Bytes(it)) => address.0 = text(it),
            (2, Value::Bytes(it)) => address.1 = text(it),
            _ => {}
        }
    }
    Ok(address)
}
