//! `networking.k8s.io/v1` ServiceCIDR: the ranges cluster IPs come from.

use ferroxy_core::event::ServiceCidr;

use super::Room;
use super::metadata::Metadata;
use super::reader::{Malformed, Value, fields, text};
use crate::object::Object;
use crate::wire::Decoded;

pub(super) fn read(metadata: &Metadata<'_>, message: &[u8], room: &mut Room) -> Result<Decoded, Malformed> {
    let Some(name) = metadata.name() else { return Ok(Decoded::Nameless) };
    let mut cidr = ServiceCidr { name, ..ServiceCidr::default() };
    for field in fields(message) {
        let (2, Value::Bytes(spec)) = field? else { continue };
        for field in fields(spec) {
            if let (1, Value::Bytes(it)) = field? {
                room.add(&mut cidr.cidrs, text(it))?;
            }
        }
    }
    Ok(Decoded::Object(Object::service_cidr(cidr)))
}
