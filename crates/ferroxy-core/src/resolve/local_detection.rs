//! Rule: how a packet is known to come from a pod, for one family (`detectLocalMode`).

use ipnet::IpNet;

use crate::diagnostic::{Cause, Diagnostic, Object};
use crate::facts::Facts;
use crate::intent::LocalDetector;
use crate::name::Family;
use crate::policy::DetectLocal;

/// `None`: nothing says so for this family; then nobody is taken for a pod, and nobody for a stranger.
pub(crate) fn detector(
    facts: &Facts,
    family: Family,
    diagnostics: &mut Vec<Diagnostic>,
) -> Option<LocalDetector> {
    match &facts.policy().detect_local {
        DetectLocal::ClusterCidr(ranges) => first(ranges, family),
        DetectLocal::NodeCidr => {
            let ranges = facts.own_node().map(|node| node.pod_cidrs.as_slice()).unwrap_or_default();
            if ranges.is_empty() {
                diagnostics.push(no_pod_cidrs(facts));
            }
            first(ranges, family)
        }
        DetectLocal::BridgeInterface(name) => Some(LocalDetector::Interface(name.clone())),
        DetectLocal::InterfaceNamePrefix(prefix) => Some(LocalDetector::InterfacePrefix(prefix.clone())),
    }
}

/// Only the first range of a family counts, as in the original.
fn first(ranges: &[IpNet], family: Family) -> Option<LocalDetector> {
    let range = ranges.iter().find(|range| Family::of(range.addr()) == family)?;
    Some(LocalDetector::SourceIn(range.trunc()))
}

fn no_pod_cidrs(facts: &Facts) -> Diagnostic {
    Diagnostic {
        object: Object::node(&facts.policy().node_name),
        field: "spec.podCIDRs".to_owned(),
        reason: "detectLocalMode is NodeCIDR, but the Node has no usable pod CIDR".to_owned(),
        effect: "traffic from outside to cluster IPs is not masqueraded".to_owned(),
        cause: Cause::Field,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{self, Event};
    use crate::policy::Policy;

    fn check(
        detect_local: DetectLocal,
        pod_cidrs: &[&str],
        v4: Option<LocalDetector>,
        v6: Option<LocalDetector>,
    ) {
        let mut facts = Facts::new(Policy { node_name: "ka".into(), detect_local, ..Policy::default() });
        facts.apply(Event::Node(event::Node {
            name: "ka".into(),
            pod_cidrs: pod_cidrs.iter().map(|text| text.to_string()).collect(),
            ..Default::default()
        }));
        let mut diagnostics = Vec::new();
        assert_eq!(detector(&facts, Family::V4, &mut diagnostics), v4);
        assert_eq!(detector(&facts, Family::V6, &mut diagnostics), v6);
        let node_cidr = facts.policy().detect_local == DetectLocal::NodeCidr;
        assert_eq!(diagnostics.is_empty(), !(node_cidr && pod_cidrs.is_empty()));
    }

    fn source(text: &str) -> Option<LocalDetector> {
        Some(LocalDetector::SourceIn(text.parse().unwrap()))
    }

    #[test]
    fn the_first_range_of_each_family() {
        let ranges = ["10.1.0.0/16", "10.2.0.0/16", "fd00:1::/56"];
        let cluster = DetectLocal::ClusterCidr(ranges.map(|text| text.parse().unwrap()).into());
        check(cluster, &[], source("10.1.0.0/16"), source("fd00:1::/56"));
        check(DetectLocal::ClusterCidr(vec![]), &[], None, None);
        check(DetectLocal::NodeCidr, &["fd00:1::/64"], None, source("fd00:1::/64"));
        check(DetectLocal::NodeCidr, &[], None, None);
    }

    #[test]
    fn interfaces_know_no_family() {
        let bridge = LocalDetector::Interface("cbr0".into());
        check(DetectLocal::BridgeInterface("cbr0".into()), &[], Some(bridge.clone()), Some(bridge));
        let prefix = LocalDetector::InterfacePrefix("veth".into());
        check(DetectLocal::InterfaceNamePrefix("veth".into()), &[], Some(prefix.clone()), Some(prefix));
    }
}
