//! Large Services let small ones go first: how long each waits. Time comes in as an argument.
//!
//! Resolving and programming a Service with thousands of frontends or endpoints takes milliseconds, in which no other change
//! is programmed. So a large Service that changed is resolved after the small changes of a round, one large Service in each
//! round. After that work the Service rests, many times as long as the work took. Each large Service rests on its own: none
//! waits for the rest of another. While no small Service changes, there is no rest.

use std::collections::{BTreeSet, HashMap};
use std::ops::Bound::{Excluded, Unbounded};
use std::time::{Duration, Instant};

use ferroxy_core::ServiceName;

/// Resolving a Service with more frontends and endpoints than this takes about a millisecond.
pub(super) const LARGE: usize = 1_000;

/// A rest is this many times as long as the work: a large Service takes about a hundredth of the agent's time.
const SHARE: u32 = 100;
const LONGEST_REST: Duration = Duration::from_secs(5);
/// After a small change, another one is expected for this long.
const EXPECTED: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Courtesy {
    share: u32,
    /// Large Services that changed and are not resolved yet. Their changes concern no other Service.
    unresolved: BTreeSet<ServiceName>,
    /// The large Service that was resolved last: large Services take turns.
    last: Option<ServiceName>,
    last_small: Option<Instant>,
    /// The end of each large Service's rest.
    rests: HashMap<ServiceName, Instant>,
}

impl Default for Courtesy {
    fn default() -> Courtesy {
        Courtesy {
            share: SHARE,
            unresolved: BTreeSet::new(),
            last: None,
            last_small: None,
            rests: HashMap::new(),
        }
    }
}

impl Courtesy {
    /// A large Service changed, and no other Service with it. Returns the end of its rest, if it rests.
    pub(super) fn changed(&mut self, name: &ServiceName, now: Instant) -> Option<Instant> {
        self.unresolved.insert(name.clone());
        self.rests.get(name).copied().filter(|until| *until > now)
    }

    /// The Service is resolved in the normal order, with the small ones.
    pub(super) fn forget(&mut self, name: &ServiceName) {
        self.unresolved.remove(name);
    }

    pub(super) fn is_unresolved(&self, name: &ServiceName) -> bool {
        self.unresolved.contains(name)
    }

    pub(super) fn unresolved(&self) -> usize {
        self.unresolved.len()
    }

    /// Takes the next unresolved Service of `due`, which is sorted.
    pub(super) fn take_next(&mut self, due: &[ServiceName]) -> Option<ServiceName> {
        let is_due = |name: &&ServiceName| due.binary_search(name).is_ok();
        let after = self.last.as_ref().map_or(Unbounded, Excluded);
        let next = self.unresolved.range::<ServiceName, _>((after, Unbounded)).find(is_due);
        let next = next.or_else(|| self.unresolved.iter().find(is_due)).cloned()?;
        self.unresolved.remove(&next);
        self.last = Some(next.clone());
        Some(next)
    }

    pub(super) fn small_changed(&mut self, now: Instant) {
        self.last_small = Some(now);
    }

    /// Work on a large Service took `took` and ends now. Returns the end of its rest, if small changes are expected.
    pub(super) fn worked(&mut self, name: &ServiceName, took: Duration, now: Instant) -> Option<Instant> {
        self.rests.retain(|_, until| *until > now);
        let is_expected = self.last_small.is_some_and(|last| now < last + EXPECTED);
        let rest = took.saturating_mul(self.share).min(LONGEST_REST);
        let until = (is_expected && !rest.is_zero()).then_some(now + rest)?;
        self.rests.insert(name.clone(), until);
        Some(until)
    }

    /// For tests that do not depend on how long work takes.
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
        let large = name("a/large");
        assert_eq!(courtesy.worked(&large, WORK, start), None);
        courtesy.small_changed(start);
        assert_eq!(courtesy.worked(&large, WORK, start), Some(start + WORK * SHARE));
        assert_eq!(courtesy.worked(&large, WORK * 1_000, start), Some(start + LONGEST_REST));
        assert_eq!(courtesy.changed(&large, start), Some(start + LONGEST_REST));
        assert_eq!(courtesy.changed(&name("another/large"), start), None, "each on its own");
        assert_eq!(courtesy.worked(&large, WORK, start + EXPECTED), None);
        assert_eq!(courtesy.changed(&large, start + EXPECTED), None);
        assert_eq!(courtesy.rests.len(), 0, "nothing is kept of those that have rested");
    }

    #[test]
    fn they_take_turns_however_often_one_changes() {
        let (mut courtesy, now) = (Courtesy::default(), Instant::now());
        let all = ["a/a", "b/b", "c/c"].map(name);
        for name in &all {
            courtesy.changed(name, now);
        }
        let mut taken = Vec::new();
        for _ in 0..4 {
            taken.extend(courtesy.take_next(&all));
            courtesy.changed(&all[0], now);
        }
        assert_eq!(taken, ["a/a", "b/b", "c/c", "a/a"].map(name));
        assert_eq!(courtesy.take_next(&all[1..]), None, "it is not due");
        courtesy.forget(&all[0]);
        assert_eq!(courtesy.take_next(&all), None);
    }
}
