//! Removes stale UDP conntrack entries after changes, on a thread of its own: programming never waits for it.
//!
//! ```text
//! agent ──touched──▶ frontends to check ◀──judged with── sweeper: list, judge, delete; retry what failed
//! ```
//! Work stays queued until it is done. A connection is judged by the rules in force at that moment, not when the work was
//! queued: an endpoint that was added meanwhile keeps its connections. The dataplane provides the table of connections.

mod stale;

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ferroxy_core::intent::NodePortAddresses;
use ferroxy_core::{Facts, Family, Protocol, ServiceName, resolve};
use ferroxy_dataplane::capability::connections::{Connection, SweepsConnections};
use ferroxy_dataplane::{Acknowledged, Failure, FailureKind};
use tracing::{info, warn};

use super::queue::backoff;
use crate::serve::Status;
use stale::{Endpoints, Expectation, Frontends, Rule};

/// How long after a change a sweep begins: a packet that passed the old rules may not be in the table of connections yet,
/// and one sweep serves all changes of that time.
const SETTLE: Duration = Duration::from_millis(50);

/// While this many frontends wait, removed frontends are not added: tenants can create and delete any number of them while
/// sweeps fail. Other waiting frontends are in force, so their number is bounded.
const MOST_WAITING: usize = 100_000;

/// The agent's handle of the sweeper.
#[derive(Debug)]
pub struct Sweeper {
    /// The UDP frontends in force.
    known: HashMap<SocketAddr, Known>,
    of_service: HashMap<ServiceName, Vec<SocketAddr>>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Known {
    service: ServiceName,
    /// The endpoints that may have connections of this frontend.
    endpoints: Endpoints,
}

#[derive(Debug, Default)]
struct Shared {
    work: Mutex<Work>,
    more: Condvar,
    /// The rules may be newer than `work`: no connection can be judged.
    programming: AtomicBool,
    removed: AtomicU64,
}

#[derive(Debug, Default)]
struct Work {
    frontends: Frontends,
    version: u64,
    stopped: bool,
    /// The number of removed frontends that are not checked, because too many wait.
    forgotten: u64,
}

impl Sweeper {
    /// Works in the network namespace of the calling thread.
    pub fn start(mut table: Box<dyn SweepsConnections>, status: Arc<Status>) -> Sweeper {
        let shared = Arc::new(Shared::default());
        let worker = Arc::clone(&shared);
        let run = move || worker.run(&mut *table, &status);
        if let Err(error) = thread::Builder::new().name("sweeper".into()).spawn(run) {
            warn!("stale UDP conntrack entries are not removed: cannot start a thread: {error}");
            shared.work().stopped = true;
        }
        Sweeper { known: HashMap::new(), of_service: HashMap::new(), shared }
    }

    /// While paused, no connection is judged.
    pub fn pause(&self, pause: bool) {
        self.shared.programming.store(pause, Ordering::SeqCst);
    }

    /// The acknowledged state of these Services is in force.
    pub fn touched<'n>(
        &mut self,
        facts: &Facts,
        in_force: &Acknowledged,
        names: impl IntoIterator<Item = &'n ServiceName>,
    ) {
        let mut work = self.shared.work();
        if work.stopped {
            return;
        }
        for name in names {
            let new = udp_frontends(facts, in_force, name);
            let old = self.of_service.remove(name).unwrap_or_default();
            for frontend in old.into_iter().filter(|frontend| !new.contains_key(frontend)) {
                // The frontend may belong to another Service by now.
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

    /// Rules may have been missing for a while, so packets may have passed untranslated.
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
    /// Only these endpoints may hold connections to the frontend. Queues a check only if a connection may be stale now.
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
            // Endpoints were only added: queued work must spare the connections of the new ones.
            *current = endpoints;
        }
    }

    fn order(&mut self, service: &ServiceName, frontend: SocketAddr, mut rule: Rule) {
        self.version += 1;
        let is_new = !self.frontends.contains_key(&frontend);
        if is_new && matches!(rule, Rule::Gone { .. }) && self.frontends.len() >= MOST_WAITING {
            self.forgotten += 1;
            return;
        }
        let pending = self.frontends.get(&frontend).map(|pending| &pending.rule);
        if let (Some(Rule::HeldBy { appeared: true, .. }), Rule::HeldBy { appeared, .. }) =
            (pending, &mut rule)
        {
            *appeared = true;
        }
        let expectation = Expectation { service: service.clone(), rule, version: self.version };
        self.frontends.insert(frontend, expectation);
    }

    /// All work up to `version` is done.
    fn done(&mut self, version: u64) {
        self.frontends.retain(|_, expectation| expectation.version > version);
    }
}

/// The UDP frontends of a Service that are in force; node ports with each address they answer on.
fn udp_frontends(
    facts: &Facts,
    in_force: &Acknowledged,
    name: &ServiceName,
) -> HashMap<SocketAddr, Endpoints> {
    let service = in_force.service(name);
    let ports = service.iter().flat_map(|service| &service.ports);
    let mut all = HashMap::new();
    for port in ports.filter(|port| port.protocol == Protocol::Udp) {
        let endpoints: Endpoints = resolve::serving(facts, name, port).into();
        for frontend in &port.frontends {
            let mut add = |ip| drop(all.insert(SocketAddr::new(ip, frontend.port), endpoints.clone()));
            match frontend.address {
                Some(ip) => add(ip),
                None => node_addresses(facts, in_force, port.family).for_each(add),
            }
        }
    }
    all
}

/// The addresses on which node ports answer.
fn node_addresses<'f>(
    facts: &'f Facts,
    in_force: &'f Acknowledged,
    family: Family,
) -> impl Iterator<Item = IpAddr> + 'f {
    let addresses = match &in_force.node().family(family).node_port_addresses {
        NodePortAddresses::These(these) => Some(these),
        NodePortAddresses::AllLocal => facts.host_addresses(),
    };
    let of_family = move |ip: &IpAddr| Family::of(*ip) == family && !ip.is_loopback();
    addresses.into_iter().flatten().copied().filter(of_family)
}

