//! Random numbers for choices: fast, seeded, not for secrets.

use std::hash::{BuildHasher, RandomState};

/// SplitMix64.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    #[cfg(test)]
    pub fn seeded(seed: u64) -> Random {
        Random(seed)
    }

    /// With a seed that differs from process to process and from thread to thread.
    pub fn new() -> Random {
        Random(RandomState::new().hash_one(std::thread::current().id()))
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to `bound - 1`; 0 if there is no such number.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    /// At least 0, less than 1.
    pub fn fraction(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }
}
