//! A moment on both clocks: the monotonic clock measures ages, the wall clock is for people and Prometheus.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;

#[derive(Debug, Clone, Copy)]
pub struct Moment {
    pub instant: Instant,
    pub wall: SystemTime,
}

impl Moment {
    pub fn now() -> Moment {
        #[allow(clippy::disallowed_methods, reason = "for people; ages are measured with the other clock")]
        Moment { instant: Instant::now(), wall: SystemTime::now() }
    }

    /// `None` if that is before the clocks begin.
    pub fn ago(age: Duration) -> Option<Moment> {
        let Moment { instant, wall } = Moment::now();
        Some(Moment { instant: instant.checked_sub(age)?, wall: wall.checked_sub(age)? })
    }

    /// How long ago that was at `now`.
    pub fn age(&self, now: Moment) -> Duration {
        now.instant.saturating_duration_since(self.instant)
    }

    pub fn unix_seconds(&self) -> f64 {
        self.wall.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
    }

    /// As Go writes a time in JSON: RFC 3339 in UTC, with as many fractional digits as are needed.
    pub fn rfc3339(&self) -> String {
        // Fails for years that no clock shows.
        Timestamp::try_from(self.wall).unwrap_or_default().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(seconds: u64, nanoseconds: u32) -> String {
        let wall = UNIX_EPOCH + Duration::new(seconds, nanoseconds);
        Moment { instant: Instant::now(), wall }.rfc3339()
    }

    #[test]
    fn times_are_written_as_go_writes_them() {
        assert_eq!(written(0, 0), "1970-01-01T00:00:00Z");
        assert_eq!(written(951_782_400, 0), "2000-02-29T00:00:00Z");
        assert_eq!(written(951_868_799, 500_000_000), "2000-02-29T23:59:59.5Z");
        assert_eq!(written(1_735_689_599, 1), "2024-12-31T23:59:59.000000001Z");
        assert_eq!(written(1_794_779_336, 120_000_000), "2026-11-15T21:48:56.12Z");
        assert_eq!(written(4_107_542_400, 0), "2100-03-01T00:00:00Z");
    }

    #[test]
    fn an_age_is_never_negative() {
        let now = Moment::now();
        let later = Moment { instant: now.instant + Duration::from_secs(5), ..now };
        assert_eq!(now.age(later), Duration::from_secs(5));
        assert_eq!(later.age(now), Duration::ZERO);
    }
}
