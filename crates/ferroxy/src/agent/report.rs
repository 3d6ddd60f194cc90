//! Logs diagnostics: each one when it appears, and again only if it disappeared in between. Log lines about a Service that
//! changes all the time are rate-limited, and so are those about a namespace. Time comes in as an argument.
//!
//! For each diagnostic only a hash is remembered, so that memory depends on the number of diagnostics and not on their
//! texts; and at most [`MOST`] are remembered.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::hash::{BuildHasher, RandomState};
use std::time::Instant;

use ferroxy_core::{Diagnostic, ObjectKind, ServiceName};
use tracing::{info, warn};

use crate::bucket::{Bucket, Rate};
use crate::log;

/// How many diagnostics of Services are remembered. Further ones are neither remembered nor logged.
const MOST: usize = 100_000;

/// The limit of lines about one Service.
const SERVICE: Rate = Rate { burst: 10.0, per_second: 1.0 / 30.0 };

/// The limit of lines about the Services of one namespace, so that one tenant's objects do not hide those of others.
const NAMESPACE: Rate = Rate { burst: 50.0, per_second: 0.5 };

/// The limit of lines about the source, the node, and objects that belong to no Service.
const OTHERS: Rate = Rate { burst: 100.0, per_second: 1.0 };

#[derive(Debug, Default)]
pub(super) struct Reports {
    of_services: HashMap<ServiceName, Seen>,
    of_namespaces: HashMap<Box<str>, Bucket>,
    of_source: Seen,
    of_node: Seen,
    of_others: Seen,
    /// The API server, while it has a problem.
    api_server: Option<String>,
    /// How many diagnostics `of_services` has.
    remembered: usize,
    prune_at: usize,
    /// Random, so that no author of objects can choose diagnostics whose hashes collide.
    numbers: RandomState,
}

/// The known diagnostics of one object, or of several objects that count as one.
#[derive(Debug, Default)]
struct Seen {
    /// Sorted.
    numbers: Box<[u64]>,
    lines: Bucket,
    /// Lines that were suppressed since the last logged line.
    suppressed: u64,
}

/// What to log.
#[derive(Debug, Default, PartialEq, Eq)]
struct News {
    lines: Vec<Diagnostic>,
    /// How many earlier lines were suppressed.
    suppressed: u64,
}

impl Reports {
    /// The diagnostics of everything but the source.
    pub(super) fn all(&mut self, found: Vec<Diagnostic>, now: Instant) {
        let mut by_service: BTreeMap<ServiceName, Vec<Diagnostic>> = BTreeMap::new();
        let (mut node, mut others) = (Vec::new(), Vec::new());
        for diagnostic in found {
            match (diagnostic.object.kind, ServiceName::parse(&diagnostic.object.name)) {
                (ObjectKind::Service, Some(name)) => by_service.entry(name).or_default().push(diagnostic),
                (ObjectKind::Node, _) => node.push(diagnostic),
                _ => others.push(diagnostic),
            }
        }
        by_service.into_iter().for_each(|(name, found)| self.service(&name, found, now));
        self.node(node, now);
        self.of_others.news(self.number(others, MOST), &mut at(&OTHERS, now)).log("other objects");
    }

    pub(super) fn service(&mut self, name: &ServiceName, found: Vec<Diagnostic>, now: Instant) {
        self.news_of(name, found, now).log(name);
    }

    /// Returns the logged text as one sentence.
    pub(super) fn source(&mut self, found: Vec<Diagnostic>, now: Instant) -> Option<String> {
        let mut words = None;
        if found.is_empty() && !self.of_source.numbers.is_empty() {
            let said = match self.api_server.take() {
                Some(server) => format!("{server}: all watches are established again"),
                None => "all manifests can be read again".to_owned(),
            };
            info!("{said}");
            words = Some(said);
        }
        let api_server = found.iter().find(|it| it.object.kind == ObjectKind::ApiServer);
        self.api_server = api_server.map(|it| it.object.to_string());
        let news = self.of_source.news(self.number(found, MOST), &mut at(&OTHERS, now));
        news.log("the API server or the manifests");
        words.or_else(|| news.words())
    }

