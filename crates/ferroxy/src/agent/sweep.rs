//! Removes stale UDP connections after the rules have changed, on a thread of its own: programming never waits for it.
//!
//! ```text
//! agent ──touched──▶ frontends to look at ◀──judged with── sweeper: list, judge, delete; again what failed
//! ```
//! What is to be done is kept until it has been done. A connection is judged by what is true at that moment, not when the
//! work was ordered: an endpoint that came meanwhile keeps its connections.

mod stale;

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ferroxy_core::intent::NodePortAddresses;
use ferroxy_core::{Facts, Family, Protocol, ServiceName, resolve};
use ferroxy_netlink::conntrack::{Connection, Entry, is_missing};
use ferroxy_netlink::error::Error;
use tracing::{info, warn};

use super::queue::backoff;
use crate::dataplane::Acknowledged;
use crate::serve::Status;
use stale::{Endpoints, Expectation, Frontends, Rule};

/// How long after a change it begins: a packet that met the rules of before may still be on its way into the table of
/// connections, and changes that come together are looked at together.
const SETTLE: Duration = Duration::from_millis(50);

/// How many connections are judged and deleted at once.
const CHUNK: usize = 512;

/// The agent's end.
#[derive(Debug)]
pub struct Sweeper {
    /// The UDP frontends that the kernel has.
    known: HashMap<SocketAddr, Known>,
    of_service: HashMap<ServiceName, Vec<SocketAddr>>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Known {
    service: ServiceName,
    /// Who may hold connections to it.
    endpoints: Endpoints,
}

#[derive(Debug, Default)]
struct Shared {
    work: Mutex<Work>,
    more: Condvar,
    /// The kernel's rules may be ahead of `work`: nothing can be judged.
    programming: AtomicBool,
    removed: AtomicU64,
}

#[derive(Debug, Default)]
struct Work {
    frontends: Frontends,
    version: u64,
    stopped: bool,
}

impl Sweeper {
    /// In the network namespace of the calling thread.
    pub fn start(status: Arc<Status>) -> Sweeper {
        let shared = Arc::new(Shared::default());
        let worker = Arc::clone(&shared);
        if let Err(error) = thread::Builder::new().name("sweeper".into()).spawn(move || worker.run(&status)) {
            warn!("stale UDP connections are not removed: cannot start the thread for it: {error}");
            shared.work().stopped = true;
        }
        Sweeper { known: HashMap::new(), of_service: HashMap::new(), shared }
    }

    /// Rules are about to be programmed: from here to [`Sweeper::resume`] no connection is judged, for it may be one to an
    /// endpoint that we have not been told of.
    pub fn pause(&self) {
        self.shared.programming.store(true, Ordering::SeqCst);
    }

    pub fn resume(&self) {
        self.shared.programming.store(false, Ordering::SeqCst);
    }

    /// The kernel has these Services as it has acknowledged.
    pub fn touched<'n>(
        &mut self,
        facts: &Facts,
        kernel: &dyn Acknowledged,
        names: impl IntoIterator<Item = &'n ServiceName>,
    ) {
        let mut work = self.shared.work();
        if work.stopped {
            return;
        }
        for name in names {
            let new = udp_frontends(facts, kernel, name);
            let old = self.of_service.remove(name).unwrap_or_default();
            for frontend in old.into_iter().filter(|frontend| !new.contains_key(frontend)) {
                // It may be another's by now.
                if self.known.get(&frontend).is_some_and(|known| known.service == *name)
                    && let Some(Known { endpoints, .. }) = self.known.remove(&frontend)
                {
                    work.order(name, frontend, Rule::Gone { endpoints });
                }
            }
            if !new.is_empty() {
                self.of_service.insert(name.clone(), new.keys().copied().collect());
            }
            for (frontend, endpoints) in new {
                let known = Known { service: name.clone(), endpoints: endpoints.clone() };
                let before = self.known.insert(frontend, known).map(|known| known.endpoints);
                work.expect(name, frontend, endpoints, before);
            }
        }
        self.shared.more.notify_one();
    }

    /// The Services with UDP frontends.
    pub fn services(&self) -> impl Iterator<Item = &ServiceName> {
        self.of_service.keys()
    }

    /// For a while rules may have been missing: packets went by untranslated.
    pub fn rules_were_missing(&self) {
        let mut work = self.shared.work();
        if work.stopped {
            return;
        }
        for (frontend, Known { service, endpoints }) in &self.known {
            let endpoints = endpoints.clone();
            work.order(service, *frontend, Rule::HeldBy { endpoints, appeared: true });
        }
        self.shared.more.notify_one();
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.shared.work().stopped = true;
        self.shared.more.notify_one();
    }
}

