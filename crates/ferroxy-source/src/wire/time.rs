//! The API's timestamps (RFC 3339) as seconds since 1970. Not a calendar.

use super::field::{Note, Notes};

/// Reads a timestamp; one that cannot be read is noted.
pub(super) fn seconds(text: &str, field: &str, notes: &mut Notes) -> Option<i64> {
    let seconds = parse(text);
    if seconds.is_none() {
        let reason = format!("{text:?} is not a time such as 2024-02-29T12:00:00Z");
        notes.0.push(Note { field: field.to_owned(), reason });
    }
    seconds
}

/// `2024-02-29T12:00:00.123+02:00`; the fraction is cut off.
fn parse(text: &str) -> Option<i64> {
    let (date, rest) = text.split_once(['T', 't'])?;
    let zone_at = rest.find(['Z', 'z', '+', '-'])?;
    let (clock, zone) = rest.split_at(zone_at);
    Some(days(date)? * 86_400 + second_of_day(clock)? - offset(zone)?)
}

/// Days from 1970-01-01 to a date of the Gregorian calendar.
fn days(date: &str) -> Option<i64> {
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let february = if leap { 29 } else { 28 };
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let before = usize::try_from(month).ok()?.checked_sub(1)?;
    if day < 1 || day > *lengths.get(before)? {
        return None;
    }
    // Leap days of all years before this one, counted from year 1.
    let leaps = |year: i64| year / 4 - year / 100 + year / 400;
    let to_year = (year - 1970) * 365 + leaps(year - 1) - leaps(1969);
    Some(to_year + lengths.iter().take(before).sum::<i64>() + day - 1)
}

fn second_of_day(clock: &str) -> Option<i64> {
    let (whole, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    if fraction.is_empty() || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let [hour, minute, second] = numbers(whole, ':', [2, 2, 2])?;
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
    use super::parse;

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
