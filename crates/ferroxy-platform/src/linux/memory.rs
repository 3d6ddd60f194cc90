//! glibc's allocator, and `/proc/self/oom_score_adj`. With another libc the allocator's hints do nothing.

use std::fs;
use std::io;
use std::path::Path;

use crate::memory::AllocatorFigures;

/// By default glibc raises the mmap threshold with each large block that is freed, and then keeps the memory of a large
/// manifest's text.
pub fn keep_memory_small() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt sets a number of the allocator, under its lock; it ignores a value it does not accept.
    unsafe {
        // M_ARENA_MAX is left alone, so that threads keep their own arenas: with one arena for all, 3 MiB less are
        // resident, but single changes are often slower by milliseconds.
        libc::mallopt(libc::M_MMAP_THRESHOLD, 256 << 10);
    }
}

pub fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim only releases free memory of the allocator; it has no preconditions.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(target_env = "gnu")]
pub fn allocator_figures() -> Option<AllocatorFigures> {
    // SAFETY: mallinfo2 reads the allocator's numbers under its locks; it has no preconditions.
    let info = unsafe { libc::mallinfo2() };
    Some(AllocatorFigures {
        in_use: info.uordblks,
        free: info.fordblks,
        from_system: info.arena,
        large_blocks_bytes: info.hblkhd,
        large_blocks: info.hblks,
        releasable: info.keepcost,
    })
}

#[cfg(not(target_env = "gnu"))]
pub fn allocator_figures() -> Option<AllocatorFigures> {
    None
}

pub fn set_oom_score(score: i32) -> io::Result<()> {
    write_oom_score(Path::new("/proc/self/oom_score_adj"), score)
}

fn write_oom_score(path: &Path, score: i32) -> io::Result<()> {
    if fs::read_to_string(path)?.trim() == score.to_string() {
        return Ok(());
    }
    fs::write(path, score.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oom_score_is_written_only_where_it_differs() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "0\n").unwrap();
        write_oom_score(file.path(), -999).unwrap();
        assert_eq!(fs::read_to_string(file.path()).unwrap(), "-999");
        fs::write(file.path(), "5\n").unwrap();
        write_oom_score(file.path(), 5).unwrap();
        assert_eq!(fs::read_to_string(file.path()).unwrap(), "5\n", "an equal score was written");
        assert!(write_oom_score(Path::new("/nowhere/oom_score_adj"), 5).is_err());
    }

    #[test]
    #[cfg(target_env = "gnu")]
    fn the_allocator_counts_what_is_in_use() {
        let block = vec![1u8; 64 << 10];
        let figures = allocator_figures().unwrap();
        assert!(figures.in_use + figures.large_blocks_bytes >= block.len());
    }
}
