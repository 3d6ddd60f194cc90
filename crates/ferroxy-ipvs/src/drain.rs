//! Draining endpoints: how long a removed endpoint stays with weight 0.
//!
//! Pure: connection counts and the time are arguments. An endpoint is removed when its last connection has ended, or after
//! the limit.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use crate::plan::{Op, Plan};
use crate::state::Address;

/// How long an endpoint that was removed may keep its connections.
pub const LIMIT: Duration = Duration::from_secs(15 * 60);

#[derive(Debug)]
pub struct Drains {
    limit: Duration,
    /// When draining started, by the clock of `due`.
    since: BTreeMap<(Address, SocketAddr), Duration>,
}

impl Drains {
    pub fn new(limit: Duration) -> Drains {
        Drains { limit, since: BTreeMap::new() }
    }

    pub fn is_empty(&self) -> bool {
        self.since.is_empty()
    }

    pub fn len(&self) -> usize {
        self.since.len()
    }

    /// The virtual servers whose connections must be counted before calling [`due`](Drains::due).
    pub fn servers(&self) -> impl Iterator<Item = Address> {
        let mut last = None;
        self.since
            .keys()
            .map(|(address, _)| *address)
            .filter(move |address| last.replace(*address) != Some(*address))
    }

    /// Notes an operation that was applied.
    pub fn note(&mut self, op: &Op, now: Duration) {
        match op {
            // For an endpoint that an earlier run left draining, the time starts again: the kernel does not store when draining started.
            Op::Drain(address, endpoint) => drop(self.since.entry((*address, *endpoint)).or_insert(now)),
            Op::Revive(address, endpoint) | Op::RemoveEndpoint(address, endpoint) => {
                self.since.remove(&(*address, *endpoint));
            }
            Op::RemoveServer(gone) => self.since.retain(|(address, _), _| address != gone),
            _ => {}
        }
    }

    /// The endpoints to remove now. `connections` returns an endpoint's number of connections; `None` if it no longer exists.
    pub fn due(&mut self, now: Duration, connections: impl Fn(&Address, &SocketAddr) -> Option<u32>) -> Plan {
        let mut due = Vec::new();
        self.since.retain(|(address, endpoint), since| match connections(address, endpoint) {
            None => false,
            Some(count) => {
                if count == 0 || now.saturating_sub(*since) >= self.limit {
                    due.push(Op::RemoveEndpoint(*address, *endpoint));
                }
                // `note` forgets the endpoint after it was removed.
                true
            }
        });
        due.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use ferroxy_core::Protocol;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn address(port: u16) -> Address {
        Address { ip: [10, 96, 0, 80].into(), protocol: Protocol::Tcp, port }
    }

    fn endpoint(last: u8) -> SocketAddr {
        ([10, 244, 1, last], 80).into()
    }

    #[test]
    fn goes_with_its_last_connection_or_at_the_limit() {
        let mut drains = Drains::new(MINUTE);
        drains.note(&Op::Drain(address(80), endpoint(5)), Duration::ZERO);
        drains.note(&Op::Drain(address(80), endpoint(6)), Duration::ZERO);
        let at = |drains: &mut Drains, second| {
            let connections = |_: &Address, found: &SocketAddr| Some(u32::from(*found == endpoint(5)));
            drains.due(Duration::from_secs(second), connections).into_ops()
        };
        let remove = |last| Op::RemoveEndpoint(address(80), endpoint(last));
        assert_eq!(at(&mut drains, 1), [remove(6)]);
        assert_eq!(at(&mut drains, 1), [remove(6)], "due until it was removed");
        drains.note(&remove(6), Duration::ZERO);
        assert_eq!(at(&mut drains, 59), []);
        assert_eq!(at(&mut drains, 60), [remove(5)]);
        drains.note(&remove(5), Duration::ZERO);
        assert!(drains.is_empty());
    }

    #[test]
    fn what_came_back_or_vanished_is_forgotten() {
        let mut drains = Drains::new(MINUTE);
        for port in [80, 81, 82] {
            drains.note(&Op::Drain(address(port), endpoint(5)), Duration::ZERO);
        }
        assert_eq!(drains.servers().count(), 3);
        drains.note(&Op::Revive(address(80), endpoint(5)), Duration::ZERO);
        drains.note(&Op::RemoveServer(address(81)), Duration::ZERO);
        assert_eq!(drains.servers().collect::<Vec<_>>(), [address(82)]);
        assert!(drains.due(MINUTE, |_, _| None).is_empty());
        assert!(drains.is_empty());
    }
}
