//! Rule: the cluster IP of a family is the one at that family's index in `spec.ipFamilies`.

use std::net::IpAddr;

use super::conflicts::diagnostic;
use crate::diagnostic::Diagnostic;
use crate::facts::Service;
use crate::name::Family;

/// At most one of each family, IPv4 first.
pub(crate) fn chosen(service: &Service) -> Vec<IpAddr> {
    Family::ALL.into_iter().filter_map(|family| of(service, family)).collect()
}

pub(crate) fn of(service: &Service, family: Family) -> Option<IpAddr> {
    service.cluster_ips[index_of(service, family)?]
}

/// The index of the family's cluster IP in `spec.clusterIPs`.
pub(crate) fn index_of(service: &Service, family: Family) -> Option<usize> {
    // Objects from before dual-stack have no `ipFamilies`: there the family of the address is used.
    let named = |index: usize| {
        service.ip_families.is_empty() || service.ip_families.get(index) == Some(&Some(family))
    };
    let of_family = |ip: &Option<IpAddr>| ip.is_some_and(|ip| Family::of(ip) == family);
    (0..service.cluster_ips.len()).find(|index| named(*index) && of_family(&service.cluster_ips[*index]))
}

/// Cluster IPs that are not used because of `spec.ipFamilies`.
pub(crate) fn diagnostics(service: &Service) -> Vec<Diagnostic> {
    let chosen = chosen(service);
    let listed = service.cluster_ips.iter().enumerate().filter_map(|(index, ip)| Some((index, (*ip)?)));
    let unused = listed.filter(|(_, ip)| !chosen.contains(ip));
    let words = |(index, ip): (usize, IpAddr)| {
        let family = Family::of(ip);
        let reason = match of(service, family) {
            Some(other) => format!("{ip} is a second {family} cluster IP, after {other}"),
            None => format!("{ip} is an {family} address, but spec.ipFamilies[{index}] is not {family}"),
        };
        diagnostic(
            service,
            format!("spec.clusterIPs[{index}]"),
            reason,
            "the address is not served".to_owned(),
        )
    };
    unused.map(words).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event;
    use crate::resolve::tests::read;

    fn service(ips: &[&str], families: &[&str]) -> Service {
        let strings = |texts: &[&str]| texts.iter().map(|text| text.to_string()).collect();
        read(event::Service {
            cluster_ips: strings(ips),
            ip_families: strings(families),
            ..Default::default()
        })
    }

    fn texts(service: &Service) -> Vec<String> {
        chosen(service).iter().map(IpAddr::to_string).collect()
    }

    #[test]
    fn families_choose_by_index() {
        assert_eq!(texts(&service(&["10.96.0.1", "fd00::1"], &["IPv4", "IPv6"])), ["10.96.0.1", "fd00::1"]);
        assert_eq!(texts(&service(&["fd00::1", "10.96.0.1"], &["IPv6", "IPv4"])), ["10.96.0.1", "fd00::1"]);
        assert_eq!(texts(&service(&["10.96.0.1", "fd00::1"], &["IPv4"])), ["10.96.0.1"]);
    }

    #[test]
    fn without_families_the_address_decides() {
        assert_eq!(texts(&service(&["fd00::1"], &[])), ["fd00::1"]);
        let old = read(event::Service { cluster_ip: "10.96.0.1".into(), ..Default::default() });
        assert_eq!(texts(&old), ["10.96.0.1"]);
    }

    #[test]
    fn an_address_in_the_wrong_place_is_not_served() {
        let crossed = service(&["fd00::1", "10.96.0.1"], &["IPv4", "IPv6"]);
        assert_eq!(texts(&crossed), [""; 0]);
        assert_eq!(diagnostics(&crossed).len(), 2);
        let double = service(&["10.96.0.1", "10.96.0.2"], &["IPv4", "IPv4"]);
        assert_eq!(texts(&double), ["10.96.0.1"]);
        assert_eq!(diagnostics(&double)[0].reason, "10.96.0.2 is a second IPv4 cluster IP, after 10.96.0.1");
    }

    #[test]
    fn an_unreadable_entry_does_not_shift_the_others() {
        assert_eq!(texts(&service(&["oops", "fd00::1"], &["IPv4", "IPv6"])), ["fd00::1"]);
    }
}
