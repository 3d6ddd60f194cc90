//! Whether this proxy does its work: the original's rule, as a value. No clock: time comes in as an argument.
//!
//! Healthy is who has nothing waiting for the kernel, or nothing that waits for long. Both IP families are programmed
//! in one transaction, so one state stands for both. A Service that the kernel refuses by name does not make the proxy
//! unhealthy: the others are in force, and a load balancer that leaves this node because of one would hurt them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::moment::Moment;

/// What the agent does with the kernel.
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
    /// What changes left unused is removed. Traffic does not notice when that fails.
    Tidy,
}

impl Step {
    pub fn is_full_sync(self) -> bool {
        matches!(self, Step::Start | Step::Verify)
    }

    pub fn words(self) -> &'static str {
        match self {
            Step::Start => "the first sync",
            Step::Services => "changes of Services",
            Step::Node => "the node's own settings",
            Step::Verify => "verification",
            Step::Tidy => "removal of what is unused",
        }
    }
}

#[derive(Debug)]
pub struct Health {
    patience: Duration,
    updated: Moment,
    waiting_since: Option<Moment>,
    first_sync_done: bool,
    failing: BTreeMap<Step, String>,
}

impl Health {
    /// The original's patience is twice the sync period.
    pub fn new(sync_period: Duration, now: Moment) -> Health {
        Health {
            patience: sync_period * 2,
            updated: now,
            waiting_since: None,
            first_sync_done: false,
            failing: BTreeMap::new(),
        }
    }

    /// `syncPeriod` is another one from here on.
    pub fn set_sync_period(&mut self, sync_period: Duration) {
        self.patience = sync_period * 2;
    }

    /// Something waits to be sent to the kernel.
    pub fn queued(&mut self, now: Moment) {
        self.waiting_since.get_or_insert(now);
    }

    pub fn done(&mut self, step: Step, now: Moment) {
        self.failing.remove(&step);
        if step == Step::Tidy {
            return;
        }
        self.first_sync_done |= step == Step::Start;
        self.updated = now;
        if self.failing.keys().all(|step| *step == Step::Tidy) {
            self.waiting_since = None;
        }
    }

    pub fn failed(&mut self, step: Step, reason: String, now: Moment) {
        self.failing.insert(step, reason);
        if step != Step::Tidy {
            self.queued(now);
        }
    }

    pub fn is_healthy(&self, now: Moment) -> bool {
        self.waiting_since.is_none_or(|since| since.age(now) < self.patience)
    }

    pub fn first_sync_done(&self) -> bool {
        self.first_sync_done
    }

    /// When the kernel last took what we sent; before the first sync, the start of the process.
    pub fn updated(&self) -> Moment {
        self.updated
    }

    pub fn failing(&self) -> &BTreeMap<Step, String> {
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
    fn whoever_has_nothing_to_do_is_healthy_for_ever() {
        let (health, clock) = started();
        assert!(health.is_healthy(clock.at(1_000_000)) && !health.first_sync_done());
    }

    #[test]
    fn what_waits_for_two_periods_is_late_until_it_is_done() {
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
    fn one_step_does_not_excuse_another() {
        let (mut health, clock) = started();
        health.failed(Step::Node, "no".into(), clock.at(0));
        health.done(Step::Services, clock.at(30));
        assert!(!health.is_healthy(clock.at(60)), "the node's settings still fail");
        health.done(Step::Node, clock.at(61));
        assert!(health.is_healthy(clock.at(61)) && health.failing().is_empty());
    }

    #[test]
    fn untidiness_is_no_illness() {
        let (mut health, clock) = started();
        health.failed(Step::Tidy, "busy".into(), clock.at(0));
        assert!(health.is_healthy(clock.at(1000)));
        health.queued(clock.at(1000));
        health.done(Step::Services, clock.at(1001));
        assert!(health.is_healthy(clock.at(2000)));
    }

    #[test]
    fn a_first_sync_that_fails_becomes_late_too() {
        let (mut health, clock) = started();
        health.failed(Step::Start, "no".into(), clock.at(0));
        health.failed(Step::Start, "no".into(), clock.at(50));
        assert!(!health.is_healthy(clock.at(60)) && !health.first_sync_done());
        health.done(Step::Start, clock.at(61));
        assert!(health.is_healthy(clock.at(62)) && health.first_sync_done());
    }
}
