//! An allocator that counts what the calling thread allocates and frees. It passes every call to the system's allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counted {
    pub allocations: u64,
    pub bytes: u64,
    pub freed: u64,
    /// The size of the freed blocks as the system's allocator counts them: a word more, rounded up to two words.
    pub given_back: u64,
}

thread_local! {
    static SO_FAR: Cell<Counted> = const { Cell::new(Counted { allocations: 0, bytes: 0, freed: 0, given_back: 0 }) };
}

/// Returns the result of `work`, and what it allocated and freed on this thread.
pub fn counted<T>(work: impl FnOnce() -> T) -> (T, Counted) {
    let before = SO_FAR.get();
    let result = work();
    let after = SO_FAR.get();
    let counted = Counted {
        allocations: after.allocations - before.allocations,
        bytes: after.bytes - before.bytes,
        freed: after.freed - before.freed,
        given_back: after.given_back - before.given_back,
    };
    (result, counted)
}

fn count(allocated: usize, freed: usize) {
    let before = SO_FAR.get();
    SO_FAR.set(Counted {
        allocations: before.allocations + u64::from(allocated > 0),
        bytes: before.bytes + allocated as u64,
        freed: before.freed + freed as u64,
        given_back: before.given_back + block(freed) as u64,
    });
}

/// The size of a block for this many bytes.
fn block(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { (bytes + 8).next_multiple_of(16).max(32) }
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract. Growing and shrinking
// are an allocation and a release, as in the default methods of the trait: so they are counted.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: `memory` came from `alloc` above with this layout.
        unsafe { System.dealloc(memory, layout) }
    }
}
