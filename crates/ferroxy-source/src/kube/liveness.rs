//! The state of the watches, readable from other threads.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::object::Kind;

/// The state of every watch at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Liveness {
    pub resources: Vec<ResourceLiveness>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ResourceLiveness {
    pub kind: Kind,
    /// A list has been complete once.
    pub listed: bool,
    /// A watch is open.
    pub connected: bool,
    /// Time since the last sign of life of the server: data on this stream, or an answer to the probe while the
    /// stream was open. `None`: never.
    pub last_activity: Option<Duration>,
    /// The `resourceVersion` of the watch.
    pub version: Option<String>,
    /// Lists after the first.
    pub relists: u64,
    /// Requests and streams that failed.
    pub errors: u64,
}

impl Liveness {
    /// The longest time since a sign of life among the required watches. `None`: one has had none yet.
    pub fn oldest(&self) -> Option<Duration> {
        let needed = self.resources.iter().filter(|it| it.kind != Kind::ServiceCidr);
        needed.map(|it| it.last_activity).try_fold(Duration::ZERO, |oldest, age| Some(oldest.max(age?)))
    }
}

/// Where one watch writes its state.
#[derive(Debug)]
pub(super) struct Pulse {
    kind: Kind,
    state: Mutex<State>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct State {
    pub(super) listed: bool,
    pub(super) connected: bool,
    pub(super) last_activity: Option<Instant>,
    pub(super) version: Option<String>,
    pub(super) relists: u64,
    pub(super) errors: u64,
}

impl Pulse {
    pub(super) fn new(kind: Kind) -> Arc<Pulse> {
        Arc::new(Pulse { kind, state: Mutex::default() })
    }

    /// Held for a few assignments only; a panic in between leaves usable values.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn at(&self, now: Instant) -> ResourceLiveness {
        let State { listed, connected, last_activity, version, relists, errors } = self.state().clone();
        let last_activity = last_activity.map(|at| now.saturating_duration_since(at));
        ResourceLiveness { kind: self.kind, listed, connected, last_activity, version, relists, errors }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_the_required_watches_counts() {
        let now = Instant::now();
        let pulses: Vec<Arc<Pulse>> = [Kind::Node, Kind::Service, Kind::ServiceCidr].map(Pulse::new).into();
        let liveness =
            || Liveness { resources: pulses.iter().map(|it| it.at(now + Duration::from_secs(9))).collect() };
        assert_eq!(liveness().oldest(), None);
        pulses[0].state().last_activity = Some(now);
        assert_eq!(liveness().oldest(), None);
        pulses[1].state().last_activity = Some(now + Duration::from_secs(5));
        assert_eq!(liveness().oldest(), Some(Duration::from_secs(9)));
    }
}
