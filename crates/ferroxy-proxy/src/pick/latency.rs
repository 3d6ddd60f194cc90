//! Peak EWMA: a moving average of latency that follows a rise at once and a fall slowly.

use crate::clock::Nanos;

/// How fast the past is forgotten: after this time it counts a third (1/e).
const DECAY: f32 = 10e9;

/// The average after one more sample, `age` after the sample before.
pub fn observe(average: Option<Nanos>, age: Nanos, sample: Nanos) -> Nanos {
    match average {
        Some(average) if sample < average => {
            let weight = weight(age);
            (average as f32 * weight + sample as f32 * (1.0 - weight)) as Nanos
        }
        _ => sample,
    }
}

/// The expected latency `age` after the last sample. It decays, so that an endpoint that was slow once is tried again.
pub fn estimate(average: Nanos, age: Nanos) -> Nanos {
    (average as f32 * weight(age)) as Nanos
}

fn weight(age: Nanos) -> f32 {
    (-(age as f32) / DECAY).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = 1_000_000_000;

    #[test]
    fn a_rise_counts_at_once_and_a_fall_slowly() {
        assert_eq!(observe(None, 0, 5), 5);
        assert_eq!(observe(Some(1_000), 0, 9_000), 9_000);
        let after_a_second = observe(Some(1_000_000), SECOND, 1_000);
        assert!((800_000..950_000).contains(&after_a_second), "{after_a_second}");
        assert!(observe(Some(1_000_000), 100 * SECOND, 1_000) < 2_000);
    }

    #[test]
    fn an_estimate_fades() {
        assert_eq!(estimate(1_000_000, 0), 1_000_000);
        assert!(estimate(1_000_000, 60 * SECOND) < 3_000);
    }
}
