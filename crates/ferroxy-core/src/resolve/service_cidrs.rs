//! Rule: the CIDRs of cluster IPs are the union of all ServiceCIDR objects.

use ipnet::IpNet;

use crate::facts::Facts;
use crate::name::Family;

/// Sorted, without overlaps, adjacent CIDRs merged.
pub(crate) fn merged(facts: &Facts, family: Family) -> Vec<IpNet> {
    let all = facts.service_cidrs().flat_map(|object| &object.cidrs);
    let of_family: Vec<IpNet> = all.filter(|cidr| Family::of(cidr.addr()) == family).copied().collect();
    let mut merged = IpNet::aggregate(&of_family);
    merged.sort();
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{self, Event};
    use crate::policy::Policy;

    #[test]
    fn objects_are_joined() {
        let mut facts = Facts::new(Policy::default());
        let objects: [(&str, &[&str]); 3] = [
            ("b", &["10.97.0.0/16", "fd00:10:96::/112"]),
            ("a", &["10.96.0.0/16", "10.96.5.0/24"]),
            ("c", &["10.50.0.0/24"]),
        ];
        for (name, cidrs) in objects {
            let cidrs = cidrs.iter().map(|text| text.to_string()).collect();
            facts.apply(Event::ServiceCidr(event::ServiceCidr { name: name.into(), cidrs }));
        }
        let texts = |family| merged(&facts, family).iter().map(IpNet::to_string).collect::<Vec<_>>();
        assert_eq!(texts(Family::V4), ["10.50.0.0/24", "10.96.0.0/15"]);
        assert_eq!(texts(Family::V6), ["fd00:10:96::/112"]);
    }
}