impl Work {
    /// Only these endpoints may hold connections to the frontend. Looks at it only if one of them may be stale now.
    fn expect(
        &mut self,
        service: &ServiceName,
        frontend: SocketAddr,
        endpoints: Endpoints,
        before: Option<Endpoints>,
    ) {
        let appeared = before.as_ref().is_none_or(|before| before.is_empty()) && !endpoints.is_empty();
        let lost = |before: Endpoints| before.iter().any(|it| endpoints.binary_search(it).is_err());
        if appeared || before.is_none_or(lost) {
            self.order(service, frontend, Rule::HeldBy { endpoints, appeared });
        } else if let Some(pending) = self.frontends.get_mut(&frontend)
            && let Rule::HeldBy { endpoints: current, .. } = &mut pending.rule
        {
            // Nobody left, somebody came: what waits to be done is done with him in mind.
            *current = endpoints;
        }
    }

    fn order(&mut self, service: &ServiceName, frontend: SocketAddr, mut rule: Rule) {
        self.version += 1;
        let pending = self.frontends.get(&frontend).map(|pending| &pending.rule);
        if let (Some(Rule::HeldBy { appeared: true, .. }), Rule::HeldBy { appeared, .. }) =
            (pending, &mut rule)
        {
            *appeared = true;
        }
        let expectation = Expectation { service: service.clone(), rule, version: self.version };
        self.frontends.insert(frontend, expectation);
    }

    /// Everything up to `version` has been looked at.
    fn done(&mut self, version: u64) {
        self.frontends.retain(|_, expectation| expectation.version > version);
    }
}

/// The UDP frontends of a Service as they are in the kernel, node ports on each address they answer on.
fn udp_frontends(
    facts: &Facts,
    kernel: &dyn Acknowledged,
    name: &ServiceName,
) -> HashMap<SocketAddr, Endpoints> {
    let ports = kernel.service(name).into_iter().flat_map(|service| &service.ports);
    let mut all = HashMap::new();
    for port in ports.filter(|port| port.protocol == Protocol::Udp) {
        let endpoints: Endpoints = resolve::serving(facts, name, port).into();
        for frontend in &port.frontends {
            let mut add = |ip| drop(all.insert(SocketAddr::new(ip, frontend.port), endpoints.clone()));
            match frontend.address {
                Some(ip) => add(ip),
                None => node_addresses(facts, kernel, port.family).for_each(add),
            }
        }
    }
    all
}

/// Where node ports answer.
fn node_addresses<'f>(
    facts: &'f Facts,
    kernel: &'f dyn Acknowledged,
    family: Family,
) -> impl Iterator<Item = IpAddr> + 'f {
    let addresses = match &kernel.node().family(family).node_port_addresses {
        NodePortAddresses::These(these) => Some(these),
        NodePortAddresses::AllLocal => facts.host_addresses(),
    };
    let of_family = move |ip: &IpAddr| Family::of(*ip) == family && !ip.is_loopback();
    addresses.into_iter().flatten().copied().filter(of_family)
}

/// The sweeper's thread.
impl Shared {
    fn work(&self) -> MutexGuard<'_, Work> {
        // Whoever panicked with it has left it whole: every change is one insertion.
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, status: &Status) {
        let mut failures = 0;
        while let Some(version) = self.wait_for_work() {
            let mut found = Found::default();
            let began = Instant::now();
            let outcome = self.sweep(&mut found);
            for family in Family::ALL {
                status.swept(family, began.elapsed(), found.removed[family as usize]);
            }
            self.tell(&found);
            match outcome {
                Ok(()) => {
                    self.work().done(version);
                    failures = 0;
                }
                Err(error) if is_missing(&error) => {
                    warn!("this kernel cannot list connections ({error}): stale UDP connections stay");
                    let mut work = self.work();
                    (work.stopped, work.frontends) = (true, Frontends::new());
                }
                Err(error) => {
                    let wait = backoff(failures);
                    failures += 1;
                    warn!("cannot remove stale UDP connections: {error}; trying again in {wait:?}");
                    self.wait_after_failure(version, wait);
                }
            }
        }
    }

    /// Waits until there is something to look at, and a little longer. Says up to which version; `None` at the end.
    fn wait_for_work(&self) -> Option<u64> {
        let waiting = |work: &mut Work| work.frontends.is_empty() && !work.stopped;
        let work = self.more.wait_while(self.work(), waiting).unwrap_or_else(PoisonError::into_inner);
        if work.stopped {
            return None;
        }
        drop(work);
        thread::sleep(SETTLE);
        Some(self.work().version)
    }

    /// New work is tried at once, and the rest with it.
    fn wait_after_failure(&self, version: u64, time: Duration) {
        let waiting = |work: &mut Work| work.version == version && !work.stopped;
        drop(self.more.wait_timeout_while(self.work(), time, waiting));
    }

    fn sweep(&self, found: &mut Found) -> Result<(), Error> {
        let filters = stale::filters(&self.work().frontends);
        // One lists while the other deletes: however many there are, a chunk of them is in our memory.
        let (mut lister, mut remover) = (Connection::open()?, Connection::open()?);
        let mut chunk = Vec::with_capacity(CHUNK);
        let mut trouble = None;
        for filter in filters {
            lister.entries(filter, &mut |entry| {
                chunk.push(entry);
                if chunk.len() == CHUNK {
                    trouble = self.remove_stale(&mut chunk, &mut remover, found).err().or(trouble.take());
                }
            })?;
        }
        self.remove_stale(&mut chunk, &mut remover, found)?;
        trouble.map_or(Ok(()), Err)
    }

    /// Judges these connections and deletes the stale ones.
    fn remove_stale(
        &self,
        chunk: &mut Vec<Entry>,
        remover: &mut Connection,
        found: &mut Found,
    ) -> Result<(), Error> {
        {
            let work = self.work_while_not_programming();
            chunk.retain(|entry| {
                let service = stale::stale(&work.frontends, entry);
                found.services.extend(service.cloned());
                service.is_some()
            });
        }
        let family = |entry: &Entry| Family::of(entry.original.destination.ip());
        chunk.sort_unstable_by_key(family);
        let (v4, v6) = chunk.split_at(chunk.partition_point(|entry| family(entry) == Family::V4));
        let outcome = [(Family::V4, v4), (Family::V6, v6)].into_iter().try_for_each(|(family, entries)| {
            let removed = remover.delete(entries)? as u64;
            found.removed[family as usize] += removed;
            self.removed.fetch_add(removed, Ordering::Relaxed);
            Ok(())
        });
        chunk.clear();
        outcome
    }

    /// What we know is as new as the kernel's rules were when the connections were listed.
    fn work_while_not_programming(&self) -> MutexGuard<'_, Work> {
        loop {
            let work = self.work();
            if !self.programming.load(Ordering::SeqCst) || work.stopped {
                return work;
            }
            drop(work);
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn tell(&self, found: &Found) {
        let connections = match found.removed.iter().sum::<u64>() {
            0 => return,
            1 => "1 stale UDP connection".to_owned(),
            n => format!("{n} stale UDP connections"),
        };
        let of = match (found.services.len(), found.services.first()) {
            (1, Some(name)) => name.to_string(),
            (n, _) => format!("{n} Services"),
        };
        info!("removed {connections} of {of} ({} so far)", self.removed.load(Ordering::Relaxed));
    }
}

