//! Decodes elements as the kernel lists them.

use std::net::IpAddr;

use ferroxy_core::Family;
use ferroxy_netlink::nftables as nl;

use crate::chain::{ChainId, Treatment};
use crate::element::{Element, Key, ServicePort, SetId, Value, address_from};

/// `None` for a key that is longer than our longest one.
pub fn decode(set: SetId, family: Family, element: nl::ElementRef<'_>) -> Option<Element> {
    let key = Key::from_bytes(element.key)?;
    let value = match (element.data, element.key_end) {
        (nl::DataRef::None, None) => Value::Member,
        (nl::DataRef::None, Some(end)) => last_address(end, family).map_or(Value::Foreign, Value::UpTo),
        (nl::DataRef::Verdict(nl::VerdictRef::Goto(chain)), _) => {
            ChainId::parse(chain).map_or(Value::Foreign, Value::Goto)
        }
        (nl::DataRef::Verdict(_), _) => Value::Foreign,
        (nl::DataRef::Value(bytes), _) => match set {
            SetId::Frontends(_) | SetId::LocalFrontends(_) => treatment(bytes),
            SetId::StickyPorts(_) => service_port(bytes),
            _ => endpoint(bytes),
        }
        .unwrap_or(Value::Foreign),
    };
    Some(Element { set, key, value, comment: element.comment.map(Into::into) })
}

fn treatment(bytes: &[u8]) -> Option<Value> {
    Treatment::from_code(u32::from_ne_bytes(bytes.try_into().ok()?)).map(Value::Treatment)
}

fn service_port(bytes: &[u8]) -> Option<Value> {
    let code = u32::from_ne_bytes(bytes.try_into().ok()?);
    let port = ServicePort::from_code(code);
    (port.code() == code).then_some(Value::ServicePort(port))
}

fn endpoint(bytes: &[u8]) -> Option<Value> {
    let (address, port) = bytes.split_at_checked(bytes.len().checked_sub(4)?)?;
    Some(Value::Endpoint(address_from(address)?, u16::from_be_bytes([port[0], port[1]])))
}

fn last_address(key: &[u8], family: Family) -> Option<IpAddr> {
    let width = match family {
        Family::V4 => 4,
        Family::V6 => 16,
    };
    address_from(key.get(key.len().checked_sub(width)?..)?)
}
