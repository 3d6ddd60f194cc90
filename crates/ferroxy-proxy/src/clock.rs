//! The monotonic clock as a number, which fits into an atomic and can be passed to pure code.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Nanoseconds since the first call of [`now`]. Enough for 584 years.
pub type Nanos = u64;

pub const NEVER: Nanos = Nanos::MAX;

pub fn now() -> Nanos {
    static START: OnceLock<Instant> = OnceLock::new();
    nanos(START.get_or_init(Instant::now).elapsed())
}

pub fn nanos(duration: Duration) -> Nanos {
    Nanos::try_from(duration.as_nanos()).unwrap_or(NEVER)
}
