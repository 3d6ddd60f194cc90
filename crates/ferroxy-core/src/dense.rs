//! An ordered map that takes little memory when keys arrive in order, as they do in a list.
//!
//! Keys that arrive in order leave the nodes of a `BTreeMap` half empty. So the map is rebuilt whenever it has grown by
//! a quarter, and later allocations reuse the freed nodes. A single rebuild at the end would leave the freed nodes as
//! holes between other live allocations.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};

/// Has the methods of a `BTreeMap`. Only [`Dense::insert`] rebuilds the map when it has grown.
#[derive(Debug)]
pub(crate) struct Dense<K, V> {
    map: BTreeMap<K, V>,
    rebuild_at: usize,
}

/// A smaller map is not worth rebuilding.
const FEW: usize = 1000;

impl<K: Ord, V> Dense<K, V> {
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let before = self.map.insert(key, value);
        if self.map.len() >= self.rebuild_at.max(FEW) {
            self.rebuild();
        }
        before
    }

    pub(crate) fn rebuild(&mut self) {
        self.map = std::mem::take(&mut self.map).into_iter().collect();
        self.rebuild_at = self.map.len() + self.map.len() / 4;
    }
}

impl<K, V> Default for Dense<K, V> {
    fn default() -> Dense<K, V> {
        Dense { map: BTreeMap::new(), rebuild_at: 0 }
    }
}

impl<K, V> Deref for Dense<K, V> {
    type Target = BTreeMap<K, V>;

    fn deref(&self) -> &BTreeMap<K, V> {
        &self.map
    }
}

impl<K, V> DerefMut for Dense<K, V> {
    fn deref_mut(&mut self) -> &mut BTreeMap<K, V> {
        &mut self.map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_rebuilt_as_it_grows_and_loses_nothing() {
        let mut map = Dense::default();
        let mut rebuilt = Vec::new();
        for number in 0..2000 {
            assert_eq!(map.insert(number, number), None);
            if rebuilt.last() != Some(&map.rebuild_at) {
                rebuilt.push(map.rebuild_at);
            }
        }
        assert_eq!(rebuilt, [0, 1250, 1562, 1952, 2440]);
        assert_eq!((map.insert(7, 8), map.len()), (Some(7), 2000));
        assert!(map.keys().copied().eq(0..2000));
        map.clear();
        map.rebuild();
        assert_eq!((map.insert(1, 1), map.rebuild_at), (None, 0));
    }
}
