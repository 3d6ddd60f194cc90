//! Which Services wait to be programmed, and when each is tried (again). Time comes in as an argument.
//!
//! A Service leaves the queue only when the kernel has acknowledged it. One that fails is tried again, soon at first,
//! and never holds back another.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ferroxy_core::ServiceName;

const FIRST_RETRY: Duration = Duration::from_millis(20);
const LAST_RETRY: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub struct Queue {
    waiting: BTreeMap<ServiceName, Attempt>,
}

#[derive(Debug, Clone, Copy)]
struct Attempt {
    due: Instant,
    failures: u32,
}

impl Queue {
    /// Something about the Service changed: due at once, whatever happened before.
    pub fn add(&mut self, name: ServiceName, now: Instant) {
        self.waiting
            .entry(name)
            .and_modify(|attempt| attempt.due = now)
            .or_insert(Attempt { due: now, failures: 0 });
    }

    pub fn due(&self, now: Instant) -> Vec<ServiceName> {
        self.waiting.iter().filter(|(_, attempt)| attempt.due <= now).map(|(name, _)| name.clone()).collect()
    }

    pub fn next_due(&self) -> Option<Instant> {
        self.waiting.values().map(|attempt| attempt.due).min()
    }

    pub fn done(&mut self, name: &ServiceName) {
        self.waiting.remove(name);
    }

    /// Says after how long it is tried again.
    pub fn failed(&mut self, name: ServiceName, now: Instant) -> Duration {
        let attempt = self.waiting.entry(name).or_insert(Attempt { due: now, failures: 0 });
        let wait = backoff(attempt.failures);
        *attempt = Attempt { due: now + wait, failures: attempt.failures + 1 };
        wait
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
        queue.done(&name("b"));
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
    fn only_acknowledgement_empties_it() {
        let (mut queue, start) = (Queue::default(), Instant::now());
        queue.add(name("a"), start);
        assert_eq!(queue.due(start).len(), 1);
        assert_eq!(queue.len(), 1, "being due is not being done");
        queue.done(&name("a"));
        assert!(queue.is_empty() && queue.next_due().is_none());
    }
}
