//! The thread that sends probes. It runs while there is something to probe; no other thread waits for it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use ferroxy_core::ServiceName;
use ferroxy_core::event::Verdict;
use ferroxy_core::resolve::Probing;
use tokio::sync::Notify;
use tokio::time::timeout_at;
use tracing::warn;

use crate::Outcome;
use crate::dial::dial;
use crate::schedule::{Attempt, Figures, Scheduler};

/// Callbacks of the thread. None of them may block.
pub struct Hooks {
    /// Called on the new thread, before anything else.
    pub begin: Box<dyn Fn() + Send + Sync>,
    /// A verdict changed. Returns false if the agent has ended.
    pub deliver: Box<dyn Fn(Verdict) -> bool + Send + Sync>,
    /// A probe of the endpoint at this address and port passed, whether or not the verdict changes. Without a port, the probe
    /// has a port of its own and speaks for all endpoints at the address.
    pub passed: Box<dyn Fn(IpAddr, Option<u16>) + Send + Sync>,
    /// Whether a Service is known to have no traffic on this node.
    pub is_idle: Box<dyn Fn(&ServiceName) -> bool + Send + Sync>,
}

/// The agent's interface to the thread.
#[derive(Debug)]
pub struct Prober {
    hooks: Arc<Hooks>,
    asking: BTreeSet<ServiceName>,
    running: Option<Arc<Mailbox>>,
    figures: Arc<Mutex<Figures>>,
}

/// The inputs of the thread: what to probe from now on (only the newest request of each Service), and ended probes.
#[derive(Debug, Default)]
struct Mailbox {
    state: Mutex<State>,
    /// Notified when the state has changed.
    news: Notify,
}

#[derive(Debug, Default)]
struct State {
    wanted: BTreeMap<ServiceName, Option<Probing>>,
    ended: Vec<(u64, Outcome)>,
    is_over: bool,
}

impl Prober {
    /// Does not start the thread yet.
    pub fn new(hooks: Hooks) -> Prober {
        let figures = Arc::default();
        Prober { hooks: Arc::new(hooks), asking: BTreeSet::new(), running: None, figures }
    }

    /// Sets what to probe for a Service from now on.
    pub fn set(&mut self, service: &ServiceName, wanted: Option<Probing>) {
        let wanted = wanted.filter(|probing| !probing.targets.is_empty());
        match &wanted {
            Some(_) => drop(self.asking.insert(service.clone())),
            None if !self.asking.remove(service) => return,
            None => {}
        }
        if self.asking.is_empty() {
            self.stop();
        } else if let Some(mailbox) = self.running() {
            mailbox.state().wanted.insert(service.clone(), wanted);
            mailbox.news.notify_one();
        }
    }

    /// The counts of events since the first probe, and the current numbers of endpoints.
    pub fn figures(&self) -> impl Fn() -> Figures + Send + Sync + use<> {
        let figures = Arc::clone(&self.figures);
        move || *lock(&figures)
    }

    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    fn running(&mut self) -> Option<&Mailbox> {
        if self.running.is_none() {
            match start(&self.hooks, &self.figures) {
                Ok(mailbox) => self.running = Some(mailbox),
                Err(error) => warn!("endpoints are not probed: cannot start a thread: {error}"),
            }
        }
        self.running.as_deref()
    }

    fn stop(&mut self) {
        if let Some(mailbox) = self.running.take() {
            let mut state = mailbox.state();
            state.is_over = true;
            let mut figures = lock(&self.figures);
            (figures.endpoints, figures.left_out) = (0, 0);
            drop(state);
            mailbox.news.notify_one();
        }
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        self.stop();
    }
}

fn start(hooks: &Arc<Hooks>, figures: &Arc<Mutex<Figures>>) -> io::Result<Arc<Mailbox>> {
    let mailbox = Arc::new(Mailbox::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (hooks, figures, own) = (Arc::clone(hooks), Arc::clone(figures), Arc::clone(&mailbox));
    thread::Builder::new().name("prober".into()).spawn(move || {
        (hooks.begin)();
        let scheduler = Scheduler::new(RandomState::new().hash_one(()));
        runtime.block_on(Probes { scheduler, mailbox: own, hooks, figures }.run());
    })?;
    Ok(mailbox)
}

/// The state of the thread.
struct Probes {
    scheduler: Scheduler,
    mailbox: Arc<Mailbox>,
    hooks: Arc<Hooks>,
    figures: Arc<Mutex<Figures>>,
}

impl Probes {
    async fn run(&mut self) {
        while self.take_news() {
            for attempt in self.scheduler.start(Instant::now()) {
                tokio::spawn(probe(attempt, Arc::clone(&self.mailbox)));
            }
            self.show_figures();
            let news = self.mailbox.news.notified();
            match self.scheduler.next() {
                // After the timeout and after a notification alike, there is something to do.
                Some(at) => drop(timeout_at(at.into(), news).await),
                None => news.await,
            }
        }
    }

    fn show_figures(&mut self) {
        let state = self.mailbox.state();
        // After `stop`, another thread may already write the figures.
        if !state.is_over {
            lock(&self.figures).add(self.scheduler.figures());
        }
    }

    /// Processes the inputs. Returns false when the thread must end.
    fn take_news(&mut self) -> bool {
        let State { wanted, ended, is_over } = std::mem::take(&mut *self.mailbox.state());
        let now = Instant::now();
        // Ended probes come first: a verdict about an endpoint that is removed now is useless, but harmless.
        for (id, outcome) in ended {
            if let (Outcome::Passed, Some((ip, port))) = (outcome, self.scheduler.endpoint(id)) {
                (self.hooks.passed)(ip, port);
            }
            let is_idle = |service: &ServiceName| (self.hooks.is_idle)(service);
            let verdict = self.scheduler.ended(id, outcome, is_idle, now, seconds_since_1970());
            if verdict.is_some_and(|verdict| !(self.hooks.deliver)(verdict)) {
                return false;
            }
        }
        for (service, wanted) in wanted {
            self.scheduler.replace(&service, wanted, now);
        }
        !is_over
    }
}

async fn probe(attempt: Attempt, mailbox: Arc<Mailbox>) {
    let outcome = dial(attempt.target, &attempt.probe).await;
    mailbox.state().ended.push((attempt.id, outcome));
    mailbox.news.notify_one();
}

impl Mailbox {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// A poisoned lock is safe to use: every change is one assignment or insertion, so a panic leaves the value whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn seconds_since_1970() -> i64 {
    #[allow(clippy::disallowed_methods, reason = "for people")]
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hooks")
    }
}
