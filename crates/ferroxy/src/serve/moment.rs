//! A moment on both clocks: ages are told by the one that never jumps, people and Prometheus want the other.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[derive(Debug, Clone, Copy)]
pub struct Moment {
    pub instant: Instant,
    pub wall: SystemTime,
}

impl Moment {
    pub fn now() -> Moment {
        #[allow(clippy::disallowed_methods, reason = "for people; ages are told by the other")]
        Moment { instant: Instant::now(), wall: SystemTime::now() }
    }

    /// `None` for what is longer ago than clocks reach.
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

    /// As Go writes a time in JSON: RFC 3339 in UTC, with as many digits after the second as are needed.
    pub fn rfc3339(&self) -> String {
        let since_epoch = self.wall.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (seconds, nanoseconds) = (since_epoch.as_secs(), since_epoch.subsec_nanos());
        let (year, month, day) = date(seconds / 86_400);
        let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
        let fraction = match nanoseconds {
            0 => String::new(),
            n => format!(".{n:09}").trim_end_matches('0').to_owned(),
        };
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
    }
}

/// Year, month and day of a day since 1970-01-01.
fn date(mut days: u64) -> (u64, u64, u64) {
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let mut month = 1;
    for length in [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1)
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
