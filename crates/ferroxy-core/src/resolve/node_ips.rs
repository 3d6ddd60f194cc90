//! Rule: the address of this node in each family: `bindAddress`, else the Node's first internal, else external one.

use std::net::IpAddr;

use crate::facts::Facts;
use crate::name::Family;

/// IPv4, IPv6. `None` if unknown, or if it is a loopback address, which cannot be the address of a node.
pub(crate) fn node_ips(facts: &Facts) -> [Option<IpAddr>; 2] {
    let all: Vec<IpAddr> = candidates(facts).collect();
    let first = |family| all.iter().copied().find(|ip| Family::of(*ip) == family);
    Family::ALL.map(first).map(|ip| ip.filter(|ip| !ip.is_loopback()))
}

/// The family of `bindAddress`, else of the Node's first address.
pub(crate) fn primary_family(facts: &Facts) -> Option<Family> {
    candidates(facts).next().map(Family::of)
}

fn candidates(facts: &Facts) -> impl Iterator<Item = IpAddr> + '_ {
    let bound = facts.policy().bind_address.filter(|ip| !ip.is_unspecified());
    let listed =
        facts.own_node().into_iter().flat_map(|node| node.internal_ips.iter().chain(&node.external_ips));
    bound.into_iter().chain(listed.copied())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{self, Event};
    use crate::policy::Policy;

    fn check(bind: Option<&str>, addresses: &[(&str, &str)], expected: [Option<&str>; 2]) {
        let bind_address = bind.map(|text| text.parse().unwrap());
        let mut facts = Facts::new(Policy { node_name: "ka".into(), bind_address, ..Policy::default() });
        facts.apply(Event::Node(event::Node {
            name: "ka".into(),
            addresses: addresses.iter().map(|(kind, ip)| (kind.to_string(), ip.to_string())).collect(),
            ..Default::default()
        }));
        assert_eq!(node_ips(&facts), expected.map(|text| text.map(|text| text.parse().unwrap())));
    }

    #[test]
    fn internal_before_external_each_family_alone() {
        check(None, &[("ExternalIP", "192.0.2.1"), ("InternalIP", "172.18.0.2")], [Some("172.18.0.2"), None]);
        let mixed =
            [("InternalIP", "172.18.0.2"), ("ExternalIP", "2001:db8::2"), ("InternalIP", "172.18.0.9")];
        check(None, &mixed, [Some("172.18.0.2"), Some("2001:db8::2")]);
        check(None, &[("Hostname", "172.18.0.2")], [None, None]);
    }

    #[test]
    fn bind_address_overrides_its_family() {
        let addresses = [("InternalIP", "172.18.0.2"), ("InternalIP", "fd00::2")];
        check(Some("172.18.0.7"), &addresses, [Some("172.18.0.7"), Some("fd00::2")]);
        check(Some("0.0.0.0"), &addresses, [Some("172.18.0.2"), Some("fd00::2")]);
        check(Some("127.0.0.1"), &addresses, [None, Some("fd00::2")]);
    }
}
