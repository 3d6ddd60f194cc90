//! How long the cluster's changes take to reach this kernel: from the moment a pod changed, as its EndpointSlice says,
//! to the moment its Service is programmed here. Time comes in as an argument.

use std::collections::HashMap;

use ferroxy_core::{Event, Family, ServiceName};

/// Changes that are known and not yet programmed.
#[derive(Debug)]
pub(super) struct Latency {
    /// Nanoseconds since 1970. What changed before is not ours to answer for.
    began: i64,
    /// Only the oldest counts: that is the longest wait.
    waiting: HashMap<(ServiceName, Family), i64>,
}

impl Latency {
    pub(super) fn new(now: i64) -> Latency {
        Latency { began: now, waiting: HashMap::new() }
    }

    pub(super) fn received(&mut self, event: &Event) {
        let slice = match event {
            Event::Slice(slice) => slice,
            // It will not be programmed any more.
            Event::ServiceGone { namespace, name } => return self.forget(&ServiceName::new(namespace, name)),
            _ => return,
        };
        let (Some(changed), Some(service)) = (slice.last_change, &slice.service) else { return };
        let family = match slice.address_type.as_str() {
            "IPv4" => Family::V4,
            "IPv6" => Family::V6,
            _ => return,
        };
        if changed >= self.began {
            let name = ServiceName::new(&slice.namespace, service);
            let oldest = self.waiting.entry((name, family)).or_insert(changed);
            *oldest = changed.min(*oldest);
        }
    }

    /// A Service is in the kernel: how many seconds that took, for each family that waited.
    pub(super) fn programmed(&mut self, name: &ServiceName, now: i64) -> impl Iterator<Item = (Family, f64)> {
        let waited = Family::ALL.map(|family| {
            let changed = self.waiting.remove(&(name.clone(), family))?;
            // Clocks of other machines may be ahead of ours.
            Some((family, now.saturating_sub(changed).max(0) as f64 / 1e9))
        });
        waited.into_iter().flatten()
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

    fn programmed(latency: &mut Latency, now: i64) -> Vec<(Family, f64)> {
        latency.programmed(&ServiceName::new("default", "web"), now).collect()
    }

    #[test]
    fn the_oldest_change_is_measured_once_for_each_family() {
        let mut latency = Latency::new(SECOND);
        for event in [
            slice("IPv4", Some(4 * SECOND)),
            slice("IPv4", Some(3 * SECOND)),
            slice("IPv6", Some(5 * SECOND)),
        ] {
            latency.received(&event);
        }
        assert_eq!(programmed(&mut latency, 6 * SECOND), [(Family::V4, 3.0), (Family::V6, 1.0)]);
        assert_eq!(programmed(&mut latency, 6 * SECOND), []);
    }

    #[test]
    fn what_changed_before_we_began_or_does_not_say_when_is_not_measured() {
        let mut latency = Latency::new(10 * SECOND);
        latency.received(&slice("IPv4", Some(9 * SECOND)));
        latency.received(&slice("IPv6", None));
        latency.received(&slice("FQDN", Some(11 * SECOND)));
        assert_eq!(programmed(&mut latency, 12 * SECOND), []);
    }

    #[test]
    fn a_clock_that_is_ahead_makes_no_negative_time() {
        let mut latency = Latency::new(0);
        latency.received(&slice("IPv4", Some(9 * SECOND)));
        assert_eq!(programmed(&mut latency, 8 * SECOND), [(Family::V4, 0.0)]);
    }

    #[test]
    fn a_service_that_is_gone_is_not_measured() {
        let mut latency = Latency::new(0);
        latency.received(&slice("IPv4", Some(SECOND)));
        latency.received(&Event::ServiceGone { namespace: "default".into(), name: "web".into() });
        assert_eq!(programmed(&mut latency, 2 * SECOND), []);
    }
}
