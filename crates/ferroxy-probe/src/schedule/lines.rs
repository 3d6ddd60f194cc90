//! Decides which endpoint is probed next when more probes are due than the limits of a node allow. Namespaces take
//! turns; within a namespace, the endpoint that has waited longest is next.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most probes of a node in a second, and at the same time.
const MOST_A_SECOND: usize = 500;
const MOST_AT_ONCE: usize = 64;

/// The most probes of one namespace at the same time: endpoints that do not answer take their whole timeout.
const MOST_OF_NAMESPACE: usize = 32;

#[derive(Debug, Default)]
pub(super) struct Lines {
    namespaces: HashMap<Arc<str>, Line>,
    /// The namespaces that may start a probe, in turn; each once.
    turns: VecDeque<Arc<str>>,
    /// The probes under way.
    running: HashMap<u64, Arc<str>>,
    /// When the probes of the last second began.
    recent: VecDeque<Instant>,
}

#[derive(Debug, Default)]
struct Line {
    /// How many endpoints it has.
    members: usize,
    waiting: BTreeSet<(Instant, u64)>,
    running: usize,
    has_turn: bool,
}

impl Line {
    fn may_start(&self) -> bool {
        !self.waiting.is_empty() && self.running < MOST_OF_NAMESPACE
    }
}

impl Lines {
    pub(super) fn members(&self, namespace: &str) -> usize {
        self.namespaces.get(namespace).map_or(0, |line| line.members)
    }

    pub(super) fn join(&mut self, namespace: &str) {
        match self.namespaces.get_mut(namespace) {
            Some(line) => line.members += 1,
            None => drop(self.namespaces.insert(namespace.into(), Line { members: 1, ..Line::default() })),
        }
    }

    pub(super) fn leave(&mut self, namespace: &str, due: Instant, id: u64) {
        if let Some(line) = self.namespaces.get_mut(namespace) {
            line.waiting.remove(&(due, id));
            line.members = line.members.saturating_sub(1);
        }
        self.forget_if_empty(namespace);
    }

    /// The endpoint is due.
    pub(super) fn wait(&mut self, namespace: &str, due: Instant, id: u64) {
        if let Some(line) = self.namespaces.get_mut(namespace) {
            line.waiting.insert((due, id));
        }
        self.take_turn(namespace);
    }

    /// The next probe to start now, if the limits allow one.
    pub(super) fn start_next(&mut self, now: Instant) -> Option<u64> {
        self.forget_starts(now);
        while self.running.len() < MOST_AT_ONCE && self.recent.len() < MOST_A_SECOND {
            let namespace = self.turns.pop_front()?;
            let Some(line) = self.namespaces.get_mut(&namespace) else { continue };
            line.has_turn = false;
            let next = if line.may_start() { line.waiting.pop_first() } else { None };
            let Some((_, id)) = next else { continue };
            line.running += 1;
            self.running.insert(id, Arc::clone(&namespace));
            self.recent.push_back(now);
            self.take_turn(&namespace);
            return Some(id);
        }
        None
    }

    pub(super) fn ended(&mut self, id: u64) {
        let Some(namespace) = self.running.remove(&id) else { return };
        if let Some(line) = self.namespaces.get_mut(&namespace) {
            line.running = line.running.saturating_sub(1);
        }
        self.take_turn(&namespace);
        self.forget_if_empty(&namespace);
    }

    /// The probes under way.
    pub(super) fn running(&self) -> impl Iterator<Item = &u64> {
        self.running.keys()
    }

    /// When `start_next` may return a probe, if none ends before.
    pub(super) fn next_start(&self, now: Instant) -> Option<Instant> {
        if self.turns.is_empty() || self.running.len() >= MOST_AT_ONCE {
            return None;
        }
        let is_full = self.recent.len() >= MOST_A_SECOND;
        self.recent.front().filter(|_| is_full).map(|first| *first + SECOND).or(Some(now))
    }

    fn take_turn(&mut self, namespace: &str) {
        if let Some((name, line)) = self.namespaces.get_key_value(namespace)
            && line.may_start()
            && !line.has_turn
        {
            self.turns.push_back(Arc::clone(name));
            if let Some(line) = self.namespaces.get_mut(namespace) {
                line.has_turn = true;
            }
        }
    }

    fn forget_starts(&mut self, now: Instant) {
        while self.recent.front().is_some_and(|first| now.saturating_duration_since(*first) >= SECOND) {
            self.recent.pop_front();
        }
    }

    fn forget_if_empty(&mut self, namespace: &str) {
        let is_over = |line: &Line| line.members == 0 && line.running == 0;
        if self.namespaces.get(namespace).is_some_and(is_over) {
            self.namespaces.remove(namespace);
            self.turns.retain(|it| **it != *namespace);
        }
    }
}

const SECOND: Duration = Duration::from_secs(1);
