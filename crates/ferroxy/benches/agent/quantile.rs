//! A quantile of measured times.

use std::time::Duration;

/// The smallest of the times that is not less than `share` of them.
pub fn quantile(times: &mut [Duration], share: f64) -> Duration {
    times.sort_unstable();
    let rank = (times.len() as f64 * share).ceil() as usize;
    times.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}