    pub(super) fn node(&mut self, found: Vec<Diagnostic>, now: Instant) {
        self.of_node.news(self.number(found, MOST), &mut at(&OTHERS, now)).log("the node");
    }

    fn news_of(&mut self, name: &ServiceName, found: Vec<Diagnostic>, now: Instant) -> News {
        if found.is_empty() && !self.of_services.contains_key(name) {
            return News::default();
        }
        let mut seen = self.of_services.remove(name).unwrap_or_default();
        self.remembered -= seen.numbers.len();
        let found = self.number(found, MOST - self.remembered);
        let namespace = self.of_namespaces.entry(name.namespace().into()).or_default();
        let mut may_log = |lines: &mut Bucket| {
            let may = lines.left(&SERVICE, now) >= 1.0 && namespace.left(&NAMESPACE, now) >= 1.0;
            if may {
                lines.spend(&SERVICE, 1.0, now);
                namespace.spend(&NAMESPACE, 1.0, now);
            }
            may
        };
        let news = seen.news(found, &mut may_log);
        self.remembered += seen.numbers.len();
        self.of_services.insert(name.clone(), seen);
        self.forget_what_is_over(now);
        news
    }

    /// Adds the hash to each diagnostic, sorts by hash, and keeps at most `room`.
    fn number(&self, found: Vec<Diagnostic>, room: usize) -> Vec<(u64, Diagnostic)> {
        let mut numbered: Vec<_> =
            found.into_iter().map(|diagnostic| (self.numbers.hash_one(&diagnostic), diagnostic)).collect();
        numbered.sort();
        numbered.dedup_by_key(|(number, _)| *number);
        let beyond = numbered.len().saturating_sub(room);
        numbered.truncate(room);
        log::count_suppressed(beyond as u64);
        numbered
    }

    /// An object without problems is remembered until its log limit is fully available again.
    fn forget_what_is_over(&mut self, now: Instant) {
        if self.of_services.len() + self.of_namespaces.len() > self.prune_at {
            self.of_services.retain(|_, seen| !seen.numbers.is_empty() || !seen.lines.is_full(&SERVICE, now));
            self.of_namespaces.retain(|_, lines| !lines.is_full(&NAMESPACE, now));
            self.prune_at = (2 * (self.of_services.len() + self.of_namespaces.len())).max(1000);
        }
    }
}

/// Allows lines within this rate.
fn at(rate: &Rate, now: Instant) -> impl FnMut(&mut Bucket) -> bool {
    move |lines| {
        let may = lines.left(rate, now) >= 1.0;
        if may {
            lines.spend(rate, 1.0, now);
        }
        may
    }
}

impl Seen {
    /// `found` are the present diagnostics, sorted by hash.
    fn news(&mut self, found: Vec<(u64, Diagnostic)>, may_log: &mut impl FnMut(&mut Bucket) -> bool) -> News {
        let numbers = found.iter().map(|(number, _)| *number).collect();
        let known = std::mem::replace(&mut self.numbers, numbers);
        let is_new = |(number, _): &(u64, Diagnostic)| known.binary_search(number).is_err();
        let mut lines: Vec<_> = found.into_iter().filter(is_new).map(|(_, diagnostic)| diagnostic).collect();
        lines.sort();
        let logged = lines.iter().take_while(|_| may_log(&mut self.lines)).count();
        let beyond = (lines.len() - logged) as u64;
        log::count_suppressed(beyond);
        lines.truncate(logged);
        let before = if logged > 0 { std::mem::take(&mut self.suppressed) } else { 0 };
        self.suppressed += beyond;
        News { lines, suppressed: before }
    }
}

impl News {
    fn words(&self) -> Option<String> {
        let first = self.lines.first()?;
        Some(match self.lines.len() - 1 {
            0 => first.to_string(),
            more => format!("{first} (and {more} more)"),
        })
    }

    fn log(&self, about: impl Display) {
        if self.suppressed > 0 {
            warn!("{} earlier log lines about {about} were suppressed: too many of them", self.suppressed);
        }
        self.lines.iter().for_each(|diagnostic| warn!("{diagnostic}"));
    }
}

#[cfg(test)]
mod tests;