/// What one look at the table came to.
#[derive(Debug, Default)]
struct Found {
    /// By family.
    removed: [u64; 2],
    services: BTreeSet<ServiceName>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRONTEND: &str = "10.96.0.10:53";

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn endpoints(texts: &[&str]) -> Endpoints {
        texts.iter().map(|text| at(text)).collect()
    }

    fn dns() -> ServiceName {
        ServiceName::new("default", "dns")
    }

    /// One more change of the frontend's endpoints.
    fn change(work: &mut Work, before: Option<&[&str]>, after: &[&str]) {
        work.expect(&dns(), at(FRONTEND), endpoints(after), before.map(endpoints));
    }

    fn pending(work: &Work) -> Option<Rule> {
        work.frontends.get(&at(FRONTEND)).map(|expectation| expectation.rule.clone())
    }

    fn held_by(texts: &[&str], appeared: bool) -> Option<Rule> {
        Some(Rule::HeldBy { endpoints: endpoints(texts), appeared })
    }

    const A: &str = "10.244.1.1:53";
    const B: &str = "10.244.1.2:53";

    #[test]
    fn only_a_loss_or_an_appearance_is_looked_into() {
        let after = |before: Option<&[&str]>, after: &[&str]| {
            let mut work = Work::default();
            change(&mut work, before, after);
            pending(&work)
        };
        assert_eq!(after(Some(&[A, B]), &[A]), held_by(&[A], false));
        assert_eq!(after(Some(&[A]), &[]), held_by(&[], false));
        assert_eq!(after(Some(&[]), &[A]), held_by(&[A], true));
        assert_eq!(after(None, &[A]), held_by(&[A], true));
        assert_eq!(after(None, &[]), held_by(&[], false), "an agent before us may have left connections");
        assert_eq!(after(Some(&[A]), &[A, B]), None);
        assert_eq!(after(Some(&[A]), &[A]), None);
        assert_eq!(after(Some(&[]), &[]), None);
    }

    #[test]
    fn work_that_waits_is_done_by_what_is_true_then() {
        let mut work = Work::default();
        change(&mut work, Some(&[A, B]), &[A]);
        change(&mut work, Some(&[A]), &[A, B]);
        assert_eq!(pending(&work), held_by(&[A, B], false), "the one who came back keeps his connections");

        let mut work = Work::default();
        change(&mut work, None, &[A, B]);
        change(&mut work, Some(&[A, B]), &[B]);
        assert_eq!(pending(&work), held_by(&[B], true), "that it appeared is not forgotten");
        work.order(&dns(), at(FRONTEND), Rule::Gone { endpoints: endpoints(&[B]) });
        assert_eq!(pending(&work), Some(Rule::Gone { endpoints: endpoints(&[B]) }));
        change(&mut work, None, &[A]);
        assert_eq!(pending(&work), held_by(&[A], true));
    }

    #[test]
    fn what_came_during_a_sweep_is_not_done_by_it() {
        let mut work = Work::default();
        change(&mut work, None, &[A, B]);
        let seen = work.version;
        change(&mut work, Some(&[A, B]), &[A]);
        work.done(seen);
        assert_eq!(pending(&work), held_by(&[A], true));
        work.done(work.version);
        assert_eq!(pending(&work), None);
    }
}