/// The sweeper's thread.
impl Shared {
    fn work(&self) -> MutexGuard<'_, Work> {
        // A thread that panicked while holding the lock left `Work` consistent: every change is one insertion.
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, table: &mut dyn SweepsConnections, status: &Status) {
        let mut failures = 0;
        while let Some(version) = self.wait_for_work() {
            let mut found = Found::default();
            let began = Instant::now();
            let outcome = self.sweep(table, &mut found);
            for family in Family::ALL {
                status.swept(family, began.elapsed(), found.removed[family as usize]);
            }
            self.log(&found);
            match outcome {
                Ok(()) => {
                    self.work().done(version);
                    failures = 0;
                }
                Err(error) if error.kind == FailureKind::Unsupported => {
                    warn!("stale UDP conntrack entries are not removed: {error}");
                    let mut work = self.work();
                    (work.stopped, work.frontends) = (true, Frontends::new());
                }
                Err(error) => {
                    let wait = backoff(failures);
                    failures += 1;
                    warn!("cannot remove stale UDP conntrack entries: {error}; retrying in {wait:?}");
                    self.log_forgotten();
                    self.wait_after_failure(version, wait);
                }
            }
        }
    }

    /// Waits until there is work, and then for [`SETTLE`]. Returns the version of that work; `None` at the end.
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

    /// Returns early if new work arrives, which is done together with the failed work.
    fn wait_after_failure(&self, version: u64, time: Duration) {
        let waiting = |work: &mut Work| work.version == version && !work.stopped;
        drop(self.more.wait_timeout_while(self.work(), time, waiting));
    }

    fn sweep(&self, table: &mut dyn SweepsConnections, found: &mut Found) -> Result<(), Failure> {
        let selection = stale::selection(&self.work().frontends);
        let Found { removed, services } = found;
        let mut judge = |connections: &[Connection]| {
            let work = self.work_while_not_programming();
            let is_stale = |connection: &Connection| {
                let service = stale::stale(&work.frontends, connection);
                services.extend(service.cloned());
                service.is_some()
            };
            connections.iter().map(is_stale).collect()
        };
        table.sweep(&selection, &mut judge, &mut |family, deleted| {
            removed[family as usize] += deleted;
            self.removed.fetch_add(deleted, Ordering::Relaxed);
        })
    }

    /// Returns `work` when it is at least as new as the rules were when the connections were listed.
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

    fn log_forgotten(&self) {
        let forgotten = std::mem::take(&mut self.work().forgotten);
        if forgotten > 0 {
            warn!(
                "too many UDP frontends wait for removal of stale conntrack entries: those of {forgotten} deleted frontends stay"
            );
        }
    }

    fn log(&self, found: &Found) {
        let connections = match found.removed.iter().sum::<u64>() {
            0 => return,
            1 => "1 stale UDP conntrack entry".to_owned(),
            n => format!("{n} stale UDP conntrack entries"),
        };
        let of = match (found.services.len(), found.services.first()) {
            (1, Some(name)) => name.to_string(),
            (n, _) => format!("{n} Services"),
        };
        info!("removed {connections} of {of} ({} so far)", self.removed.load(Ordering::Relaxed));
    }
}

/// The result of one sweep.
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

    /// The frontend's endpoints change once more.
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

    /// While sweeps fail, a tenant creates and deletes Services.
    #[test]
    fn frontends_that_are_gone_do_not_pile_up() {
        let mut work = Work::default();
        let frontend = |number: usize| SocketAddr::new(IpAddr::from((number as u128).to_be_bytes()), 53);
        for number in 0..MOST_WAITING + 10 {
            work.order(&dns(), frontend(number), Rule::Gone { endpoints: endpoints(&[A]) });
        }
        assert_eq!((work.frontends.len(), work.forgotten), (MOST_WAITING, 10));
        work.order(&dns(), frontend(0), Rule::Gone { endpoints: endpoints(&[A]) });
        assert_eq!(work.forgotten, 10, "it waits already");
        change(&mut work, None, &[A]);
        assert_eq!(pending(&work), held_by(&[A], true), "what is in force is always checked");
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
