//! Backoff between retries, and the rate limit of requests. Time is an argument.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_millis(800);
const LONGEST: Duration = Duration::from_secs(30);
/// After this long without a failure the next one counts as the first.
const FORGET_AFTER: Duration = Duration::from_secs(120);

/// Waits that double with every failure, with random jitter: clients that fail together must not
/// retry together.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
    last: Option<Instant>,
}

impl Backoff {
    /// Counts a failure and returns how long to wait after it.
    pub(super) fn next(&mut self, now: Instant, random: f64) -> Duration {
        if self.last.is_some_and(|last| now.saturating_duration_since(last) >= FORGET_AFTER) {
            self.failures = 0;
        }
        self.last = Some(now);
        let most = FIRST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures += 1;
        most.mul_f64(random)
    }
}

/// At least 0, less than 1. Good enough to spread clients, and for nothing else.
pub(super) fn random() -> f64 {
    // Every `RandomState` has random keys, so the hash of nothing is a random number.
    (RandomState::new().hash_one(()) >> 11) as f64 / (1_u64 << 53) as f64
}

/// Lets through `burst` requests at once and `qps` a second after them.
#[derive(Debug)]
pub(super) struct Throttle {
    qps: f64,
    burst: f64,
    /// May be negative: waiting requests have already taken their token.
    tokens: f64,
    last: Option<Instant>,
}

impl Throttle {
    /// `qps` 0 means kube-proxy's default of 5; a negative value means no limit.
    pub(super) fn new(qps: f32, burst: u32) -> Throttle {
        let qps = if qps == 0.0 { 5.0 } else { f64::from(qps) };
        let burst = f64::from(if burst == 0 { 10 } else { burst });
        Throttle { qps, burst, tokens: burst, last: None }
    }

    /// How long the next request has to wait.
    pub(super) fn take(&mut self, now: Instant) -> Duration {
        if self.qps < 0.0 {
            return Duration::ZERO;
        }
        let passed = self.last.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        self.last = Some(now);
        self.tokens = (self.tokens + passed.as_secs_f64() * self.qps).min(self.burst) - 1.0;
        Duration::from_secs_f64((-self.tokens / self.qps).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_limit_and_start_over_after_a_long_success() {
        let (mut backoff, mut now) = (Backoff::default(), Instant::now());
        let mut wait = |after: u64, random: f64| {
            now += Duration::from_secs(after);
            backoff.next(now, random).as_millis()
        };
        let waits: Vec<u128> = (0..8).map(|_| wait(1, 1.0)).collect();
        assert_eq!(waits, [800, 1600, 3200, 6400, 12800, 25600, 30000, 30000]);
        assert_eq!(wait(119, 0.5), 15000);
        assert_eq!(wait(120, 0.5), 400);
        assert_eq!(wait(0, 0.0), 0);
    }

    #[test]
    fn random_fractions_differ() {
        let fractions: Vec<f64> = (0..20).map(|_| random()).collect();
        assert!(fractions.iter().all(|it| (0.0..1.0).contains(it)), "{fractions:?}");
        assert!(fractions.iter().any(|it| *it != fractions[0]), "{fractions:?}");
    }

    #[test]
    fn a_burst_passes_and_then_so_many_a_second() {
        let (mut throttle, now) = (Throttle::new(2.0, 3), Instant::now());
        let waits: Vec<u128> = (0..5).map(|_| throttle.take(now).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 500, 1000]);
        assert_eq!(throttle.take(now + Duration::from_secs(60)).as_millis(), 0);
        let mut unlimited = Throttle::new(-1.0, 1);
        assert!((0..100).all(|_| unlimited.take(now).is_zero()));
    }
}
