//! The capacity of the maps. A map cannot grow: a larger map replaces it.

/// The minimum that is reserved: 1 MB in each map.
const LEAST: u32 = 1 << 16;

/// Room for at least half as many elements again as are needed (but no more than `most`), as a power of two, because the
/// kernel reserves memory so. `None` if `needed` exceeds `most`.
pub fn capacity(needed: usize, most: u32) -> Option<u32> {
    let needed = u32::try_from(needed).ok().filter(|needed| *needed <= most)?;
    let wanted = needed.saturating_add(needed / 2).checked_next_power_of_two().unwrap_or(most);
    Some(wanted.max(LEAST).min(most.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_to_grow_up_to_the_limit() {
        const MOST: u32 = 1 << 22;
        assert_eq!(capacity(0, MOST), Some(65_536));
        assert_eq!(capacity(44_000, MOST), Some(131_072));
        assert_eq!(capacity(132_000, MOST), Some(262_144));
        assert_eq!(capacity(4_000_000, MOST), Some(MOST));
        assert_eq!(capacity(5_000_000, MOST), None);
        assert_eq!(capacity(3, 4), Some(4));
        assert_eq!(capacity(5, 4), None);
    }
}
