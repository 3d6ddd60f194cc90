//! Hints to the memory allocator and its figures, and the kernel's choice when memory runs out.

use std::io;

use crate::system;

/// The allocator's memory, in bytes unless said otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllocatorFigures {
    pub in_use: usize,
    /// Freed by the program and kept by the allocator.
    pub free: usize,
    /// Obtained from the system, without the large blocks.
    pub from_system: usize,
    pub large_blocks_bytes: usize,
    /// How many large blocks there are.
    pub large_blocks: usize,
    /// How much of `free` [`give_memory_back`] can release.
    pub releasable: usize,
}

/// Makes the allocator return large blocks to the system as soon as they are freed. Call it before a large file is read.
pub fn keep_memory_small() {
    system::memory::keep_memory_small();
}

/// Returns freed memory to the system. Call it after a phase that needed much memory, such as the start.
pub fn give_memory_back() {
    system::memory::give_memory_back();
}

/// `None` when the allocator has no figures.
pub fn allocator_figures() -> Option<AllocatorFigures> {
    system::memory::allocator_figures()
}

/// Sets the OOM score adjustment: how likely the kernel ends this process when memory runs out, from -1000 (never) to
/// 1000 (first). Lowering it needs [`crate::Privilege::SysResource`]. A score that is already set is not written again.
pub fn set_oom_score(score: i32) -> io::Result<()> {
    system::memory::set_oom_score(score)
}
