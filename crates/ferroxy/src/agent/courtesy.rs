//! Large Services let small ones go first: what is large, and how long it waits. Time comes in as an argument.
//!
//! To resolve and to program a Service with thousands of frontends or endpoints takes milliseconds, in which no other change
//! is programmed. So one that changed is resolved after the small changes of a round, and after some work on large Services
//! there is a rest, many times as long as the work was, in which only small ones are programmed. Where nothing small
//! changes, there is no rest.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};
use std::time::{Duration, Instant};

use ferroxy_core::ServiceName;

/// Resolving a Service with more frontends and endpoints than this takes about a millisecond.
pub(super) const LARGE: usize = 1_000;

/// The rest is so many times as long as the work: large Services take about a hundredth of the agent's time.
const SHARE: u32 = 100;
const LONGEST_REST: Duration = Duration::from_secs(5);
/// So long after a small change another one is expected.
const EXPECTED: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Courtesy {
    share: u32,
    /// Large Services that changed and are not resolved yet. No other Service has anything to do with their change.
    unresolved: BTreeSet<ServiceName>,
    /// The one that was resolved last: they take turns.
    last: Option<ServiceName>,
    last_small: Option<Instant>,
    rest_until: Option<Instant>,
}

impl Default for Courtesy {
    fn default() -> Courtesy {
        Courtesy { share: SHARE, unresolved: BTreeSet::new(), last: None, last_small: None, rest_until: None }
    }
}

impl Courtesy {
    /// The Service changed. Returns until when it waits, if it is to wait at all.
    pub(super) fn changed(&mut self, name: &ServiceName, can_wait: bool, now: Instant) -> Option<Instant> {
        if !can_wait {
            self.unresolved.remove(name);
            return None;
        }
        self.unresolved.insert(name.clone());
        self.rest_until.filter(|until| *until > now)
    }

    pub(super) fn is_unresolved(&self, name: &ServiceName) -> bool {
        self.unresolved.contains(name)
    }

    pub(super) fn unresolved(&self) -> impl Iterator<Item = &ServiceName> {
        self.unresolved.iter()
    }

    /// Takes the next one of these that is not resolved.
    pub(super) fn take_next(&mut self, due: &[ServiceName]) -> Option<ServiceName> {
        let is_due = |name: &&ServiceName| due.binary_search(name).is_ok();
        let after = self.last.as_ref().map_or(Unbounded, Excluded);
        let next = self.unresolved.range((after, Unbounded)).find(is_due);
        let next = next.or_else(|| self.unresolved.iter().find(is_due)).cloned()?;
        self.unresolved.remove(&next);
        self.last = Some(next.clone());
        Some(next)
    }

    pub(super) fn small_changed(&mut self, now: Instant) {
        self.last_small = Some(now);
    }

    /// Work on a large Service took so long and ends now. Returns until when the next has to wait, if small changes are expected.
    pub(super) fn worked(&mut self, took: Duration, now: Instant) -> Option<Instant> {
        let is_expected = self.last_small.is_some_and(|last| now < last + EXPECTED);
        let rest = took.saturating_mul(self.share).min(LONGEST_REST);
        self.rest_until = (is_expected && !rest.is_zero()).then_some(now + rest);
        self.rest_until
    }

    /// How long work takes is no part of what most tests are about.
    #[cfg(test)]
    pub(super) fn never_rest(&mut self) {
        self.share = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORK: Duration = Duration::from_millis(10);

    fn name(text: &str) -> ServiceName {
        ServiceName::parse(text).unwrap()
    }

    #[test]
    fn it_rests_only_while_small_changes_are_expected() {
        let (mut courtesy, start) = (Courtesy::default(), Instant::now());
        assert_eq!(courtesy.worked(WORK, start), None);
        courtesy.small_changed(start);
        assert_eq!(courtesy.worked(WORK, start), Some(start + WORK * SHARE));
        assert_eq!(courtesy.worked(WORK * 1_000, start), Some(start + LONGEST_REST));
        assert_eq!(courtesy.changed(&name("a/b"), true, start), Some(start + LONGEST_REST));
        assert_eq!(courtesy.worked(WORK, start + EXPECTED), None);
        assert_eq!(courtesy.changed(&name("a/b"), true, start + EXPECTED), None);
    }

    #[test]
    fn one_that_cannot_wait_does_not() {
        let (mut courtesy, start) = (Courtesy::default(), Instant::now());
        courtesy.small_changed(start);
        courtesy.worked(WORK, start);
        courtesy.changed(&name("a/b"), true, start);
        assert!(courtesy.is_unresolved(&name("a/b")));
        assert_eq!(courtesy.changed(&name("a/b"), false, start), None);
        assert!(!courtesy.is_unresolved(&name("a/b")));
    }

    #[test]
    fn they_take_turns_however_often_one_changes() {
        let (mut courtesy, now) = (Courtesy::default(), Instant::now());
        let all = ["a/a", "b/b", "c/c"].map(name);
        for name in &all {
            courtesy.changed(name, true, now);
        }
        let mut taken = Vec::new();
        for _ in 0..4 {
            taken.extend(courtesy.take_next(&all));
            courtesy.changed(&all[0], true, now);
        }
        assert_eq!(taken, ["a/a", "b/b", "c/c", "a/a"].map(name));
        assert_eq!(courtesy.take_next(&all[1..]), None, "it is not due");
    }
}
