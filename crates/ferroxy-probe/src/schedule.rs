//! Decides when each endpoint is probed. The time and the random seed are arguments; nothing is sent here.
//!
//! The first probe of an endpoint starts at a random moment of the interval, and each further one with a jitter: nodes
//! that start together do not probe together. All Services of a node share its limits. Namespaces take turns, so that
//! endpoints that do not answer do not delay the probes of other namespaces. Probes beyond the limits start late, and
//! are counted.

mod lines;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroxy_core::ServiceName;
use ferroxy_core::event::Verdict;
use ferroxy_core::probe::{Down, Life, Probe, Target};
use ferroxy_core::resolve::Probing;

use crate::Outcome;
use crate::record::{Record, Turn};
use lines::Lines;

/// The most endpoints that a node probes, in total and of one namespace.
const MOST: usize = 10_000;
const MOST_OF_NAMESPACE: usize = 5_000;

/// The time between two probes while the next result may change the verdict.
const IN_DOUBT: Duration = Duration::from_secs(1);

/// The time between two probes while a Service has no traffic on this node.
const IDLE: Duration = Duration::from_secs(60);

/// A probe is late if it starts more than this after its due time.
const LATE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Scheduler {
    services: BTreeMap<ServiceName, Group>,
    /// The Services with endpoints that are left out because of the limits.
    crowded: BTreeSet<ServiceName>,
    entries: HashMap<u64, Entry>,
    /// The endpoints that are not due yet, sorted by the time of the next probe.
    sleeping: BTreeSet<(Instant, u64)>,
    lines: Lines,
    last_id: u64,
    /// The latest time for the next call, as computed by the last call.
    promised: Option<Instant>,
    /// The last period in which it was not called in time.
    gap: Option<Gap>,
    random: Random,
    figures: Figures,
}

/// Counters of events, and the current numbers of endpoints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    pub passed: u64,
    pub failed: u64,
    /// Neither passed nor failed: UDP without an answer, or this node could not send the probe.
    pub unknown: u64,
    pub late: u64,
    /// Results that did not count, because this node was asleep.
    pub uncounted: u64,
    pub endpoints: usize,
    /// Endpoints beyond the limits, which are not probed.
    pub left_out: usize,
}

/// A probe to send now.
#[derive(Debug, Clone)]
pub struct Attempt {
    pub id: u64,
    pub target: Target,
    pub probe: Arc<Probe>,
}

#[derive(Debug)]
struct Group {
    probe: Arc<Probe>,
    probed: BTreeMap<Target, (Life, u64)>,
    /// The endpoints that are not probed because of the limits.
    left_out: BTreeMap<Target, Life>,
}

#[derive(Debug)]
struct Entry {
    service: ServiceName,
    target: Target,
    life: Life,
    probe: Arc<Probe>,
    record: Record,
    due: Instant,
    /// When the probe under way started; `None` while there is none.
    started: Option<Instant>,
    /// Whether the result of the probe under way counts: false if this node was asleep for too long before its start.
    counts: bool,
}

/// A period in which the process did not run: the machine was suspended or overloaded.
#[derive(Debug, Clone, Copy)]
struct Gap {
    began: Instant,
    ended: Instant,
}

impl Scheduler {
    pub fn new(seed: u64) -> Scheduler {
        Scheduler {
            services: BTreeMap::new(),
            crowded: BTreeSet::new(),
            entries: HashMap::new(),
            sleeping: BTreeSet::new(),
            lines: Lines::default(),
            last_id: 0,
            promised: None,
            gap: None,
            random: Random(seed),
            figures: Figures::default(),
        }
    }

    /// The counts of events since the last call, and the current numbers of endpoints.
    pub fn figures(&mut self) -> Figures {
        let left_out = |name| self.services.get(name).map_or(0, |group| group.left_out.len());
        let left_out = self.crowded.iter().map(left_out).sum();
        Figures { endpoints: self.entries.len(), left_out, ..std::mem::take(&mut self.figures) }
    }

    /// Sets what to probe for a Service from now on. Endpoints whose life continues keep their record.
    pub fn replace(&mut self, service: &ServiceName, wanted: Option<Probing>, now: Instant) {
        self.notice(now);
        let old = self.services.remove(service);
        self.crowded.remove(service);
        let mut probed = BTreeMap::new();
        let mut left_out = wanted.as_ref().map(|it| it.targets.clone()).unwrap_or_default();
        for (target, (life, id)) in old.into_iter().flat_map(|group| group.probed) {
            if left_out.get(&target) == Some(&life) {
                left_out.remove(&target);
                probed.insert(target, (life, id));
            } else {
                self.forget(id);
            }
        }
        if let Some(Probing { probe, .. }) = wanted {
            self.services.insert(service.clone(), Group { probe, probed, left_out });
            self.crowded.insert(service.clone());
        }
        self.admit(now);
        self.promise(now);
    }

    /// The probes to send now.
    pub fn start(&mut self, now: Instant) -> Vec<Attempt> {
        self.notice(now);
        while let Some((due, id)) = self.sleeping.first().copied().filter(|(due, _)| *due <= now) {
            self.sleeping.remove(&(due, id));
            if let Some(entry) = self.entries.get(&id) {
                self.lines.wait(entry.service.namespace(), due, id);
            }
        }
        let mut attempts = Vec::new();
        while let Some(id) = self.lines.start_next(now) {
            let asleep = self.entries.get(&id).map(|entry| self.asleep_since(entry.due)).unwrap_or_default();
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            entry.started = Some(now);
            entry.counts = asleep <= entry.probe.interval;
            self.figures.late += u64::from(now.saturating_duration_since(entry.due) > LATE);
            attempts.push(Attempt { id, target: entry.target, probe: Arc::clone(&entry.probe) });
        }
        self.promise(now);
        attempts
    }

