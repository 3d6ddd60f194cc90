//! The sessions of one thread, bounded in total and for each source. Pure: evicted sessions are returned.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use crate::pick::lru::Lru;

/// A client of one listener, and the local address that the client used.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SessionKey {
    pub listener: u64,
    pub client: SocketAddr,
    pub local: Option<IpAddr>,
}

#[derive(Debug)]
pub struct Sessions<V> {
    all: Lru<SessionKey, V>,
    /// The sessions of each source, in the order of their last use.
    sources: HashMap<IpAddr, Lru<SessionKey, ()>>,
    per_source: usize,
}

impl<V> Sessions<V> {
    pub fn new(total: usize, per_source: usize) -> Sessions<V> {
        Sessions { all: Lru::new(total), sources: HashMap::new(), per_source }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn touch(&mut self, key: &SessionKey) -> Option<&V> {
        if let Some(of_source) = self.sources.get_mut(&key.client.ip()) {
            of_source.touch(key);
        }
        self.all.touch(key).map(|value| &*value)
    }

    pub fn peek(&self, key: &SessionKey) -> Option<&V> {
        self.all.peek(key)
    }

    /// Adds a session whose key is new. Returns the evicted sessions: the session that was idle for the longest time, of the
    /// same source if it has too many, and of all if there are too many altogether.
    pub fn insert(&mut self, key: SessionKey, value: V) -> Vec<V> {
        let mut gone = Vec::new();
        let of_source = self.sources.entry(key.client.ip()).or_insert_with(|| Lru::new(self.per_source));
        if let Some((idle, ())) = of_source.insert(key.clone(), ()) {
            gone.extend(self.all.remove(&idle));
        }
        if let Some((key, value)) = self.all.insert(key, value) {
            self.forget_source(&key);
            gone.push(value);
        }
        gone
    }

    pub fn remove(&mut self, key: &SessionKey) -> Option<V> {
        let value = self.all.remove(key)?;
        self.forget_source(key);
        Some(value)
    }

    /// Removes all sessions of a listener.
    pub fn remove_listener(&mut self, listener: u64) -> Vec<V> {
        let keys = self.sources.values().flat_map(Lru::keys).filter(|key| key.listener == listener);
        let keys: Vec<SessionKey> = keys.cloned().collect();
        keys.iter().filter_map(|key| self.remove(key)).collect()
    }

    fn forget_source(&mut self, key: &SessionKey) {
        let source = key.client.ip();
        let Some(keys) = self.sources.get_mut(&source) else { return };
        keys.remove(key);
        if keys.len() == 0 {
            self.sources.remove(&source);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn key(source: u8, port: u16) -> SessionKey {
        let client = SocketAddr::new(IpAddr::from([10, 0, 0, source]), port);
        SessionKey { listener: u64::from(port % 2), client, local: None }
    }

    proptest! {
        #[test]
        fn no_bound_is_exceeded_and_nothing_is_lost(
            steps in vec((0u8..4, 0u8..5, 1u16..20), 0..300), total in 1usize..20, per_source in 1usize..6,
        ) {
            let mut sessions = Sessions::new(total, per_source);
            let mut open = std::collections::HashSet::new();
            for (step, source, port) in steps {
                let key = key(source, port);
                match step {
                    0 => prop_assert_eq!(sessions.remove(&key).is_some(), open.remove(&key)),
                    1 => prop_assert_eq!(sessions.touch(&key).is_some(), open.contains(&key)),
                    _ if open.contains(&key) => {}
                    _ => {
                        let gone = sessions.insert(key.clone(), key.clone());
                        open.insert(key);
                        for key in gone {
                            prop_assert!(open.remove(&key), "closed twice");
                        }
                    }
                }
                prop_assert_eq!(sessions.len(), open.len());
                prop_assert!(open.len() <= total);
                for source in 0..5 {
                    let ip = IpAddr::from([10, 0, 0, source]);
                    prop_assert!(open.iter().filter(|it| it.client.ip() == ip).count() <= per_source);
                }
            }
            let gone = sessions.remove_listener(1);
            prop_assert_eq!(gone.len(), open.iter().filter(|it| it.listener == 1).count());
            prop_assert!(sessions.sources.values().flat_map(Lru::keys).all(|key| key.listener == 0));
        }
    }

    #[test]
    fn a_source_with_too_many_pushes_out_its_own() {
        let mut sessions = Sessions::new(100, 2);
        sessions.insert(key(1, 1), "other");
        assert_eq!(sessions.insert(key(2, 1), "first"), Vec::<&str>::new());
        assert_eq!(sessions.insert(key(2, 2), "second"), Vec::<&str>::new());
        assert_eq!(sessions.insert(key(2, 3), "third"), ["first"]);
        assert!(sessions.peek(&key(1, 1)).is_some());
    }

    /// A tunnel that is in use outlives any number of short sessions behind the same NAT.
    #[test]
    fn a_source_with_too_many_loses_the_session_that_is_idle() {
        let mut sessions = Sessions::new(100, 2);
        sessions.insert(key(2, 1), "tunnel");
        for port in 2..20 {
            sessions.insert(key(2, port), "short");
            assert_eq!(sessions.touch(&key(2, 1)), Some(&"tunnel"));
        }
    }
}
