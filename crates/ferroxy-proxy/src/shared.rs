//! State that all threads of an engine share besides pools and frontends: settings, the budget of connections,
//! counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use tokio::sync::Notify;

use crate::config::Settings;
use crate::counters::EngineCounters;
use crate::ejected::Ejected;
use crate::system;

/// Descriptors of a connection: two sockets, and now and then a pipe.
const DESCRIPTORS: usize = 2;

#[derive(Debug)]
pub struct Shared {
    pub settings: Settings,
    pub threads: usize,
    is_superseded: AtomicBool,
    /// Connections at a time.
    limit: usize,
    open: AtomicUsize,
    /// Notified when a connection ends while accepting is paused.
    pub room: Notify,
    is_waiting: AtomicBool,
    pub tally: Tally,
    pub ejected: Ejected,
}

#[derive(Debug, Default)]
pub struct Tally {
    pub accepted: AtomicU64,
    pub unrouted: AtomicU64,
    pub pauses: AtomicU64,
    pub full: AtomicU64,
    pub shed: AtomicU64,
    pub sessions: AtomicU64,
    pub evicted_sessions: AtomicU64,
}

impl Shared {
    pub fn new(settings: Settings, threads: usize) -> Shared {
        let by_descriptors = system::descriptor_limit().map(|descriptors| {
            descriptors.saturating_sub(settings.spare_descriptors).max(DESCRIPTORS) / DESCRIPTORS
        });
        let limit = settings.connections.or(by_descriptors).unwrap_or(usize::MAX);
        Shared {
            settings,
            threads,
            is_superseded: AtomicBool::new(false),
            limit,
            open: AtomicUsize::new(0),
            room: Notify::new(),
            is_waiting: AtomicBool::new(false),
            tally: Tally::default(),
            ejected: Ejected::default(),
        }
    }

    /// Whether one more connection may be accepted. After `false`, wait for [`Shared::room`].
    pub fn has_room(&self) -> bool {
        if self.open.load(Relaxed) < self.limit {
            return true;
        }
        self.is_waiting.store(true, Relaxed);
        // A connection may have ended since the first check.
        self.open.load(Relaxed) < self.limit
    }

    /// A successor listens on our sockets.
    #[cfg(target_os = "linux")]
    pub fn supersede(&self) {
        self.is_superseded.store(true, Relaxed);
    }

    pub fn is_superseded(&self) -> bool {
        self.is_superseded.load(Relaxed)
    }

    pub fn open_connections(&self) -> usize {
        self.open.load(Relaxed)
    }

    pub fn counters(&self) -> EngineCounters {
        let tally = &self.tally;
        EngineCounters {
            accepted: tally.accepted.load(Relaxed),
            active: self.open.load(Relaxed) as u64,
            unrouted: tally.unrouted.load(Relaxed),
            pauses: tally.pauses.load(Relaxed),
            full: tally.full.load(Relaxed),
            shed: tally.shed.load(Relaxed),
            sessions: tally.sessions.load(Relaxed),
            evicted_sessions: tally.evicted_sessions.load(Relaxed),
        }
    }
}

/// An accepted connection, as long as it lasts.
#[derive(Debug)]
pub struct Accepted(Arc<Shared>);

impl Accepted {
    pub fn count(shared: &Arc<Shared>) -> Accepted {
        shared.tally.accepted.fetch_add(1, Relaxed);
        shared.open.fetch_add(1, Relaxed);
        Accepted(shared.clone())
    }

    pub fn shared(&self) -> &Arc<Shared> {
        &self.0
    }
}

impl Drop for Accepted {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
        if self.0.is_waiting.load(Relaxed) && self.0.is_waiting.swap(false, Relaxed) {
            self.0.room.notify_waiters();
        }
    }
}
