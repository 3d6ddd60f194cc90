//! One or more values. Nearly always there is only one, which then needs no allocation of its own.

use std::borrow::Borrow;
use std::collections::BTreeMap;

#[derive(Debug, PartialEq)]
pub(crate) enum Few<T> {
    One(T),
    /// At least two values. Boxed, so that the enum is no larger than a single value.
    #[allow(clippy::box_collection, reason = "a list makes all that have one value larger")]
    Many(Box<Vec<T>>),
}

impl<T> Few<T> {
    pub(crate) fn as_slice(&self) -> &[T] {
        match self {
            Few::One(value) => std::slice::from_ref(value),
            Few::Many(values) => values,
        }
    }

    pub(crate) fn insert(&mut self, place: usize, value: T) {
        let mut values = match std::mem::replace(self, Few::Many(Box::default())) {
            Few::One(first) => Box::new(vec![first]),
            Few::Many(values) => values,
        };
        values.insert(place.min(values.len()), value);
        *self = Few::Many(values);
    }

    /// Removes the value at this place, unless it is the only one.
    fn remove(&mut self, place: usize) -> Option<T> {
        let Few::Many(values) = self else { return None };
        let removed = (place < values.len()).then(|| values.remove(place));
        if values.len() == 1
            && let Some(last) = values.pop()
        {
            *self = Few::One(last);
        }
        removed
    }

    fn into_first(self) -> Option<T> {
        match self {
            Few::One(value) => Some(value),
            Few::Many(values) => values.into_iter().next(),
        }
    }
}

/// Removes one value of a key from a map, and the key together with its last value.
pub(crate) fn remove<K, Q, T>(map: &mut BTreeMap<K, Few<T>>, key: &Q, place: usize) -> Option<T>
where
    K: Ord + Borrow<Q>,
    Q: Ord + ?Sized,
{
    match map.get_mut(key)?.remove(place) {
        Some(removed) => Some(removed),
        None if place == 0 => map.remove(key)?.into_first(),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_and_go() {
        let mut few = Few::One('b');
        few.insert(0, 'a');
        few.insert(2, 'd');
        few.insert(2, 'c');
        assert_eq!(few.as_slice(), ['a', 'b', 'c', 'd']);
        let mut map = BTreeMap::from([(1, few)]);
        assert_eq!([remove(&mut map, &1, 4), remove(&mut map, &2, 0)], [None, None]);
        let removed = [1, 2, 0].map(|place| remove(&mut map, &1, place));
        assert_eq!((removed, &map[&1]), ([Some('b'), Some('d'), Some('a')], &Few::One('c')));
        assert_eq!(remove(&mut map, &1, 1), None, "there is only one");
        assert_eq!((remove(&mut map, &1, 0), map.is_empty()), (Some('c'), true));
    }

    /// The reason for [`Few`].
    #[test]
    fn one_value_takes_no_more_memory_than_it_does_alone() {
        assert_eq!(size_of::<Few<Box<[u8]>>>(), size_of::<Box<[u8]>>());
    }
}
