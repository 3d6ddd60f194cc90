//! Nodes and ServiceCIDRs with validated fields. The rules that use them are in `resolve`.

use std::net::IpAddr;

use ipnet::IpNet;

use super::field::{self, Notes};
use crate::diagnostic::{Diagnostic, Object, ObjectKind};
use crate::event;
use crate::foreign;

#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The value of `topology.kubernetes.io/zone`; never empty.
    pub zone: Option<Box<str>>,
    /// In the object's order.
    pub internal_ips: Vec<IpAddr>,
    pub external_ips: Vec<IpAddr>,
    pub pod_cidrs: Vec<IpNet>,
    /// Whether it is being deleted, and the keys of its taints, for `/healthz`.
    pub deleting: bool,
    pub taints: Vec<String>,
    /// The object was deleted; these are its last values.
    pub gone: bool,
    pub diagnostics: Box<[Diagnostic]>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ServiceCidr {
    pub cidrs: Vec<IpNet>,
    pub diagnostics: Box<[Diagnostic]>,
}

impl Node {
    pub(super) fn read(object: event::Node) -> Node {
        let mut notes = Notes::about(Object::node(foreign::kept(&object.name)));
        let mut internal_ips = Vec::new();
        let mut external_ips = Vec::new();
        for (i, (kind, text)) in object.addresses.iter().enumerate() {
            let list = match kind.as_str() {
                "InternalIP" => &mut internal_ips,
                "ExternalIP" => &mut external_ips,
                _ => continue,
            };
            let field = format_args!("status.addresses[{i}].address");
            list.extend(notes.keep(field::address(text), field, "the address is ignored"));
        }
        let read_cidr = |(i, text): (usize, &String)| {
            notes.keep(field::range(text), format_args!("spec.podCIDRs[{i}]"), "the CIDR is ignored")
        };
        Node {
            zone: object.zone.filter(|zone| !zone.is_empty()).map(|zone| foreign::kept(&zone)),
            internal_ips,
            external_ips,
            pod_cidrs: object.pod_cidrs.iter().enumerate().filter_map(read_cidr).collect(),
            deleting: object.deleting,
            taints: object.taints.iter().map(|key| foreign::kept(key).into()).collect(),
            gone: false,
            diagnostics: notes.finish(),
        }
    }
}

impl ServiceCidr {
    pub(super) fn read(object: event::ServiceCidr) -> ServiceCidr {
        let mut notes =
            Notes::about(Object { kind: ObjectKind::ServiceCidr, name: foreign::kept(&object.name).into() });
        // Packets to unused addresses in these CIDRs are dropped: a CIDR of all addresses would stop all traffic.
        let bounded = |cidr: IpNet| match cidr.prefix_len() {
            0 => Err(format!("{cidr} covers all addresses")),
            _ => Ok(cidr),
        };
        let read = |(i, text): (usize, &String)| {
            let field = format_args!("spec.cidrs[{i}]");
            notes.keep(
                field::range(text).and_then(bounded),
                field,
                "the CIDR is ignored, and packets to its unused addresses are not dropped",
            )
        };
        let cidrs = object.cidrs.iter().enumerate().filter_map(read).collect();
        ServiceCidr { cidrs, diagnostics: notes.finish() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_keeps_what_can_be_read() {
        let pair = |kind: &str, text: &str| (kind.to_owned(), text.to_owned());
        let node = Node::read(event::Node {
            name: "ka".into(),
            zone: Some(String::new()),
            addresses: vec![
                pair("Hostname", "ka"),
                pair("ExternalIP", "192.0.2.2"),
                pair("InternalIP", "172.18.000.2"),
                pair("InternalIP", "fd00:172:18::2"),
            ],
            pod_cidrs: vec!["10.244.1.0/24".into(), "ten".into()],
            ..Default::default()
        });
        assert_eq!(node.zone, None);
        assert_eq!(node.internal_ips, ["fd00:172:18::2".parse::<IpAddr>().unwrap()]);
        assert_eq!(node.external_ips, ["192.0.2.2".parse::<IpAddr>().unwrap()]);
        assert_eq!(node.pod_cidrs.len(), 1);
        let fields: Vec<_> = node.diagnostics.iter().map(|d| d.field.as_str()).collect();
        assert_eq!(fields, ["status.addresses[2].address", "spec.podCIDRs[1]"]);
    }

    #[test]
    fn a_service_cidr_cannot_be_everything() {
        let cidrs = vec!["0.0.0.0/0".into(), "10.96.0.0/16".into(), "::/0".into()];
        let read = ServiceCidr::read(event::ServiceCidr { name: "all".into(), cidrs });
        assert_eq!(read.cidrs, ["10.96.0.0/16".parse::<IpNet>().unwrap()]);
        assert_eq!(read.diagnostics.len(), 2);
    }
}
