//! The API's timestamps (RFC 3339), read as time since 1970 and written for events. Not a calendar.

use std::time::Duration;

use super::field::{Note, Notes};

/// Reads a timestamp, without its fraction; one that cannot be read is noted.
pub(super) fn seconds(text: &str, field: &str, notes: &mut Notes) -> Option<i64> {
    noted(parse(text), text, field, notes).map(|(seconds, _)| seconds)
}

/// The same in nanoseconds. Years that do not fit (before 1678, after 2261) cannot be read.
pub(super) fn nanoseconds(text: &str, field: &str, notes: &mut Notes) -> Option<i64> {
    let whole =
        |(seconds, nanoseconds): (i64, i64)| seconds.checked_mul(1_000_000_000)?.checked_add(nanoseconds);
    noted(parse(text).and_then(whole), text, field, notes)
}

/// `2024-02-29T12:00:00.123456Z`, as the API writes the times of events.
pub(crate) fn write_micros(since_1970: Duration) -> String {
    let seconds = since_1970.as_secs();
    let (mut year, mut day) = (1970, seconds / 86_400);
    while day >= days_of(year) {
        day -= days_of(year);
        year += 1;
    }
    let mut month = 1;
    for length in month_lengths(year) {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let micros = since_1970.subsec_micros();
    format!("{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z", day + 1)
}

fn noted<T>(time: Option<T>, text: &str, field: &str, notes: &mut Notes) -> Option<T> {
    if time.is_none() {
        let reason = format!("{text:?} is not a time such as 2024-02-29T12:00:00Z");
        notes.0.push(Note { field: field.to_owned(), reason });
    }
    time
}

/// `2024-02-29T12:00:00.123+02:00` as seconds since 1970 and the nanoseconds after them.
fn parse(text: &str) -> Option<(i64, i64)> {
    let (date, rest) = text.split_once(['T', 't'])?;
    let zone_at = rest.find(['Z', 'z', '+', '-'])?;
    let (clock, zone) = rest.split_at(zone_at);
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    Some((days(date)? * 86_400 + second_of_day(clock)? - offset(zone)?, nanoseconds_of(fraction)?))
}

/// The digits after the point; what is finer than a nanosecond is cut off.
fn nanoseconds_of(fraction: &str) -> Option<i64> {
    if fraction.is_empty() || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    format!("{fraction:0<9}").get(..9)?.parse().ok()
}

/// Days from 1970-01-01 to a date of the Gregorian calendar.
fn days(date: &str) -> Option<i64> {
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let lengths = month_lengths(u64::try_from(year).ok()?).map(|days| days as i64);
    let before = usize::try_from(month).ok()?.checked_sub(1)?;
    if day < 1 || day > *lengths.get(before)? {
        return None;
    }
    // Leap days of all years before this one, counted from year 1.
    let leaps = |year: i64| year / 4 - year / 100 + year / 400;
    let to_year = (year - 1970) * 365 + leaps(year - 1) - leaps(1969);
    Some(to_year + lengths.iter().take(before).sum::<i64>() + day - 1)
}

fn month_lengths(year: u64) -> [u64; 12] {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let february = if leap { 29 } else { 28 };
    [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
}

fn days_of(year: u64) -> u64 {
    month_lengths(year).iter().sum()
}

fn second_of_day(clock: &str) -> Option<i64> {
    let [hour, minute, second] = numbers(clock, ':', [2, 2, 2])?;
    // A leap second (:60) is the second after, as everywhere in POSIX time.
    (hour < 24 && minute < 60 && second <= 60).then_some(hour * 3600 + minute * 60 + second)
}

/// Seconds that a zone is ahead of UTC: `Z`, `+02:00`, `-07:30`.
fn offset(zone: &str) -> Option<i64> {
    if zone.eq_ignore_ascii_case("z") {
        return Some(0);
    }
    let (sign, hours) = match zone.split_at_checked(1)? {
        ("+", hours) => (1, hours),
        ("-", hours) => (-1, hours),
        _ => return None,
    };
    let [hour, minute] = numbers(hours, ':', [2, 2])?;
    (hour < 24 && minute < 60).then_some(sign * (hour * 3600 + minute * 60))
}

/// Exactly these many digits each, with a separator between.
fn numbers<const N: usize>(text: &str, separator: char, widths: [usize; N]) -> Option<[i64; N]> {
    let mut parts = text.split(separator);
    let mut numbers = [0; N];
    for (number, width) in numbers.iter_mut().zip(widths) {
        let part = parts.next()?;
        if part.len() != width || !part.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        *number = part.parse().ok()?;
    }
    parts.next().is_none().then_some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<i64> {
        super::parse(text).map(|(seconds, _)| seconds)
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
            let (seconds, nanos) = super::parse(text).unwrap();
            assert_eq!(write_micros(Duration::new(seconds as u64, nanos as u32)), text);
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
        assert_eq!(parse("2016-12-31T23:59:60Z"), parse("2017-01-01T00:00:00Z"));
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
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
