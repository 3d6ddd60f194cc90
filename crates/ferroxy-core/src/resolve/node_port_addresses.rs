//! Rule: on which addresses of the host node ports answer (`nodePortAddresses`), for one family.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::node_ips;
use crate::diagnostic::{Cause, Diagnostic, Object};
use crate::facts::{Facts, field};
use crate::intent::NodePortAddresses;
use crate::name::Family;
use crate::policy::NodePortAddress;

pub(crate) fn addresses(
    facts: &Facts,
    family: Family,
    diagnostics: &mut Vec<Diagnostic>,
) -> NodePortAddresses {
    let ranges = ranges(facts, family);
    // A family without an entry in the list is not restricted, nor is one with an entry for all addresses.
    if ranges.is_empty() || ranges.iter().any(|range| range.prefix_len() == 0) {
        return NodePortAddresses::AllLocal;
    }
    let matches = |ip: &IpAddr| ranges.iter().any(|range| range.contains(ip));
    let these: BTreeSet<IpAddr> = known(facts)
        .into_iter()
        .filter(|ip| can_answer(*ip, on_localhost(facts, family)))
        .filter(matches)
        .collect();
    if these.is_empty() && !ranges.iter().all(|range| range.addr().is_loopback()) {
        let ranges: Vec<String> = ranges.iter().map(IpNet::to_string).collect();
        diagnostics.push(Diagnostic {
            object: Object::node(&facts.policy().node_name),
            field: "nodePortAddresses".to_owned(),
            reason: format!("this host has no {family} address in {}", ranges.join(", ")),
            effect: format!("{family} node ports are not reachable"),
            cause: Cause::Field,
        });
    }
    NodePortAddresses::These(these)
}

/// Whether node ports answer at this address, as far as the addresses of the host are known.
pub(crate) fn answer_at(facts: &Facts, ip: IpAddr) -> bool {
    let family = Family::of(ip);
    let ranges = ranges(facts, family);
    let matches = ranges.is_empty() || ranges.iter().any(|range| range.contains(&ip));
    matches && can_answer(ip, on_localhost(facts, family)) && is_known(facts, ip)
}

/// Whether node ports also answer on loopback addresses: if configured, and not excluded by the CIDRs.
/// Not for IPv6: ::1 cannot be routed away from the host.
pub(crate) fn on_localhost(facts: &Facts, family: Family) -> bool {
    let includes_loopback =
        |range: &IpNet| range.addr().is_loopback() || range.contains(&IpAddr::V4(Ipv4Addr::LOCALHOST));
    let ranges = ranges(facts, family);
    family == Family::V4
        && facts.policy().node_ports_on_loopback
        && (ranges.is_empty() || ranges.iter().any(includes_loopback))
}

/// Whether a proxy serves node ports on the loopback address: if configured, and a range of loopback addresses contains
/// it. A range of all addresses is not enough: the original leaves loopback out there in nftables mode.
pub(crate) fn listens_on_localhost(facts: &Facts, family: Family) -> bool {
    let localhost: IpAddr = match family {
        Family::V4 => Ipv4Addr::LOCALHOST.into(),
        Family::V6 => Ipv6Addr::LOCALHOST.into(),
    };
    let names_it = |range: &IpNet| range.addr().is_loopback() && range.contains(&localhost);
    facts.policy().listen_on_loopback && ranges(facts, family).iter().any(names_it)
}

fn ranges(facts: &Facts, family: Family) -> Vec<IpNet> {
    let listed = &facts.policy().node_port_addresses;
    listed.iter().filter_map(|entry| range(facts, *entry, family)).collect()
}

/// The CIDR of an entry in this family, if it has one.
fn range(facts: &Facts, entry: NodePortAddress, family: Family) -> Option<IpNet> {
    match entry {
        NodePortAddress::Primary => node_ips(facts)[family as usize].map(IpNet::from),
        NodePortAddress::Localhost => Some(match family {
            Family::V4 => IpNet::from(Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8)),
            Family::V6 => IpNet::from(IpAddr::V6(Ipv6Addr::LOCALHOST)),
        }),
        NodePortAddress::All => Some(match family {
            Family::V4 => IpNet::from(Ipv4Net::default()),
            Family::V6 => IpNet::from(Ipv6Net::default()),
        }),
        NodePortAddress::Cidr(range) => (Family::of(range.addr()) == family).then_some(range),
    }
}

