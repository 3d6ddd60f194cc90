//! Reads Facts in parts: for callers that need all objects and must not take long at a time.

use std::ops::Bound;

use super::{Facts, Node, ServiceCidr};
use crate::name::ServiceName;

impl Facts {
    pub fn service_count(&self) -> usize {
        self.services.len()
    }

    /// The names that follow this one; all of them for `None`.
    pub fn service_names_after(&self, after: Option<&ServiceName>) -> impl Iterator<Item = &ServiceName> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.services.range::<ServiceName, _>((from, Bound::Unbounded)).map(|(name, _)| name)
    }

    /// How many endpoints the slices of a Service list. Slices beyond the limit are not counted.
    pub fn listed_endpoints(&self, name: &ServiceName) -> usize {
        self.slices_of(name).map(|slice| slice.len()).sum()
    }

    /// All Nodes that are known, by name.
    pub fn nodes(&self) -> impl Iterator<Item = (&str, &Node)> {
        self.nodes.iter().map(|(name, node)| (name.as_str(), node))
    }

    /// All ServiceCIDRs, by name.
    pub fn named_service_cidrs(&self) -> impl Iterator<Item = (&str, &ServiceCidr)> {
        self.service_cidrs.iter().map(|(name, cidr)| (name.as_str(), cidr))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{self, Event};
    use crate::policy::Policy;

    #[test]
    fn names_come_in_parts() {
        let mut facts = Facts::new(Policy::default());
        for name in ["b", "a", "c"] {
            let service =
                event::Service { namespace: "ns".into(), name: name.into(), ..event::Service::default() };
            facts.apply(Event::Service(service));
        }
        let names = |after: Option<&str>| -> String {
            let after = after.map(|name| ServiceName::new("ns", name));
            facts.service_names_after(after.as_ref()).map(ServiceName::name).collect()
        };
        assert_eq!(
            (names(None), names(Some("a")), names(Some("aa"))),
            ("abc".into(), "bc".into(), "bc".into())
        );
        assert_eq!((names(Some("c")), facts.service_count()), (String::new(), 3));
    }
}
