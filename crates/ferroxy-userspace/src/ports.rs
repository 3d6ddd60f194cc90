//! Assigns the proxy's own ports. A Service port keeps its port for as long as it exists, so that connections which the
//! kernel still translates keep working; after a restart it is read from the rules.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included};
use std::ops::RangeInclusive;

use ferroxy_core::ServiceName;
pub use ferroxy_pools::{CLUSTER, LOCAL};
use ferroxy_proxy::Key;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ports {
    range: RangeInclusive<u16>,
    /// By the key of a pool, or of a redirect listener.
    by_key: BTreeMap<Key, u16>,
    taken: BTreeSet<u16>,
    /// Ports that other programs have.
    unusable: BTreeSet<u16>,
    /// Where the search for a free port begins.
    next: u16,
}

impl Ports {
    pub fn new(range: RangeInclusive<u16>) -> Ports {
        let next = *range.start();
        Ports { range, by_key: BTreeMap::new(), taken: BTreeSet::new(), unusable: BTreeSet::new(), next }
    }

    pub fn get(&self, key: &str) -> Option<u16> {
        self.by_key.get(key).copied()
    }

    /// The port of this key: the one it has, or a free one. `None` when all are taken.
    pub fn assign(&mut self, key: &Key) -> Option<u16> {
        if let Some(port) = self.get(key) {
            return Some(port);
        }
        let (first, last) = (*self.range.start(), *self.range.end());
        let free = (self.next.max(first)..=last).chain(first..self.next);
        let port =
            free.into_iter().find(|port| !self.taken.contains(port) && !self.unusable.contains(port))?;
        self.next = if port >= last { first } else { port + 1 };
        self.enter(key, port);
        Some(port)
    }

    /// A port for each of these keys. If there are too few, none of them takes one: the rest is for others.
    pub fn assign_all(&mut self, keys: &[Key]) -> bool {
        let new: Vec<&Key> = keys.iter().filter(|key| self.get(key).is_none()).collect();
        let is_enough = new.iter().all(|key| self.assign(key).is_some());
        if !is_enough {
            new.into_iter().for_each(|key| self.release(key));
        }
        is_enough
    }

    /// Records a port that an earlier run assigned, unless it is outside of the range or another key has it.
    pub fn adopt(&mut self, key: &Key, port: u16) {
        if self.range.contains(&port) && !self.taken.contains(&port) && !self.by_key.contains_key(key) {
            self.enter(key, port);
        }
    }

    pub fn release(&mut self, key: &str) {
        if let Some(port) = self.by_key.remove(key) {
            self.taken.remove(&port);
        }
    }

    /// Releases the ports of a Service, except for these keys. Includes ports of a refused Service, which were never used.
    pub fn keep_only(&mut self, service: &ServiceName, wanted: &BTreeSet<Key>) {
        // In a key, the Service's name is followed by the name of a port, or by a port's number (`fragment::pool_key`).
        let ranges =
            [(':', ';'), ('#', '$')].map(|(from, to)| format!("{service}{from}")..format!("{service}{to}"));
        let keys = ranges
            .iter()
            .flat_map(|it| self.by_key.range::<str, _>((Included(&*it.start), Excluded(&*it.end))));
        let unwanted: Vec<Key> =
            keys.map(|(key, _)| key).filter(|key| !wanted.contains(*key)).cloned().collect();
        unwanted.iter().for_each(|key| self.release(key));
    }

    /// Another program has the port of this key: it gets another one the next time.
    pub fn give_up(&mut self, key: &str) {
        if let Some(port) = self.by_key.remove(key) {
            self.taken.remove(&port);
            self.unusable.insert(port);
        }
    }

    /// Ports that were in use may be free by now.
    pub fn forgive(&mut self) {
        self.unusable.clear();
    }

    fn enter(&mut self, key: &Key, port: u16) {
        self.by_key.insert(key.clone(), port);
        self.taken.insert(port);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        text.into()
    }

    #[test]
    fn a_key_keeps_its_port_and_a_released_one_is_used_last() {
        let mut ports = Ports::new(100..=102);
        assert_eq!(["a", "b", "a"].map(|it| ports.assign(&key(it))), [Some(100), Some(101), Some(100)]);
        ports.release("a");
        assert_eq!(["c", "d", "e"].map(|it| ports.assign(&key(it))), [Some(102), Some(100), None]);
    }

    #[test]
    fn adopted_ports_are_respected_and_ports_of_others_avoided() {
        let mut ports = Ports::new(100..=102);
        ports.adopt(&key("a"), 101);
        ports.adopt(&key("b"), 101);
        ports.adopt(&key("c"), 99);
        assert_eq!(["a", "b", "c"].map(|it| ports.get(it)), [Some(101), None, None]);
        ports.give_up("a");
        assert_eq!(["b", "a", "c"].map(|it| ports.assign(&key(it))), [Some(100), Some(102), None]);
        ports.forgive();
        assert_eq!(ports.assign(&key("c")), Some(101));
    }

    #[test]
    fn too_few_ports_are_left_to_others() {
        let mut ports = Ports::new(100..=102);
        assert!(ports.assign_all(&["a", "b"].map(key)));
        assert!(!ports.assign_all(&["b", "c", "d"].map(key)));
        assert_eq!(["a", "b", "c", "d"].map(|it| ports.get(it)), [Some(100), Some(101), None, None]);
        assert!(ports.assign_all(&["b", "e"].map(key)));
    }

    #[test]
    fn a_service_releases_its_own_ports_only() {
        let mut ports = Ports::new(100..=110);
        let keys = [
            "ns/web#80/tcp",
            "ns/web:a#80/tcp",
            "ns/web:b#81/tcp",
            "ns/web-2#80/tcp",
            "ns/we#80/tcp",
            "ns/web2:a#80/tcp",
        ];
        assert!(ports.assign_all(&keys.map(key)));
        ports.keep_only(&ServiceName::new("ns", "web"), &[key("ns/web:a#80/tcp")].into());
        let left: Vec<&str> = keys.into_iter().filter(|it| ports.get(it).is_some()).collect();
        assert_eq!(left, ["ns/web:a#80/tcp", "ns/web-2#80/tcp", "ns/we#80/tcp", "ns/web2:a#80/tcp"]);
    }
}
