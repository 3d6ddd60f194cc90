//! How many entries all lists of the object that is being decoded may still have.
//!
//! serde passes nothing down to the fields of an object, so this is kept for each thread: one call decodes one object.

use std::cell::Cell;

/// The API allows 1,000 endpoints with 100 addresses each. An empty entry takes two bytes of a message, but a hundred
/// times as much memory.
pub(crate) const MOST_ENTRIES: usize = 200_000;

thread_local! {
    /// Outside of objects there is no limit. `None` once an entry had no room.
    static LEFT: Cell<Option<usize>> = const { Cell::new(Some(usize::MAX)) };
}

/// Decodes an object with all the room there is. Returns also whether that was enough.
pub(super) fn with_room<T>(decode: impl FnOnce() -> T) -> (T, bool) {
    LEFT.set(Some(MOST_ENTRIES));
    let decoded = decode();
    let left = LEFT.replace(Some(usize::MAX));
    (decoded, left.is_some())
}

/// Takes the room of one entry, if there is any. Without room the entry must not be kept.
pub(super) fn take() -> bool {
    let left = LEFT.get().and_then(|left| left.checked_sub(1));
    LEFT.set(left);
    left.is_some()
}
