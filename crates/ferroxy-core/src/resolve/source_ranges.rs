//! Rule: `loadBalancerSourceRanges` restricts the clients of load-balancer IPs (and of nothing else).

use std::net::IpAddr;

use ipnet::IpNet;

use crate::facts::Service;
use crate::name::Family;

/// `None`: not restricted. In the order of the object, the load-balancer IPs last.
pub(crate) fn allowed(service: &Service, family: Family, node_ip: Option<IpAddr>) -> Option<Vec<IpNet>> {
    let ranges = service.source_ranges.as_deref()?;
    // An invalid restriction must not become no restriction.
    if ranges.is_empty() {
        return Some(Vec::new());
    }
    let is_of_family = |address: IpAddr| Family::of(address) == family;
    let mut allowed: Vec<IpNet> = ranges.iter().copied().filter(|range| is_of_family(range.addr())).collect();
    if allowed.is_empty() || allowed.iter().any(|range| range.prefix_len() == 0) {
        return None;
    }
    // A packet from the node that is looped back by the load balancer has the load-balancer IP as its source.
    if node_ip.is_some_and(|ip| allowed.iter().any(|range| range.contains(&ip))) {
        let own = service.load_balancer_ips.iter().filter(|listed| !listed.value.via_proxy);
        allowed.extend(own.map(|listed| listed.value.ip).filter(|ip| is_of_family(*ip)).map(IpNet::from));
    }
    Some(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event;
    use crate::resolve::tests::read;

    fn check(ranges: &[&str], family: Family, expected: Option<&[&str]>) {
        let service = read(event::Service {
            load_balancer_source_ranges: ranges.iter().map(|range| range.to_string()).collect(),
            ingress: ["203.0.113.10", "fd00:b::10"]
                .map(|ip| event::Ingress { ip: ip.into(), ip_mode: String::new() })
                .into(),
            ..Default::default()
        });
        let node_ip = match family {
            Family::V4 => "172.18.0.2",
            Family::V6 => "fd00:172:18::2",
        };
        let allowed = allowed(&service, family, node_ip.parse().ok());
        let texts: Option<Vec<String>> = allowed.map(|ranges| ranges.iter().map(IpNet::to_string).collect());
        assert_eq!(texts, expected.map(|texts| texts.iter().map(|text| text.to_string()).collect()));
    }

    #[test]
    fn ranges_are_split_by_family() {
        let ranges = [" 10.0.0.0/8", "192.0.2.0/24 ", "fd00:1::/64"];
        check(&ranges, Family::V4, Some(&["10.0.0.0/8", "192.0.2.0/24"]));
        check(&ranges, Family::V6, Some(&["fd00:1::/64"]));
        check(&["192.0.2.0/24", "10.0.0.0/8"], Family::V4, Some(&["192.0.2.0/24", "10.0.0.0/8"]));
        check(&["10.0.0.0/8"], Family::V6, None);
        check(&[], Family::V4, None);
    }

    #[test]
    fn the_whole_address_space_is_no_restriction() {
        check(&["10.0.0.0/8", "0.0.0.0/0"], Family::V4, None);
        check(&["10.0.0.0/8", "::/0"], Family::V4, Some(&["10.0.0.0/8"]));
    }

    #[test]
    fn a_range_with_the_node_lets_the_load_balancer_address_in() {
        check(&["172.18.0.0/16"], Family::V4, Some(&["172.18.0.0/16", "203.0.113.10/32"]));
        check(&["fd00:172:18::/64"], Family::V6, Some(&["fd00:172:18::/64", "fd00:b::10/128"]));
    }

    #[test]
    fn an_unreadable_restriction_lets_nobody_in() {
        check(&["the office"], Family::V4, Some(&[]));
        check(&["the office"], Family::V6, Some(&[]));
    }
}
