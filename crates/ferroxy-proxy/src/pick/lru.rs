//! A map with a limit: the least recently used entry is evicted.

use std::collections::HashMap;
use std::hash::Hash;

const NONE: usize = usize::MAX;

#[derive(Debug)]
pub struct Lru<K, V> {
    limit: usize,
    places: HashMap<K, usize>,
    nodes: Vec<Node<K, V>>,
    free: Vec<usize>,
    newest: usize,
    oldest: usize,
}

#[derive(Debug)]
struct Node<K, V> {
    /// `None` on the free list.
    entry: Option<(K, V)>,
    newer: usize,
    older: usize,
}

impl<K: Hash + Eq + Clone, V> Lru<K, V> {
    pub fn new(limit: usize) -> Lru<K, V> {
        let limit = limit.max(1);
        Lru { limit, places: HashMap::new(), nodes: Vec::new(), free: Vec::new(), newest: NONE, oldest: NONE }
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.places.keys()
    }

    /// The value, without counting as use.
    pub fn peek(&self, key: &K) -> Option<&V> {
        let place = self.places.get(key)?;
        self.nodes[*place].entry.as_ref().map(|(_, value)| value)
    }

    /// The value, which is now the newest.
    pub fn touch(&mut self, key: &K) -> Option<&mut V> {
        let place = *self.places.get(key)?;
        if self.newest != place {
            self.unlink(place);
            self.link_newest(place);
        }
        self.nodes[place].entry.as_mut().map(|(_, value)| value)
    }

    /// Adds or replaces; returns the entry that was evicted or replaced.
    pub fn insert(&mut self, key: K, value: V) -> Option<(K, V)> {
        if let Some(old) = self.touch(&key) {
            return Some((key, std::mem::replace(old, value)));
        }
        let gone = if self.len() >= self.limit { self.remove_oldest() } else { None };
        let node = Node { entry: Some((key.clone(), value)), newer: NONE, older: NONE };
        let place = match self.free.pop() {
            Some(place) => {
                self.nodes[place] = node;
                place
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        };
        self.places.insert(key, place);
        self.link_newest(place);
        gone
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        let place = self.places.remove(key)?;
        self.unlink(place);
        self.free.push(place);
        self.nodes[place].entry.take().map(|(_, value)| value)
    }

    pub fn oldest(&self) -> Option<&V> {
        self.nodes.get(self.oldest)?.entry.as_ref().map(|(_, value)| value)
    }

    pub fn remove_oldest(&mut self) -> Option<(K, V)> {
        let key = self.nodes.get(self.oldest)?.entry.as_ref()?.0.clone();
        self.remove(&key).map(|value| (key, value))
    }

    fn link_newest(&mut self, place: usize) {
        let second = self.newest;
        self.nodes[place].older = second;
        self.nodes[place].newer = NONE;
        match self.nodes.get_mut(second) {
            Some(second) => second.newer = place,
            None => self.oldest = place,
        }
        self.newest = place;
    }

    fn unlink(&mut self, place: usize) {
        let (newer, older) = (self.nodes[place].newer, self.nodes[place].older);
        match self.nodes.get_mut(newer) {
            Some(newer) => newer.older = older,
            None => self.newest = older,
        }
        match self.nodes.get_mut(older) {
            Some(older) => older.newer = newer,
            None => self.oldest = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// The same with a plain list, the newest last.
    fn plain(list: &mut Vec<(u8, u32)>, limit: usize, key: u8, value: u32) {
        list.retain(|(other, _)| *other != key);
        if list.len() >= limit {
            list.remove(0);
        }
        list.push((key, value));
    }

    proptest! {
        #[test]
        fn it_does_what_a_plain_list_does(steps in vec((0u8..4, 0u8..12), 0..200), limit in 1usize..8) {
            let mut lru = Lru::new(limit);
            let mut list: Vec<(u8, u32)> = Vec::new();
            for (value, (step, key)) in (0u32..).zip(steps) {
                match step {
                    0 | 1 => {
                        plain(&mut list, limit, key, value);
                        lru.insert(key, value);
                    }
                    2 => {
                        let place = list.iter().position(|(other, _)| *other == key);
                        let expected = place.map(|place| list.remove(place));
                        list.extend(expected);
                        prop_assert_eq!(lru.touch(&key).copied(), expected.map(|(_, value)| value));
                    }
                    _ => {
                        list.retain(|(other, _)| *other != key);
                        lru.remove(&key);
                    }
                }
                prop_assert_eq!(lru.len(), list.len());
                prop_assert!(list.iter().all(|(key, value)| lru.peek(key) == Some(value)));
            }
            let rest: Vec<_> = std::iter::from_fn(|| lru.remove_oldest()).collect();
            prop_assert_eq!(rest, list);
        }
    }
}
