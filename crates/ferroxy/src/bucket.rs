//! A token bucket: a limit of the burst, and of the long-term rate. Time comes in as an argument.

use std::time::Instant;

#[derive(Debug, Clone, Copy)]
pub struct Rate {
    /// The amount that is allowed at once.
    pub burst: f64,
    pub per_second: f64,
}

/// A new bucket is full.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bucket {
    /// The missing amount, and the time of the last calculation.
    missing: Option<(f64, Instant)>,
}

impl Bucket {
    /// Zero or negative: nothing more is allowed for now.
    pub fn left(&self, rate: &Rate, now: Instant) -> f64 {
        rate.burst - self.missing(rate, now)
    }

    /// `amount` may exceed the rest: then the bucket stays empty for longer.
    pub fn spend(&mut self, rate: &Rate, amount: f64, now: Instant) {
        self.missing = Some((self.missing(rate, now) + amount, now));
    }

    pub fn is_full(&self, rate: &Rate, now: Instant) -> bool {
        self.missing(rate, now) <= 0.0
    }

    fn missing(&self, rate: &Rate, now: Instant) -> f64 {
        let Some((missing, since)) = self.missing else { return 0.0 };
        let refilled = now.saturating_duration_since(since).as_secs_f64() * rate.per_second;
        (missing - refilled).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_burst_and_then_the_rate() {
        let (rate, start) = (Rate { burst: 3.0, per_second: 2.0 }, Instant::now());
        let mut bucket = Bucket::default();
        let mut happened = [0; 3];
        for tick in 0..300 {
            let now = start + Duration::from_millis(tick * 10);
            if bucket.left(&rate, now) >= 1.0 {
                bucket.spend(&rate, 1.0, now);
                happened[tick as usize / 100] += 1;
            }
        }
        assert_eq!(happened, [4, 2, 2], "three at once, two in each second");
        assert!(!bucket.is_full(&rate, start + Duration::from_secs(3)));
        assert!(bucket.is_full(&rate, start + Duration::from_secs(6)));
    }
}
