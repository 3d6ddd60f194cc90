//! Session affinity: which endpoint a client had, for how long, and for how many clients.

use std::net::{IpAddr, SocketAddr};

use super::lru::Lru;
use crate::clock::Nanos;

/// The sticky clients of one pool. Whether an endpoint still exists is up to the caller.
#[derive(Debug)]
pub struct Sticky {
    clients: Lru<IpAddr, Entry>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    endpoint: SocketAddr,
    used: Nanos,
}

impl Sticky {
    /// Beyond `limit`, the client that was not seen for the longest time is evicted.
    pub fn new(limit: usize) -> Sticky {
        Sticky { clients: Lru::new(limit) }
    }

    /// The client's endpoint, unless its last use is `timeout` ago. Counts as use.
    pub fn recall(&mut self, client: IpAddr, timeout: Nanos, now: Nanos) -> Option<SocketAddr> {
        self.forget_expired(timeout, now);
        let entry = self.clients.touch(&client)?;
        entry.used = now;
        Some(entry.endpoint)
    }

    pub fn remember(&mut self, client: IpAddr, endpoint: SocketAddr, now: Nanos) {
        self.clients.insert(client, Entry { endpoint, used: now });
    }

    /// The map is in the order of use, so that expired entries are the oldest. Each is removed once.
    fn forget_expired(&mut self, timeout: Nanos, now: Nanos) {
        while self.clients.oldest().is_some_and(|entry| entry.used.saturating_add(timeout) <= now) {
            self.clients.remove_oldest();
        }
    }
}
