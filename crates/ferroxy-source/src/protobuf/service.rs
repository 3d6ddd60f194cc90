//! `v1` Service: the fields that a proxy reads.

use ferroxy_core::event::{Ingress, Service, ServicePort};

use super::Room;
use super::metadata::Metadata;
use super::reader::{Malformed, Value, fields, int32, text};
use crate::object::Object;
use crate::wire::Decoded;
use crate::wire::field::Notes;
use crate::wire::service::PROXY_NAME;

/// Field numbers of `ServiceSpec`, as in Kubernetes' `core/v1/generated.proto`.
mod spec {
    pub(super) const PORTS: u32 = 1;
    pub(super) const CLUSTER_IP: u32 = 3;
    pub(super) const TYPE: u32 = 4;
    pub(super) const EXTERNAL_IPS: u32 = 5;
    pub(super) const SESSION_AFFINITY: u32 = 7;
    pub(super) const LOAD_BALANCER_SOURCE_RANGES: u32 = 9;
    pub(super) const EXTERNAL_TRAFFIC_POLICY: u32 = 11;
    pub(super) const HEALTH_CHECK_NODE_PORT: u32 = 12;
    pub(super) const SESSION_AFFINITY_CONFIG: u32 = 14;
    pub(super) const CLUSTER_IPS: u32 = 18;
    pub(super) const IP_FAMILIES: u32 = 19;
    pub(super) const INTERNAL_TRAFFIC_POLICY: u32 = 22;
}

pub(super) fn read(
    metadata: &Metadata<'_>,
    message: &[u8],
    room: &mut Room,
    notes: &mut Notes,
) -> Result<Decoded, Malformed> {
    let Some(name) = metadata.name() else { return Ok(Decoded::Nameless) };
    let mut service = Service {
        name,
        namespace: metadata.namespace(),
        created: metadata.created(notes),
        proxy_name: metadata.label(PROXY_NAME),
        annotations: metadata.our_annotations(),
        ..Service::default()
    };
    for field in fields(message) {
        match field? {
            (2, Value::Bytes(it)) => read_spec(it, &mut service, room)?,
            (3, Value::Bytes(it)) => read_status(it, &mut service, room)?,
            _ => {}
        }
    }
    Ok(Decoded::Object(Object::service(service)))
}

fn read_spec(message: &[u8], service: &mut Service, room: &mut Room) -> Result<(), Malformed> {
    for field in fields(message) {
        match field? {
            (spec::PORTS, Value::Bytes(it)) => room.add(&mut service.ports, port(it)?)?,
            (spec::CLUSTER_IP, Value::Bytes(it)) => service.cluster_ip = text(it),
            (spec::TYPE, Value::Bytes(it)) => service.kind = text(it),
            (spec::EXTERNAL_IPS, Value::Bytes(it)) => room.add(&mut service.external_ips, text(it))?,
            (spec::SESSION_AFFINITY, Value::Bytes(it)) => service.session_affinity = text(it),
            (spec::LOAD_BALANCER_SOURCE_RANGES, Value::Bytes(it)) => {
                room.add(&mut service.load_balancer_source_ranges, text(it))?;
            }
            (spec::EXTERNAL_TRAFFIC_POLICY, Value::Bytes(it)) => service.external_traffic_policy = text(it),
            (spec::HEALTH_CHECK_NODE_PORT, Value::Number(it)) => service.health_check_node_port = int32(it),
            (spec::SESSION_AFFINITY_CONFIG, Value::Bytes(it)) => {
                service.affinity_timeout_seconds = affinity_timeout(it)?;
            }
            (spec::CLUSTER_IPS, Value::Bytes(it)) => room.add(&mut service.cluster_ips, text(it))?,
            (spec::IP_FAMILIES, Value::Bytes(it)) => room.add(&mut service.ip_families, text(it))?,
            (spec::INTERNAL_TRAFFIC_POLICY, Value::Bytes(it)) => service.internal_traffic_policy = text(it),
            _ => {}
        }
    }
    Ok(())
}

fn port(message: &[u8]) -> Result<ServicePort, Malformed> {
    let mut port = ServicePort::default();
    for field in fields(message) {
        match field? {
            (1, Value::Bytes(it)) => port.name = text(it),
            (2, Value::Bytes(it)) => port.protocol = text(it),
            (3, Value::Number(it)) => port.port = int32(it),
            (4, Value::Bytes(it)) => port.target_port = number_or_name(it)?,
            (5, Value::Number(it)) => port.node_port = int32(it),
            _ => {}
        }
    }
    Ok(port)
}

/// An `IntOrString`: the type says which of the two values counts.
fn number_or_name(message: &[u8]) -> Result<String, Malformed> {
    let (mut is_name, mut number, mut name) = (false, 0, &b""[..]);
    for field in fields(message) {
        match field? {
            (1, Value::Number(it)) => is_name = it == 1,
            (2, Value::Number(it)) => number = int32(it),
            (3, Value::Bytes(it)) => name = it,
            _ => {}
        }
    }
    Ok(if is_name { text(name) } else { number.to_string() })
}

/// `sessionAffinityConfig.clientIP.timeoutSeconds`, each of which may be absent.
fn affinity_timeout(message: &[u8]) -> Result<Option<i64>, Malformed> {
    let mut timeout = None;
    for field in fields(message) {
        let (1, Value::Bytes(client_ip)) = field? else { continue };
        for field in fields(client_ip) {
            if let (1, Value::Number(it)) = field? {
                timeout = Some(int32(it));
            }
        }
    }
    Ok(timeout)
}

fn read_status(message: &[u8], service: &mut Service, room: &mut Room) -> Result<(), Malformed> {
    for field in fields(message) {
        let (1, Value::Bytes(load_balancer)) = field? else { continue };
        for field in fields(load_balancer) {
            if let (1, Value::Bytes(it)) = field? {
                room.add(&mut service.ingress, ingress(it)?)?;
            }
        }
    }
    Ok(())
}

fn ingress(message: &[u8]) -> Result<Ingress, Malformed> {
    let mut ingress = Ingress::default();
    for field in fields(message) {
        match field? {
            (1, Value::Bytes(it)) => ingress.ip = text(it),
            (3, Value::Bytes(it)) => ingress.ip_mode = text(it),
            _ => {}
        }
    }
    Ok(ingress)
}
