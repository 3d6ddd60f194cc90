//! Which Services have no traffic on this node. Known only while traffic is counted and the counters are read.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ferroxy_core::ServiceName;

/// A Service is idle after this time without traffic. A reading of the counters is valid for the same time.
const SILENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub struct Idle {
    readings: Mutex<Readings>,
}

#[derive(Debug, Default)]
struct Readings {
    /// The first and the last reading of a series without a long pause.
    row: Option<(Instant, Instant)>,
    /// When each Service last had traffic, for Services with traffic in the last minute.
    seen: HashMap<ServiceName, Instant>,
}

impl Idle {
    /// The counters were read: `busy` are the Services with traffic since the last reading.
    pub fn read(&self, busy: BTreeSet<ServiceName>, now: Instant) {
        let mut readings = self.readings();
        let first = readings.row.filter(|(_, last)| now.saturating_duration_since(*last) < SILENCE);
        readings.row = Some((first.map_or(now, |(first, _)| first), now));
        readings.seen.retain(|_, at| now.saturating_duration_since(*at) < SILENCE);
        readings.seen.extend(busy.into_iter().map(|name| (name, now)));
    }

    pub fn is_idle(&self, name: &ServiceName, now: Instant) -> bool {
        let readings = self.readings();
        let age = |at: Instant| now.saturating_duration_since(at);
        let is_known = readings.row.is_some_and(|(first, last)| age(first) >= SILENCE && age(last) < SILENCE);
        is_known && readings.seen.get(name).is_none_or(|at| age(*at) >= SILENCE)
    }

    fn readings(&self) -> MutexGuard<'_, Readings> {
        self.readings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_is_who_is_known_to_have_no_traffic() {
        let (idle, start) = (Idle::default(), Instant::now());
        let [web, api] = ["web", "api"].map(|name| ServiceName::new("default", name));
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(!idle.is_idle(&web, at(1000)), "nothing is known");
        for seconds in (0..=90).step_by(30) {
            idle.read([web.clone()].into(), at(seconds));
        }
        assert!(!idle.is_idle(&web, at(100)) && idle.is_idle(&api, at(100)));
        idle.read(BTreeSet::new(), at(120));
        idle.read(BTreeSet::new(), at(149));
        assert!(!idle.is_idle(&web, at(149)), "it had some at 90");
        assert!(idle.is_idle(&web, at(150)));
        assert!(!idle.is_idle(&api, at(209)), "the last reading is too old");
        idle.read(BTreeSet::new(), at(300));
        assert!(!idle.is_idle(&api, at(301)), "a new row of readings");
    }
}
