//! How long the cluster's changes take to reach this kernel: from the moment a pod changed, as its EndpointSlice says,
//! to the moment its Service is programmed here. Time comes in as an argument.

use std::collections::{BTreeSet, HashMap};

use ferroxy_core::{Event, Family, ObjectKind, ServiceName};

/// Changes that are known and not yet programmed. Bounded by the number of Services.
#[derive(Debug)]
pub(super) struct Latency {
    /// Nanoseconds since 1970. Changes before it are not measured.
    began: i64,
    /// Only the oldest change counts, because it has waited longest.
    waiting: HashMap<(ServiceName, Family), i64>,
}

/// The time of a change, as an event reports it.
#[derive(Debug)]
pub(super) enum Timing {
    /// The endpoints of a Service changed, at this time in nanoseconds since 1970.
    Changed(ServiceName, Family, i64),
    /// The Service will not be programmed any more.
    Gone(ServiceName),
    /// No Services exist but these.
    Left(BTreeSet<Box<str>>),
    Unknown,
}

impl Timing {
    pub(super) fn of(event: &Event) -> Timing {
        let slice = match event {
            Event::Slice(slice) => slice,
            Event::ServiceGone { namespace, name } => return Timing::Gone(ServiceName::new(namespace, name)),
            Event::Listed { kind: ObjectKind::Service, names } => return Timing::Left(names.clone()),
            _ => return Timing::Unknown,
        };
        let family = match slice.address_type.as_str() {
            "IPv4" => Family::V4,
            "IPv6" => Family::V6,
            _ => return Timing::Unknown,
        };
        match (slice.last_change, &slice.service) {
            (Some(changed), Some(service)) => {
                Timing::Changed(ServiceName::new(&slice.namespace, service), family, changed)
            }
            _ => Timing::Unknown,
        }
    }
}

impl Latency {
    pub(super) fn new(now: i64) -> Latency {
        Latency { began: now, waiting: HashMap::new() }
    }

    /// An event was received, and the `touched` Services have to be programmed because of it. Latency is measured for no other
    /// Service: a slice can name a Service that does not exist, and a different one in each of its versions.
    pub(super) fn received(&mut self, timing: Timing, touched: &BTreeSet<ServiceName>) {
        match timing {
            Timing::Changed(name, family, changed) if touched.contains(&name) && changed >= self.began => {
                let oldest = self.waiting.entry((name, family)).or_insert(changed);
                *oldest = changed.min(*oldest);
            }
            Timing::Gone(name) => self.forget(&name),
            Timing::Left(names) => self.waiting.retain(|(name, _), _| names.contains(name.as_str())),
            Timing::Changed(..) | Timing::Unknown => {}
        }
    }

    /// A Service is in the kernel. Returns the seconds that it took, for each family with a pending change.
    pub(super) fn programmed(&mut self, name: &ServiceName, now: i64) -> impl Iterator<Item = (Family, f64)> {
        let waited = Family::ALL.map(|family| {
            let changed = self.waiting.remove(&(name.clone(), family))?;
            // Clocks of other machines may be ahead of ours.
            Some((family, now.saturating_sub(changed).max(0) as f64 / 1e9))
        });
        waited.into_iter().flatten()
    }

    /// How many pairs of Service and family have a pending change.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn forget(&mut self, name: &ServiceName) {
        for family in Family::ALL {
            self.waiting.remove(&(name.clone(), family));
        }
    }
}

#[cfg(test)]
mod tests {
    use ferroxy_core::event::EndpointSlice;

    use super::*;

    const SECOND: i64 = 1_000_000_000;

    fn slice(family: &str, last_change: Option<i64>) -> Event {
        Event::Slice(EndpointSlice {
            namespace: "default".into(),
            name: format!("web-{family}"),
            service: Some("web".into()),
            address_type: family.into(),
            last_change,
            ..EndpointSlice::default()
        })
    }

    /// An event that touches the Service `web`.
    fn received(latency: &mut Latency, event: Event) {
        latency.received(Timing::of(&event), &[web()].into());
    }

    fn web() -> ServiceName {
        ServiceName::new("default", "web")
    }

    fn programmed(latency: &mut Latency, now: i64) -> Vec<(Family, f64)> {
        latency.programmed(&web(), now).collect()
    }

    #[test]
    fn the_oldest_change_is_measured_once_for_each_family() {
        let mut latency = Latency::new(SECOND);
        for event in [
            slice("IPv4", Some(4 * SECOND)),
            slice("IPv4", Some(3 * SECOND)),
            slice("IPv6", Some(5 * SECOND)),
        ] {
            received(&mut latency, event);
        }
        assert_eq!(programmed(&mut latency, 6 * SECOND), [(Family::V4, 3.0), (Family::V6, 1.0)]);
        assert_eq!(programmed(&mut latency, 6 * SECOND), []);
    }

    #[test]
    fn what_changed_before_we_began_or_does_not_say_when_is_not_measured() {
        let mut latency = Latency::new(10 * SECOND);
        received(&mut latency, slice("IPv4", Some(9 * SECOND)));
        received(&mut latency, slice("IPv6", None));
        received(&mut latency, slice("FQDN", Some(11 * SECOND)));
        assert_eq!(programmed(&mut latency, 12 * SECOND), []);
    }

    #[test]
    fn a_clock_that_is_ahead_makes_no_negative_time() {
        let mut latency = Latency::new(0);
        received(&mut latency, slice("IPv4", Some(9 * SECOND)));
        assert_eq!(programmed(&mut latency, 8 * SECOND), [(Family::V4, 0.0)]);
    }

    #[test]
    fn a_service_that_is_gone_is_not_measured() {
        let mut latency = Latency::new(0);
        for gone in [
            Event::ServiceGone { namespace: "default".into(), name: "web".into() },
            Event::Listed { kind: ObjectKind::Service, names: ["default/other".into()].into() },
        ] {
            received(&mut latency, slice("IPv4", Some(SECOND)));
            received(&mut latency, gone);
            assert_eq!(programmed(&mut latency, 2 * SECOND), []);
        }
    }

    #[test]
    fn a_service_that_need_not_be_programmed_is_not_waited_for() {
        let mut latency = Latency::new(0);
        let event = slice("IPv4", Some(SECOND));
        latency.received(Timing::of(&event), &BTreeSet::new());
        latency.received(Timing::of(&event), &[ServiceName::new("default", "another")].into());
        assert!(latency.waiting.is_empty(), "{:?}", latency.waiting);
    }
}
