//! Whether the proxy works: kube-proxy's rule, as a value. No clock: time is an argument.
//!
//! The proxy is healthy unless a change has waited for the kernel for longer than twice the sync period. Both IP families
//! are programmed by the same call of the dataplane, so one state stands for both. A Service that the kernel refuses does not make the
//! proxy unhealthy: the other Services work, and would suffer if a load balancer left this node because of the one.

use std::collections::BTreeMap;
use std::time::Duration;

use super::moment::Moment;

/// The progress of the agent, as numbers of Services.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Services that wait to be programmed.
    pub waiting: usize,
    /// The large Services among those that wait, which are programmed in portions.
    pub large: usize,
    pub known: usize,
    pub programmed: usize,
}

/// Steps of the agent's work on the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// The first sync: everything is compared and sent.
    Start,
    /// Some Services changed.
    Services,
    /// The node's own settings changed.
    Node,
    /// Everything is compared with the kernel again.
    Verify,
    /// Unused rules and objects are removed. Traffic does not depend on it.
    Tidy,
}

impl Step {
    /// Whether the step programs what the source reported. Verification and cleanup do not.
    pub fn is_sync(self) -> bool {
        matches!(self, Step::Start | Step::Services | Step::Node)
    }

    pub fn words(self) -> &'static str {
        match self {
            Step::Start => "first sync",
            Step::Services => "changes of Services",
            Step::Node => "settings of the node",
            Step::Verify => "verification",
            Step::Tidy => "removal of unused rules",
        }
    }
}

#[derive(Debug)]
pub struct Health {
    patience: Duration,
    updated: Moment,
    /// Since when a change waits for a sync.
    queued_since: Option<Moment>,
    first_sync_done: bool,
    failing: BTreeMap<Step, Failing>,
}

/// A step that failed and has not succeeded since.
#[derive(Debug)]
pub struct Failing {
    pub since: Moment,
    pub reason: String,
}

impl Health {
    /// kube-proxy tolerates twice the sync period.
    pub fn new(sync_period: Duration, now: Moment) -> Health {
        Health {
            patience: sync_period * 2,
            updated: now,
            queued_since: None,
            first_sync_done: false,
            failing: BTreeMap::new(),
        }
    }

    /// `syncPeriod` has changed.
    pub fn set_sync_period(&mut self, sync_period: Duration) {
        self.patience = sync_period * 2;
    }

    /// A change waits to be sent to the kernel.
    pub fn queued(&mut self, now: Moment) {
        self.queued_since.get_or_insert(now);
    }

    /// A step has succeeded. Only a sync takes changes off the queue; a verification does not.
    pub fn done(&mut self, step: Step, now: Moment) {
        self.failing.remove(&step);
        if step == Step::Tidy {
            return;
        }
        self.first_sync_done |= step == Step::Start;
        self.updated = now;
        if step.is_sync() {
            self.queued_since = None;
        }
    }

    pub fn failed(&mut self, step: Step, reason: String, now: Moment) {
        let since = self.failing.get(&step).map_or(now, |failing| failing.since);
        self.failing.insert(step, Failing { since, reason });
    }

    pub fn is_healthy(&self, now: Moment) -> bool {
        let failing = self.failing.iter().filter(|(step, _)| **step != Step::Tidy);
        let waiting = failing.map(|(_, failing)| failing.since).chain(self.queued_since);
        waiting.into_iter().all(|since| since.age(now) < self.patience)
    }

    pub fn first_sync_done(&self) -> bool {
        self.first_sync_done
    }

    /// When the kernel last accepted a change; before the first sync, the start of the process.
    pub fn updated(&self) -> Moment {
        self.updated
    }

    pub fn failing(&self) -> &BTreeMap<Step, Failing> {
        &self.failing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_secs(30);

    struct Clock(Moment);

    impl Clock {
        fn at(&self, seconds: u64) -> Moment {
            let later = Duration::from_secs(seconds);
            Moment { instant: self.0.instant + later, wall: self.0.wall + later }
        }
    }

    fn started() -> (Health, Clock) {
        let clock = Clock(Moment::now());
        (Health::new(PERIOD, clock.0), clock)
    }

    #[test]
    fn an_idle_proxy_stays_healthy() {
        let (health, clock) = started();
        assert!(health.is_healthy(clock.at(1_000_000)) && !health.first_sync_done());
    }

    #[test]
    fn a_change_that_waits_for_two_periods_makes_the_proxy_unhealthy() {
        let (mut health, clock) = started();
        health.queued(clock.at(10));
        health.queued(clock.at(60));
        assert!(health.is_healthy(clock.at(69)));
        assert!(!health.is_healthy(clock.at(70)), "the oldest counts");
        health.done(Step::Services, clock.at(71));
        assert!(health.is_healthy(clock.at(1000)));
        assert_eq!(health.updated().age(clock.at(71)), Duration::ZERO);
    }

    #[test]
    fn the_success_of_one_step_does_not_hide_the_failure_of_another() {
        let (mut health, clock) = started();
        health.failed(Step::Node, "no".into(), clock.at(0));
        health.done(Step::Services, clock.at(30));
        assert!(!health.is_healthy(clock.at(60)), "the node's settings still fail");
        health.done(Step::Node, clock.at(61));
        assert!(health.is_healthy(clock.at(61)) && health.failing().is_empty());
    }

    #[test]
    fn a_verification_does_not_take_changes_off_the_queue() {
        let (mut health, clock) = started();
        health.done(Step::Start, clock.at(0));
        health.queued(clock.at(10));
        health.done(Step::Verify, clock.at(30));
        assert!(!health.is_healthy(clock.at(70)), "the change still waits");
        health.done(Step::Services, clock.at(71));
        assert!(health.is_healthy(clock.at(71)));
    }

    #[test]
    fn failed_cleanup_does_not_make_the_proxy_unhealthy() {
        let (mut health, clock) = started();
        health.failed(Step::Tidy, "busy".into(), clock.at(0));
        assert!(health.is_healthy(clock.at(1000)));
        health.queued(clock.at(1000));
        health.done(Step::Services, clock.at(1001));
        assert!(health.is_healthy(clock.at(2000)));
    }

    #[test]
    fn a_first_sync_that_keeps_failing_makes_the_proxy_unhealthy() {
        let (mut health, clock) = started();
        health.failed(Step::Start, "no".into(), clock.at(0));
        health.failed(Step::Start, "no".into(), clock.at(50));
        assert!(!health.is_healthy(clock.at(60)) && !health.first_sync_done());
        health.done(Step::Start, clock.at(61));
        assert!(health.is_healthy(clock.at(62)) && health.first_sync_done());
    }
}