/// The known addresses of this host; those of the Node object if the host was not inspected.
pub fn known(facts: &Facts) -> BTreeSet<IpAddr> {
    if let Some(addresses) = facts.host_addresses() {
        return addresses.clone();
    }
    let node = facts.own_node();
    let listed = node.into_iter().flat_map(|node| node.internal_ips.iter().chain(&node.external_ips));
    listed.copied().chain(node_ips(facts).into_iter().flatten()).collect()
}

fn is_known(facts: &Facts, ip: IpAddr) -> bool {
    match facts.host_addresses() {
        Some(addresses) => addresses.contains(&ip),
        None => known(facts).contains(&ip),
    }
}

/// A link-local IPv6 address is different on every link, and loopback traffic cannot leave the host (unless
/// configured, see `on_localhost`).
fn can_answer(ip: IpAddr, on_localhost: bool) -> bool {
    !((ip.is_loopback() && !on_localhost)
        || ip.is_unspecified()
        || (ip.is_ipv6() && field::is_link_local(ip)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{self, Event};
    use crate::policy::Policy;

    const HOST: [&str; 7] =
        ["127.0.0.1", "::1", "172.18.0.2", "10.244.1.1", "fd00:172:18::2", "fe80::1", "192.168.7.2"];

    fn facts(entries: &[NodePortAddress], node_ips: &[&str], host: Option<&[&str]>) -> Facts {
        let mut facts = Facts::new(Policy {
            node_name: "ka".into(),
            node_port_addresses: entries.to_vec(),
            ..Policy::default()
        });
        facts.apply(Event::Node(event::Node {
            name: "ka".into(),
            addresses: node_ips.iter().map(|ip| ("InternalIP".into(), ip.to_string())).collect(),
            ..Default::default()
        }));
        if let Some(host) = host {
            facts.apply(Event::HostAddresses(host.iter().map(|ip| ip.parse().unwrap()).collect()));
        }
        facts
    }

    fn these(texts: &[&str]) -> NodePortAddresses {
        NodePortAddresses::These(texts.iter().map(|text| text.parse().unwrap()).collect())
    }

    fn check(facts: &Facts, v4: NodePortAddresses, v6: NodePortAddresses) -> Vec<Diagnostic> {
        let mut diagnostics = Vec::new();
        assert_eq!(addresses(facts, Family::V4, &mut diagnostics), v4);
        assert_eq!(addresses(facts, Family::V6, &mut diagnostics), v6);
        diagnostics
    }

    fn cidr(text: &str) -> NodePortAddress {
        NodePortAddress::Cidr(text.parse().unwrap())
    }

    const BOTH: [&str; 2] = ["172.18.0.2", "fd00:172:18::2"];

    #[test]
    fn primary_is_the_node_ip() {
        let primary = [NodePortAddress::Primary];
        check(&facts(&primary, &BOTH, Some(&HOST)), these(&["172.18.0.2"]), these(&["fd00:172:18::2"]));
        check(&facts(&primary, &BOTH, None), these(&["172.18.0.2"]), these(&["fd00:172:18::2"]));
    }

    #[test]
    fn a_family_without_ranges_is_not_restricted() {
        let host = Some(&HOST[..]);
        check(
            &facts(&[cidr("172.18.0.0/16")], &BOTH, host),
            these(&["172.18.0.2"]),
            NodePortAddresses::AllLocal,
        );
        check(
            &facts(&[NodePortAddress::Primary], &["172.18.0.2"], host),
            these(&["172.18.0.2"]),
            NodePortAddresses::AllLocal,
        );
    }

    #[test]
    fn everything_beats_all_other_entries() {
        for zero in [NodePortAddress::All, cidr("0.0.0.0/0")] {
            let facts = facts(&[cidr("172.18.0.0/16"), zero, cidr("fd00::/8")], &BOTH, Some(&HOST));
            let mut diagnostics = Vec::new();
            assert_eq!(addresses(&facts, Family::V4, &mut diagnostics), NodePortAddresses::AllLocal);
        }
    }

    #[test]
    fn ranges_pick_host_addresses_but_never_loopback_or_link_local() {
        let wide =
            [cidr("128.0.0.0/1"), cidr("127.0.0.0/8"), cidr("fe80::/10"), cidr("fd00::/8"), cidr("::1/128")];
        let facts = facts(&wide, &BOTH, Some(&HOST));
        check(&facts, these(&["172.18.0.2", "192.168.7.2"]), these(&["fd00:172:18::2"]));
    }

    #[test]
    fn localhost_alone_leaves_no_address_and_that_is_as_asked() {
        let facts = facts(&[NodePortAddress::Localhost], &BOTH, Some(&HOST));
        assert_eq!(check(&facts, these(&[]), these(&[])), []);
    }

    #[test]
    fn loopback_answers_only_where_that_is_asked_for_and_in_a_range() {
        let check = |entries: &[NodePortAddress], expected: bool| {
            let mut policy = facts(entries, &BOTH, None).policy().clone();
            assert!(!on_localhost(&Facts::new(policy.clone()), Family::V4), "not asked for");
            policy.node_ports_on_loopback = true;
            let facts = Facts::new(policy);
            assert_eq!(on_localhost(&facts, Family::V4), expected, "{entries:?}");
            assert!(!on_localhost(&facts, Family::V6));
        };
        check(&[NodePortAddress::All], true);
        check(&[cidr("fd00::/8")], true);
        check(&[cidr("127.0.0.53/32")], true);
        check(&[cidr("64.0.0.0/2")], true);
        check(&[cidr("172.18.0.0/16")], false);

        let mut policy = facts(&[NodePortAddress::Localhost], &BOTH, None).policy().clone();
        policy.node_ports_on_loopback = true;
        let mut facts = Facts::new(policy);
        facts.apply(Event::HostAddresses(HOST.iter().map(|ip| ip.parse().unwrap()).collect()));
        let mut diagnostics = Vec::new();
        assert_eq!(addresses(&facts, Family::V4, &mut diagnostics), these(&["127.0.0.1"]));
    }

    #[test]
    fn a_proxy_listens_on_loopback_only_where_that_is_asked_for_and_in_a_range() {
        let check = |entries: &[NodePortAddress], expected: [bool; 2]| {
            let mut policy = facts(entries, &BOTH, None).policy().clone();
            assert!(!listens_on_localhost(&Facts::new(policy.clone()), Family::V4), "not asked for");
            policy.listen_on_loopback = true;
            let facts = Facts::new(policy);
            assert_eq!(
                Family::ALL.map(|family| listens_on_localhost(&facts, family)),
                expected,
                "{entries:?}"
            );
            assert!(!on_localhost(&facts, Family::V4), "packets are another matter");
        };
        check(&[NodePortAddress::All], [false, false]);
        check(&[NodePortAddress::Primary, NodePortAddress::Localhost], [true, true]);
        check(&[NodePortAddress::Primary], [false, false]);
        check(&[cidr("172.18.0.0/16"), cidr("::1/128")], [false, true]);
        check(&[cidr("127.0.0.0/8")], [true, false]);
        check(&[cidr("0.0.0.0/0"), cidr("127.0.0.53/32")], [false, false]);
    }

    #[test]
    fn ranges_without_an_address_are_reported() {
        let facts = facts(&[cidr("192.0.2.0/24"), NodePortAddress::All], &BOTH, Some(&HOST));
        assert_eq!(check(&facts, NodePortAddresses::AllLocal, NodePortAddresses::AllLocal), []);
        let facts = self::facts(&[cidr("192.0.2.0/24")], &BOTH, Some(&HOST));
        let diagnostics = check(&facts, these(&[]), NodePortAddresses::AllLocal);
        assert_eq!(diagnostics[0].reason, "this host has no IPv4 address in 192.0.2.0/24");
    }
}
