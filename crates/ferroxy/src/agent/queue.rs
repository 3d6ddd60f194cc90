//! Which Services wait to be programmed, and when each is tried. Time comes in as an argument.
//!
//! A Service leaves the queue only when the dataplane has acknowledged it. A Service that fails is retried with backoff, and
//! never delays another.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use ferroxy_core::ServiceName;
use ferroxy_dataplane::Pace;

const FIRST_RETRY: Duration = Duration::from_millis(20);
const LAST_RETRY: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub struct Queue {
    waiting: BTreeMap<ServiceName, Attempt>,
    /// Whether the period limits each Service, or all of them together.
    pace: Pace,
    period: Duration,
    rates: Rates,
    /// With [`Pace::Whole`]: no Service is due before this time.
    rest_until: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Attempt {
    due: Instant,
    failures: u32,
}

impl Queue {
    pub fn new(pace: Pace) -> Queue {
        Queue { pace, ..Queue::default() }
    }

    /// `minSyncPeriod`.
    pub fn set_period(&mut self, period: Duration) {
        self.period = period;
    }

    /// Whether large changes are cut into portions. They are not if each run costs much regardless of its size.
    pub fn is_cut(&self) -> bool {
        self.pace == Pace::EachService
    }

    /// The Service changed: it is due as soon as its rate allows, regardless of earlier failures.
    pub fn add(&mut self, name: ServiceName, now: Instant) {
        let due = self.rates.earliest(&name, self.period, now);
        self.waiting
            .entry(name)
            .and_modify(|attempt| attempt.due = due)
            .or_insert(Attempt { due, failures: 0 });
    }

    /// The Service is due at `until` at the earliest.
    pub fn postpone(&mut self, name: &ServiceName, until: Instant) {
        if let Some(attempt) = self.waiting.get_mut(name) {
            attempt.due = attempt.due.max(until);
        }
    }

    pub fn due(&self, now: Instant) -> Vec<ServiceName> {
        if self.rest_until.is_some_and(|until| now < until) {
            return Vec::new();
        }
        self.waiting.iter().filter(|(_, attempt)| attempt.due <= now).map(|(name, _)| name.clone()).collect()
    }

    pub fn next_due(&self) -> Option<Instant> {
        let first = self.waiting.values().map(|attempt| attempt.due).min()?;
        Some(self.rest_until.map_or(first, |until| until.max(first)))
    }

    pub fn done(&mut self, name: &ServiceName, now: Instant) {
        self.waiting.remove(name);
        match self.pace {
            Pace::EachService => self.rates.spend(name, self.period, now),
            // A single change goes at once. Changes within the period after it go together.
            Pace::Whole => self.rest_until = Some(now + self.period),
        }
    }

    /// The first sync is done. It counts towards no Service's rate.
    pub fn started(&mut self) {
        self.rates = Rates::default();
    }

    /// Returns the delay before the retry. A failed attempt counts towards the Service's rate as well.
    pub fn failed(&mut self, name: ServiceName, now: Instant) -> Duration {
        if self.pace == Pace::EachService {
            self.rates.spend(&name, self.period, now);
        }
        let attempt = self.waiting.entry(name).or_insert(Attempt { due: now, failures: 0 });
        let wait = backoff(attempt.failures);
        *attempt = Attempt { due: now + wait, failures: attempt.failures + 1 };
        wait
    }

    pub fn has(&self, name: &ServiceName) -> bool {
        self.waiting.contains_key(name)
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// How long to wait after this many failures in a row: 20 ms, doubling, at most 30 s.
pub fn backoff(failures: u32) -> Duration {
    FIRST_RETRY.saturating_mul(1 << failures.min(20)).min(LAST_RETRY)
}

/// `minSyncPeriod` as a rate for each Service: a change costs what it changes, so one Service that changes all the time does
/// not delay others. A few changes go out at once; from then on a Service gets one in each period, with everything that
/// arrived meanwhile.
#[derive(Debug, Default)]
struct Rates {
    /// Until when each Service has spent its allowance. A Service with its full allowance has no entry.
    spent_until: HashMap<ServiceName, Instant>,
    prune_at: usize,
}

impl Rates {
    /// How many changes in a row are not delayed.
    const BURST: u32 = 10;

    fn earliest(&self, name: &ServiceName, period: Duration, now: Instant) -> Instant {
        let allowance = period * (Self::BURST - 1);
        let until = self.spent_until.get(name).and_then(|until| until.checked_sub(allowance));
        until.map_or(now, |earliest| earliest.max(now))
    }

    fn spend(&mut self, name: &ServiceName, period: Duration, now: Instant) {
        if period.is_zero() {
            return self.spent_until.clear();
        }
        let until = self.spent_until.entry(name.clone()).or_insert(now);
        // Failed attempts may come faster than the period: the debt never exceeds the whole allowance.
        *until = ((*until).max(now) + period).min(now + period * Self::BURST);
        if self.spent_until.len() > self.prune_at {
            self.spent_until.retain(|_, until| *until > now);
            self.prune_at = (2 * self.spent_until.len()).max(1000);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> ServiceName {
        ServiceName::parse(text).unwrap()
    }

    #[test]
    fn a_failure_delays_itself_and_nobody_else() {
        let (mut queue, start) = (Queue::default(), Instant::now());
        queue.add(name("a"), start);
        queue.add(name("b"), start);
        queue.failed(name("a"), start);
        assert_eq!(queue.due(start), [name("b")]);
        queue.done(&name("b"), start);
        assert_eq!(queue.due(start + FIRST_RETRY), [name("a")]);
    }

    #[test]
    fn retries_start_fast_and_slow_down() {
        let (mut queue, start) = (Queue::default(), Instant::now());
        let waits: Vec<u128> = (0..13).map(|_| queue.failed(name("a"), start).as_millis()).collect();
        assert_eq!(&waits[..4], [20, 40, 80, 160]);
        assert_eq!(waits[12], 30_000);
    }

    #[test]
    fn a_new_change_is_tried_at_once() {
        let (mut queue, start) = (Queue::default(), Instant::now());
        queue.failed(name("a"), start);
        queue.add(name("a"), start);
        assert_eq!(queue.due(start), [name("a")]);
    }

    #[test]
    fn what_is_postponed_waits_unless_it_changes() {
        let (mut queue, start) = (Queue::default(), Instant::now());
        let later = start + Duration::from_secs(1);
        queue.add(name("a"), start);
        queue.postpone(&name("a"), later);
        queue.postpone(&name("a"), start);
        queue.postpone(&name("unknown"), later);
        assert_eq!((queue.due(start), queue.next_due()), (vec![], Some(later)));
        queue.add(name("a"), start);
        assert_eq!(queue.due(start), [name("a")]);
    }

    #[test]
    fn only_acknowledgement_empties_it() {
        let (mut queue, start) = (Queue::default(), Instant::now());
        queue.add(name("a"), start);
        assert_eq!(queue.due(start).len(), 1);
        assert_eq!(queue.len(), 1, "being due is not being done");
        queue.done(&name("a"), start);
        assert!(queue.is_empty() && queue.next_due().is_none());
    }

    /// How often a Service that changes every 10 ms is programmed within `milliseconds`.
    fn programmed(queue: &mut Queue, start: Instant, milliseconds: u64) -> usize {
        (0..milliseconds / 10)
            .filter(|tick| {
                let now = start + Duration::from_millis(tick * 10);
                queue.add(name("restless"), now);
                let due = !queue.due(now).is_empty();
                if due {
                    queue.done(&name("restless"), now);
                }
                due
            })
            .count()
    }

    #[test]
    fn a_restless_service_is_held_to_the_rate_after_a_burst() {
        let (mut queue, start) = (Queue::default(), Instant::now());
        queue.set_period(Duration::from_secs(1));
        assert_eq!(programmed(&mut queue, start, 5_000), Rates::BURST as usize + 4);
        queue.add(name("quiet"), start);
        assert_eq!(queue.due(start), [name("quiet")], "another's restlessness is no reason to wait");
    }

    /// With a period that is longer than the longest backoff.
    #[test]
    fn a_service_that_failed_for_long_waits_for_one_period_at_most() {
        let (mut queue, mut now) = (Queue::default(), Instant::now());
        let period = 2 * LAST_RETRY;
        queue.set_period(period);
        for _ in 0..1000 {
            now += queue.failed(name("refused"), now);
        }
        queue.add(name("refused"), now);
        assert!(
            queue.next_due() <= Some(now + period),
            "{:?} after now",
            queue.next_due().map(|it| it - now)
        );
    }

    #[test]
    fn what_is_held_back_is_due_later_by_itself() {
        let (mut queue, start) = (Queue::default(), Instant::now());
        queue.set_period(Duration::from_secs(1));
        programmed(&mut queue, start, 200);
        let due = queue.next_due().expect("the last change waits");
        assert!(due > start && due <= start + Duration::from_secs(1));
        assert_eq!(queue.due(due), [name("restless")]);
    }

    #[test]
    fn where_each_run_costs_changes_go_together() {
        let (mut queue, start) = (Queue::new(Pace::Whole), Instant::now());
        let period = Duration::from_secs(1);
        queue.set_period(period);
        queue.add(name("alone"), start);
        assert_eq!(queue.due(start), [name("alone")], "it goes at once");
        queue.done(&name("alone"), start);
        for (service, after) in [("a", 1), ("b", 500), ("alone", 999)] {
            let now = start + Duration::from_millis(after);
            queue.add(name(service), now);
            assert_eq!((queue.due(now), queue.next_due()), (Vec::new(), Some(start + period)));
        }
        assert_eq!(queue.due(start + period), ["a", "alone", "b"].map(name));
        let mut restless = Queue::new(Pace::Whole);
        restless.set_period(period);
        assert_eq!(programmed(&mut restless, start, 5_000), 5, "no burst, and no pause that is longer");
    }

    #[test]
    fn a_failure_is_tried_again_before_the_period_is_over() {
        let (mut queue, start) = (Queue::new(Pace::Whole), Instant::now());
        queue.set_period(Duration::from_secs(1));
        queue.add(name("a"), start);
        let wait = queue.failed(name("a"), start);
        assert_eq!(queue.due(start + wait), [name("a")]);
    }

    #[test]
    fn without_a_period_nothing_is_held_back_and_nothing_remembered() {
        let (mut queue, start) = (Queue::default(), Instant::now());
        assert_eq!(programmed(&mut queue, start, 1_000), 100);
        assert!(queue.rates.spent_until.is_empty());
    }

    #[test]
    fn services_that_are_quiet_again_are_forgotten() {
        let (mut queue, start) = (Queue::default(), Instant::now());
        queue.set_period(Duration::from_millis(1));
        for number in 0..5_000 {
            queue.done(&name(&format!("s{number}")), start + Duration::from_millis(number));
        }
        assert!(queue.rates.spent_until.len() < 2_000, "{}", queue.rates.spent_until.len());
    }
}
