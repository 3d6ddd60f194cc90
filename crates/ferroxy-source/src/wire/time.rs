//! The API's timestamps (RFC 3339), read as time since 1970 and written for events. jiff knows the calendar.

use std::borrow::Cow;
use std::time::Duration;

use ferroxy_core::foreign::quoted;
use jiff::Timestamp;

use super::field::Notes;

/// The beginning of the year 0, in seconds since 1970.
const YEAR_0: i64 = -62_167_219_200;

/// Digits beyond nanoseconds are cut off.
const MOST_DIGITS: usize = 9;

/// Reads a timestamp, without its fraction. One that cannot be read is noted.
pub(super) fn seconds(text: &str, field: &str, notes: &mut Notes) -> Option<i64> {
    noted(parse(text).map(whole_seconds), text, field, notes)
}

/// The same in nanoseconds. Years that do not fit (before 1678, after 2261) cannot be read.
pub(crate) fn nanoseconds(text: &str, field: &str, notes: &mut Notes) -> Option<i64> {
    let time = parse(text).and_then(|time| i64::try_from(time.as_nanosecond()).ok());
    noted(time, text, field, notes)
}

/// Seconds since 1970 as they are, if they are a moment of the years 0 to 9999: JSON can write no others.
pub(crate) fn in_range(seconds: i64, field: &str, notes: &mut Notes) -> Option<i64> {
    let known = seconds >= YEAR_0 && Timestamp::from_second(seconds).is_ok();
    noted(known.then_some(seconds), &format!("{seconds} s"), field, notes)
}

/// `2024-02-29T12:00:00.123456Z`, as the API writes the times of events.
pub(crate) fn write_micros(since_1970: Duration) -> String {
    let micros = i64::try_from(since_1970.as_micros()).unwrap_or(i64::MAX);
    // The last moment that jiff knows is in the year 9999.
    let time = Timestamp::from_microsecond(micros).unwrap_or(Timestamp::MAX);
    format!("{time:.6}")
}

fn noted<T>(time: Option<T>, text: &str, field: &str, notes: &mut Notes) -> Option<T> {
    if time.is_none() {
        let reason = format!("{} is not a time such as 2024-02-29T12:00:00Z", quoted(text));
        notes.add(field, reason);
    }
    time
}

/// Rounded down, also before 1970.
fn whole_seconds(time: Timestamp) -> i64 {
    time.as_second() - i64::from(time.subsec_nanosecond() < 0)
}

fn parse(text: &str) -> Option<Timestamp> {
    rfc3339(text)?.parse().ok()
}

/// The text if it has the shape of RFC 3339, with a fraction that jiff can read. jiff reads other forms as well (dates
/// without dashes, zones by name); the API server does not, and neither does kube-proxy.
fn rfc3339(text: &str) -> Option<Cow<'_, str>> {
    let (moment, rest) = text.split_at_checked(19)?;
    let (digits, zone) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(rest.bytes().take_while(u8::is_ascii_digit).count()),
        None => ("0", rest),
    };
    let is_zone = matches!(zone, "Z" | "z") || has_shape(zone, b"+00:00") || has_shape(zone, b"-00:00");
    if !has_shape(moment, b"0000-00-00T00:00:00") || digits.is_empty() || !is_zone {
        return None;
    }
    match digits.get(..MOST_DIGITS) {
        Some(kept) if digits.len() > MOST_DIGITS => Some(Cow::Owned(format!("{moment}.{kept}{zone}"))),
        _ => Some(Cow::Borrowed(text)),
    }
}

/// `0` stands for any digit; letters are compared without case.
fn has_shape(text: &str, shape: &[u8]) -> bool {
    let fits = |(byte, shape): (u8, &u8)| match shape {
        b'0' => byte.is_ascii_digit(),
        shape => byte.eq_ignore_ascii_case(shape),
    };
    text.len() == shape.len() && text.bytes().zip(shape).all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<i64> {
        super::parse(text).map(whole_seconds)
    }

    #[test]
    fn nanoseconds_keep_the_fraction() {
        let mut notes = Notes::default();
        let mut read = |text: &str| nanoseconds(text, "f", &mut notes);
        assert_eq!(read("1970-01-01T00:00:01.5Z"), Some(1_500_000_000));
        assert_eq!(read("1970-01-01T00:00:00.1234567891Z"), Some(123_456_789));
        assert_eq!(read("1969-12-31T23:59:59.9Z"), Some(-100_000_000));
        assert_eq!(read("2001-09-09T01:46:40Z"), Some(1_000_000_000_000_000_000));
        assert_eq!(read("2262-12-31T00:00:00Z"), None);
        assert_eq!(read("now"), None);
        assert_eq!(notes.0.len(), 2);
    }

    #[test]
    fn what_is_written_reads_back() {
        for text in
            ["1970-01-01T00:00:00.000000Z", "2000-02-29T23:59:59.000001Z", "2024-12-31T12:30:00.999999Z"]
        {
            let time = super::parse(text).unwrap();
            assert_eq!(write_micros(time.duration_since(Timestamp::UNIX_EPOCH).unsigned_abs()), text);
        }
    }

    #[test]
    fn known_moments() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1969-12-31T23:59:59Z", -1),
            ("2000-02-29T00:00:00Z", 951_782_400),
            ("2001-09-09T01:46:40Z", 1_000_000_000),
            ("2024-02-29T12:00:00Z", 1_709_208_000),
            ("2024-03-01T00:00:00Z", 1_709_251_200),
            ("2038-01-19T03:14:08Z", 2_147_483_648),
            ("2100-03-01T00:00:00Z", 4_107_542_400),
            ("0001-01-01T00:00:00Z", -62_135_596_800),
        ] {
            assert_eq!(parse(text), Some(seconds), "{text}");
        }
    }

    #[test]
    fn fractions_are_cut_and_offsets_taken_off() {
        assert_eq!(parse("1970-01-01T00:00:01.999999999Z"), Some(1));
        assert_eq!(parse("1970-01-01T02:00:00+02:00"), Some(0));
        assert_eq!(parse("1969-12-31T16:30:00-07:30"), Some(0));
        assert_eq!(parse("1970-01-01t00:00:05.5z"), Some(5));
        assert_eq!(parse("1969-12-31T23:59:58.5Z"), Some(-2));
        // A leap second counts as the second before it.
        assert_eq!(parse("2016-12-31T23:59:60Z"), parse("2016-12-31T23:59:59Z"));
    }

    #[test]
    fn what_is_not_a_time() {
        for text in [
            "",
            "yesterday",
            "2024-02-29",
            "2024-02-29T12:00:00",
            "2023-02-29T12:00:00Z",
            "1900-02-29T12:00:00Z",
            "2024-13-01T00:00:00Z",
            "2024-00-01T00:00:00Z",
            "2024-04-31T00:00:00Z",
            "2024-01-01T24:00:00Z",
            "2024-01-01T00:00:00.Z",
            "2024-01-01T00:00:00+0200",
            "2024-01-01T00:00:00+é",
            "2024-1-1T0:0:0Z",
            "12024-01-01T00:00:00Z",
            // Forms that jiff reads and the API server does not.
            "20240101T000000Z",
            "2024-01-01 00:00:00Z",
            "2024-01-01T00:00:00+02",
            "2024-01-01T00:00:00Z[UTC]",
            "2024-01-01T00:00:00,5Z",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
