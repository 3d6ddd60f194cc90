//! A pool while it is served: its snapshot, its sticky clients, and its counters.

pub mod endpoint;
#[cfg(test)]
mod laws;
pub mod lease;
pub mod snapshot;
mod totals;

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::{ArcSwap, Guard};
use tokio::sync::Notify;

use crate::clock::{self, Nanos, nanos};
use crate::config::{Key, Pool as Config};
use crate::pick::affinity::Sticky;
use crate::pick::random::Random;
use crate::pick::{self, ejection::Record};
use endpoint::Endpoint;
use snapshot::Snapshot;
use totals::Totals;

#[derive(Debug)]
pub struct Pool {
    #[cfg_attr(not(test), allow(dead_code, reason = "tests and debug output tell pools apart by it"))]
    pub key: Key,
    snapshot: ArcSwap<Snapshot>,
    /// How many choices were made.
    turn: AtomicUsize,
    /// In parts, each with the clients of some addresses: a lock is held for one lookup, and never during a change.
    sticky: [Mutex<Option<Sticky>>; STICKY_PARTS],
    /// Notified about each change, for connections that wait for an endpoint.
    pub changed: Notify,
    pub totals: Totals,
}

const STICKY_PARTS: usize = 16;

impl Pool {
    /// A pool without endpoints.
    pub fn new(key: Key) -> Pool {
        Pool {
            key,
            snapshot: ArcSwap::from_pointee(Snapshot::empty()),
            turn: AtomicUsize::new(0),
            sticky: [const { Mutex::new(None) }; STICKY_PARTS],
            changed: Notify::new(),
            totals: Totals::default(),
        }
    }

    pub fn snapshot(&self) -> Guard<Arc<Snapshot>> {
        self.snapshot.load()
    }

    /// Replaces the configuration of the pool. Removed endpoints keep their connections.
    pub fn change(&self, config: Config) {
        let now = clock::now();
        let config = Arc::new(config);
        let before = self.snapshot.rcu(|before| Snapshot::next(before, config.clone(), now));
        let after = self.snapshot.load();
        for endpoint in before.endpoints.iter().filter(|it| after.find(it.address).is_none()) {
            endpoint.leave();
            self.totals.departed(endpoint.clone());
        }
        self.changed.notify_waiters();
    }

    /// Chooses an endpoint for a client: the client's previous one (affinity), or one by the policy. `tried` are the
    /// endpoints that failed for this connection.
    pub fn choose(&self, client: IpAddr, tried: &[SocketAddr], random: &mut Random) -> Option<Arc<Endpoint>> {
        let now = clock::now();
        let snapshot = self.up_to_date(now);
        let config = &snapshot.config;
        let timeout = config.affinity.map(|it| nanos(it.timeout));
        if let Some(timeout) = timeout
            && let Some(endpoint) = self.recall(&snapshot, client, tried, timeout, now)
        {
            return Some(endpoint);
        }
        let candidates = snapshot.candidates(tried, now);
        // A retry takes the next member and does not advance the turn: otherwise the next client would meet the failed
        // endpoint again.
        let turn = if tried.is_empty() { self.turn.fetch_add(1, Relaxed) } else { self.turn.load(Relaxed) };
        let member = pick::choose(config.policy, &candidates, turn, random)?;
        let endpoint = candidates.endpoint(member).clone();
        if timeout.is_some() {
            let mut sticky = self.sticky(client);
            let limit = config.limits.sticky_clients as usize / STICKY_PARTS;
            sticky.get_or_insert_with(|| Sticky::new(limit)).remember(client, endpoint.address, now);
        }
        Some(endpoint)
    }

    /// A dial failed. After too many failures in a row, the endpoint is ejected for a while; true if the ejection
    /// begins now.
    pub fn dial_failed(&self, endpoint: &Endpoint) -> bool {
        let failures = endpoint.failed();
        let Some(rule) = self.snapshot().config.ejection else { return false };
        if failures < rule.failures {
            return false;
        }
        let now = clock::now();
        endpoint.succeeded();
        self.replace_record(endpoint.address, |record| {
            // Dials that began before the ejection may fail after it.
            (!record.is_ejected(now)).then(|| record.ejected(&rule, now))
        })
    }

    /// Ends an ejection.
    pub fn pardon(&self, address: SocketAddr) {
        self.replace_record(address, |record| (record != Record::default()).then(Record::default));
    }

    pub fn is_ejected(&self, address: SocketAddr) -> bool {
        let (snapshot, now) = (self.snapshot(), clock::now());
        snapshot.find(address).is_some_and(|place| snapshot.is_ejected(place, now))
    }

    /// True if this ejects the endpoint.
    fn replace_record(&self, address: SocketAddr, replace: impl Fn(Record) -> Option<Record>) -> bool {
        let now = clock::now();
        let before = self.snapshot.rcu(|snapshot| {
            let place = snapshot.find(address);
            let replaced = place.and_then(|place| Some((place, replace(snapshot.record(place))?)));
            match replaced {
                Some(_) => Arc::new(snapshot.with_record(replaced, now)),
                None => snapshot.clone(),
            }
        });
        let after = self.snapshot.load();
        let Some(place) = before.find(address).filter(|_| !Arc::ptr_eq(&before, &after)) else {
            return false;
        };
        let is_new =
            !before.is_ejected(place, now) && after.find(address).is_some_and(|it| after.is_ejected(it, now));
        if is_new {
            before.endpoints[place].tally.ejections.fetch_add(1, Relaxed);
        }
        if after.usable.in_panic && !before.usable.in_panic {
            self.totals.panics.fetch_add(1, Relaxed);
        }
        is_new
    }

    /// The snapshot, without ejections that have ended.
    fn up_to_date(&self, now: Nanos) -> Guard<Arc<Snapshot>> {
        let snapshot = self.snapshot.load();
        if now < snapshot.usable.until {
            return snapshot;
        }
        self.snapshot.rcu(|snapshot| snapshot.with_record(None, now));
        self.snapshot.load()
    }

    fn recall(
        &self,
        snapshot: &Snapshot,
        client: IpAddr,
        tried: &[SocketAddr],
        timeout: Nanos,
        now: Nanos,
    ) -> Option<Arc<Endpoint>> {
        let address = self.sticky(client).as_mut()?.recall(client, timeout, now)?;
        let place = snapshot.find(address).filter(|_| !tried.contains(&address))?;
        snapshot.is_usable(place).then(|| snapshot.endpoints[place].clone())
    }

    fn sticky(&self, client: IpAddr) -> MutexGuard<'_, Option<Sticky>> {
        let last = match client {
            IpAddr::V4(it) => it.octets()[3],
            // Hosts often differ in the last octets, networks before them.
            IpAddr::V6(it) => it.octets()[15] ^ it.octets()[7],
        };
        let part = &self.sticky[usize::from(last) % STICKY_PARTS];
        part.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
