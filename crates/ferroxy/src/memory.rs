//! How the allocator treats what was freed. Only glibc's needs it; with others this does nothing.

/// Makes glibc give large blocks back as soon as they are freed: by default the size that counts as large grows with
/// each of them, and the text of a large manifest stays. Call it before one is read.
pub fn keep_memory_small() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt sets a number of the allocator, under its lock; one it does not like it ignores.
    unsafe {
        // Threads keep their own pools (M_ARENA_MAX is left alone): with one pool for all, 3 MiB less were resident, and
        // single changes were often slower by milliseconds.
        libc::mallopt(libc::M_MMAP_THRESHOLD, 256 << 10);
    }
}

/// Gives back what was freed: after something large, such as the start.
pub fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim only releases free memory of the allocator; it has no preconditions.
    unsafe {
        libc::malloc_trim(0);
    }
}
