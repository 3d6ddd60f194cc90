//! How much is logged: a budget of bytes for each place in the program that logs, and one for all of them. Lines beyond a
//! budget are suppressed and counted, and the count is logged once a minute. Time comes in as an argument.
//!
//! Lines that exist only because of `-v` have no budget: a user has requested them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::{Metadata, callsite};

use super::{levels, place};
use crate::bucket::{Bucket, Rate};

/// Together: less than a megabyte in any minute.
const ALL: Rate = Rate { burst: (384 << 10) as f64, per_second: (8 << 10) as f64 };

/// One place: about 300 lines at once, then four a second. No single place can use up the common budget.
const EACH: Rate = Rate { burst: (64 << 10) as f64, per_second: (1 << 10) as f64 };

/// How often the number of suppressed lines is reported.
pub(super) const REPORT_EVERY: Duration = Duration::from_secs(60);

static LIMITS: Mutex<Option<Limits>> = Mutex::new(None);

static SUPPRESSED: AtomicU64 = AtomicU64::new(0);

/// How many lines were suppressed because there were too many of them.
pub fn suppressed() -> u64 {
    SUPPRESSED.load(Ordering::Relaxed)
}

/// Counts lines that the caller suppressed itself.
pub fn count_suppressed(lines: u64) {
    SUPPRESSED.fetch_add(lines, Ordering::Relaxed);
}

/// Whether an event is logged. Decided before it is formatted: a suppressed event costs nothing more.
pub(super) fn admits(metadata: &'static Metadata<'static>) -> bool {
    if is_free(metadata) {
        return true;
    }
    let admitted = limits().get_or_insert_default().admits(metadata, Instant::now());
    count_suppressed(u64::from(!admitted));
    admitted
}

/// The place whose budget a line uses; `None` for a line without a budget.
pub(super) fn payer(metadata: &Metadata<'_>) -> Option<callsite::Identifier> {
    (!is_free(metadata)).then(|| metadata.callsite())
}

/// An event became a line of `bytes` bytes.
pub(super) fn spend(payer: &callsite::Identifier, bytes: usize) {
    limits().get_or_insert_default().spend(payer, bytes, Instant::now());
}

/// The report that is due now: each place, and how many of its lines were suppressed.
pub(super) fn report(now: Instant) -> Vec<(String, u64)> {
    limits().get_or_insert_default().report(now)
}

fn limits() -> MutexGuard<'static, Option<Limits>> {
    LIMITS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Verbose lines; lines about the log itself; a panic, which is the last line.
fn is_free(metadata: &Metadata<'_>) -> bool {
    let target = metadata.target();
    levels::verbosity_of(metadata) > 0
        || target.starts_with("ferroxy::log::")
        || target.starts_with("ferroxy::panic")
}

#[derive(Debug, Default)]
struct Limits {
    all: Bucket,
    /// At most as many as there are places that log.
    each: HashMap<callsite::Identifier, Kind>,
    reported: Option<Instant>,
}

#[derive(Debug, Default)]
struct Kind {
    bucket: Bucket,
    /// Since the last report.
    suppressed: u64,
    /// `report.rs:42`
    place: String,
}

impl Limits {
    fn admits(&mut self, metadata: &'static Metadata<'static>, now: Instant) -> bool {
        let file = || place::short(metadata.file().unwrap_or("???"));
        let new =
            || Kind { place: format!("{}:{}", file(), metadata.line().unwrap_or(1)), ..Kind::default() };
        let kind = self.each.entry(metadata.callsite()).or_insert_with(new);
        let admitted = kind.bucket.left(&EACH, now) > 0.0 && self.all.left(&ALL, now) > 0.0;
        kind.suppressed += u64::from(!admitted);
        admitted
    }

    fn spend(&mut self, of: &callsite::Identifier, bytes: usize, now: Instant) {
        self.all.spend(&ALL, bytes as f64, now);
        if let Some(kind) = self.each.get_mut(of) {
            kind.bucket.spend(&EACH, bytes as f64, now);
        }
    }

    fn report(&mut self, now: Instant) -> Vec<(String, u64)> {
        if now.saturating_duration_since(*self.reported.get_or_insert(now)) < REPORT_EVERY {
            return Vec::new();
        }
        self.reported = Some(now);
        let suppressed = self.each.values_mut().filter(|kind| kind.suppressed > 0);
        let mut report: Vec<_> =
            suppressed.map(|kind| (kind.place.clone(), std::mem::take(&mut kind.suppressed))).collect();
        report.sort();
        report
    }
}

#[cfg(test)]
mod tests {
    use tracing::{Callsite, Level, callsite::DefaultCallsite, metadata::Kind as Of};

    use super::*;

    /// Places in the program, as the macros of tracing make them.
    macro_rules! places {
        ($($name:ident $line:literal),*) => { $(
            static $name: DefaultCallsite = {
                static META: Metadata<'static> = Metadata::new(
                    "test", "ferroxy::agent", Level::WARN, Some("src/agent/report.rs"), Some($line), None,
                    tracing::field::FieldSet::new(&[], callsite::Identifier(&$name)), Of::EVENT,
                );
                DefaultCallsite::new(&META)
            };
        )* };
    }

    places!(FIRST 1, SECOND 2, THIRD 3, FOURTH 4, FIFTH 5, SIXTH 6, SEVENTH 7, EIGHTH 8);

    static FLOODED: [&DefaultCallsite; 7] = [&FIRST, &SECOND, &THIRD, &FOURTH, &FIFTH, &SIXTH, &SEVENTH];

    /// Logs if it may; returns how many bytes.
    fn log(limits: &mut Limits, place: &'static DefaultCallsite, bytes: usize, now: Instant) -> usize {
        if !limits.admits(place.metadata(), now) {
            return 0;
        }
        limits.spend(&place.metadata().callsite(), bytes, now);
        bytes
    }

    #[test]
    fn no_minute_of_any_flood_has_a_megabyte() {
        let (mut limits, start) = (Limits::default(), Instant::now());
        for minute in 0..5 {
            let mut bytes = 0;
            for tick in 0..6000 {
                let now = start + Duration::from_millis(minute * 60_000 + tick * 10);
                bytes += FLOODED.iter().map(|place| log(&mut limits, place, 4000, now)).sum::<usize>();
            }
            assert!((100_000..1_000_000).contains(&bytes), "{bytes} bytes in minute {minute}");
        }
    }

    #[test]
    fn one_flood_leaves_room_for_other_places() {
        let (mut limits, start) = (Limits::default(), Instant::now());
        for tick in 0..60_000 {
            let now = start + Duration::from_millis(tick);
            log(&mut limits, &FIRST, 4000, now);
            if tick % 1000 == 0 {
                assert_eq!(log(&mut limits, &EIGHTH, 400, now), 400, "after {tick} ms");
            }
        }
    }

    #[test]
    fn what_is_suppressed_is_counted_and_reported_once_a_minute() {
        let (mut limits, start) = (Limits::default(), Instant::now());
        assert_eq!(limits.report(start), []);
        let logged = (0..1000).filter(|_| log(&mut limits, &FIRST, 1024, start) > 0).count();
        assert_eq!(logged, 64);
        assert_eq!(limits.report(start + REPORT_EVERY / 2), []);
        assert_eq!(limits.report(start + REPORT_EVERY), [("report.rs:1".to_owned(), 936)]);
        assert_eq!(limits.report(start + 3 * REPORT_EVERY), []);
    }
}
