//! Interned values: one copy of each distinct value, identified by a small number and freed with its last user.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

/// Identifies a value of one [`Interner`], until it is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Id(u32);

impl Id {
    pub(crate) fn number(self) -> u32 {
        self.0
    }

    pub(crate) fn from_number(number: u32) -> Id {
        Id(number)
    }
}

#[derive(Debug)]
pub(crate) struct Interner<T> {
    ids: HashMap<Arc<T>, Id>,
    slots: Vec<Slot<T>>,
    free: Vec<Id>,
}

#[derive(Debug)]
struct Slot<T> {
    value: Option<Arc<T>>,
    users: u32,
}

impl<T> Default for Interner<T> {
    fn default() -> Interner<T> {
        Interner { ids: HashMap::new(), slots: Vec::new(), free: Vec::new() }
    }
}

impl<T: Hash + Eq> Interner<T> {
    /// Each call must be paired with one [`Interner::release`].
    pub(crate) fn intern(&mut self, value: T) -> Id {
        if let Some(id) = self.ids.get(&value) {
            let id = *id;
            self.slots[id.0 as usize].users += 1;
            return id;
        }
        let value = Arc::new(value);
        let slot = Slot { value: Some(value.clone()), users: 1 };
        let id = match self.free.pop() {
            Some(id) => {
                self.slots[id.0 as usize] = slot;
                id
            }
            None => {
                self.slots.push(slot);
                Id(self.slots.len() as u32 - 1)
            }
        };
        self.ids.insert(value, id);
        id
    }

    pub(crate) fn release(&mut self, id: Id) {
        let Some(slot) = self.slots.get_mut(id.0 as usize) else { return };
        slot.users = slot.users.saturating_sub(1);
        if slot.users == 0
            && let Some(value) = slot.value.take()
        {
            self.ids.remove(&value);
            self.free.push(id);
        }
        if self.ids.is_empty() {
            // No number is in use any more. This frees the capacity that empty vectors and maps keep.
            *self = Interner::default();
        }
    }

    pub(crate) fn get(&self, id: Id) -> Option<&T> {
        self.slots.get(id.0 as usize)?.value.as_deref()
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_share_a_number_until_the_last_user_leaves() {
        let mut names = Interner::default();
        let a = names.intern("a");
        let b = names.intern("b");
        assert_eq!(names.intern("a"), a);
        assert_ne!(a, b);
        names.release(a);
        assert_eq!(names.get(a), Some(&"a"));
        names.release(a);
        assert_eq!(names.get(a), None);
        assert_eq!(names.len(), 1);
        assert_eq!(names.get(b), Some(&"b"));
    }

    #[test]
    fn numbers_are_used_again() {
        let mut names = Interner::default();
        names.intern(1000);
        for round in 0..1000 {
            let id = names.intern(round);
            names.release(id);
        }
        assert_eq!(names.slots.len(), 2);
    }

    #[test]
    fn numbers_of_others_stay() {
        let mut names = Interner::default();
        let [a, b] = ["a", "b"].map(|name| names.intern(name));
        names.release(a);
        assert_eq!((names.intern("c"), names.get(b)), (a, Some(&"b")));
        [a, b].into_iter().for_each(|id| names.release(id));
        assert_eq!((names.slots.capacity(), names.ids.capacity()), (0, 0));
    }
}