    /// The outcome of an attempt. `is_idle`: its Service is known to have no traffic. `wall`: seconds since 1970, for people.
    pub fn ended(
        &mut self,
        id: u64,
        outcome: Outcome,
        is_idle: impl FnOnce(&ServiceName) -> bool,
        now: Instant,
        wall: i64,
    ) -> Option<Verdict> {
        self.notice(now);
        self.lines.ended(id);
        let asleep = self
            .entries
            .get(&id)
            .and_then(|it| it.started)
            .map(|since| self.asleep_since(since))
            .unwrap_or_default();
        match outcome {
            Outcome::Passed => self.figures.passed += 1,
            Outcome::Failed(_) => self.figures.failed += 1,
            Outcome::Silent | Outcome::NotSent => self.figures.unknown += 1,
        }
        let jitter = self.random.between(0.8, 1.2);
        // The endpoint may have been removed while its probe was under way.
        let turned = self.entries.get_mut(&id).and_then(|entry| {
            let began = entry.started.take().unwrap_or(now);
            let counts = entry.counts && asleep <= entry.probe.interval;
            self.figures.uncounted += u64::from(!counts);
            let turn = if counts { entry.record.add(outcome, &entry.probe) } else { None };
            let wait = match entry.record.is_in_doubt() {
                true => IN_DOUBT.min(entry.probe.interval),
                false if is_idle(&entry.service) => IDLE.max(entry.probe.interval),
                false => entry.probe.interval,
            };
            entry.due = (began + wait.mul_f64(jitter)).max(now);
            self.sleeping.insert((entry.due, id));
            turn.map(|turn| entry.verdict(turn, wall))
        });
        self.promise(now);
        turned
    }

    /// The address and port of the endpoint of a probe, without a port if the probe has a port of its own. `None` if the
    /// endpoint has been removed meanwhile.
    pub fn endpoint(&self, id: u64) -> Option<(IpAddr, Option<u16>)> {
        let Entry { target, probe, .. } = self.entries.get(&id)?;
        let port = probe.port.is_none().then(|| target.address.port());
        Some((target.address.ip(), port))
    }

    /// When to call `start` at the latest: a probe is due, or one should have ended. `None`: not before something
    /// changes.
    pub fn next(&self) -> Option<Instant> {
        self.promised
    }

    /// Admits endpoints that were left out, as far as the limits allow.
    fn admit(&mut self, now: Instant) {
        let mut still_crowded = BTreeSet::new();
        for service in std::mem::take(&mut self.crowded) {
            let Some(group) = self.services.get_mut(&service) else { continue };
            while self.entries.len() < MOST
                && self.lines.members(service.namespace()) < MOST_OF_NAMESPACE
                && let Some((target, life)) = group.left_out.pop_first()
            {
                self.last_id += 1;
                let id = self.last_id;
                let due = now + group.probe.interval.mul_f64(self.random.between(0.0, 1.0));
                group.probed.insert(target, (life, id));
                let entry = Entry {
                    service: service.clone(),
                    target,
                    life,
                    probe: Arc::clone(&group.probe),
                    record: Record::default(),
                    due,
                    started: None,
                    counts: true,
                };
                self.entries.insert(id, entry);
                self.sleeping.insert((due, id));
                self.lines.join(service.namespace());
            }
            if !group.left_out.is_empty() {
                still_crowded.insert(service);
            }
        }
        self.crowded = still_crowded;
    }

    /// Removes an endpoint. A probe under way counts towards the limits until it has ended.
    fn forget(&mut self, id: u64) {
        if let Some(entry) = self.entries.remove(&id) {
            self.sleeping.remove(&(entry.due, id));
            self.lines.leave(entry.service.namespace(), entry.due, id);
        }
    }

    /// Records a gap if this call comes too late.
    fn notice(&mut self, now: Instant) {
        if let Some(began) = self.promised.take()
            && now.saturating_duration_since(began) > LATE
        {
            self.gap = Some(Gap { began, ended: now });
        }
    }

    fn promise(&mut self, now: Instant) {
        let sleeping = self.sleeping.first().map(|(due, _)| *due);
        let waiting = self.lines.next_start(now);
        let ends = |entry: &Entry| Some(entry.started? + entry.probe.timeout);
        let running = self.lines.running().filter_map(|id| self.entries.get(id).and_then(ends));
        let due = sleeping.into_iter().chain(waiting).chain(running.filter(|at| *at > now)).min();
        self.promised = due.map(|at| at.max(now));
    }

    /// How much of the time since then this node was asleep.
    fn asleep_since(&self, since: Instant) -> Duration {
        self.gap.map(|gap| gap.ended.saturating_duration_since(gap.began.max(since))).unwrap_or_default()
    }
}

impl Figures {
    /// Adds the counts of events, and replaces the current numbers.
    pub(crate) fn add(&mut self, other: Figures) {
        *self = Figures {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            unknown: self.unknown + other.unknown,
            late: self.late + other.late,
            uncounted: self.uncounted + other.uncounted,
            ..other
        };
    }
}

impl Entry {
    fn verdict(&self, turn: Turn, wall: i64) -> Verdict {
        let down = match turn {
            Turn::Down(fault) => Some(Down { since: wall, fault }),
            Turn::Up => None,
        };
        Verdict { service: self.service.clone(), target: self.target, life: Some(self.life), down }
    }
}

/// Good enough to spread probes, and for nothing else.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn between(&mut self, least: f64, most: f64) -> f64 {
        // A Weyl sequence, mixed: every value is new, and neighbours look unrelated.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let fraction = ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64;
        least + fraction * (most - least)
    }
}
