//! Durations as Go writes them: `1h30m`, `1.5s`, `0s`.

use std::time::Duration;

const UNITS: [(&str, i128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60 * 1_000_000_000),
    ("h", 3600 * 1_000_000_000),
];

/// Nanoseconds, which may be negative. The caller checks the range.
pub fn parse(text: &str) -> Result<i64, String> {
    let wrong = || format!("{text:?} is not a duration such as 30s or 1h30m");
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(wrong());
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let (nanoseconds, after) = part(rest).ok_or_else(wrong)?;
        total = total.checked_add(nanoseconds).ok_or_else(wrong)?;
        rest = after;
    }
    i64::try_from(if negative { -total } else { total }).map_err(|_| wrong())
}

/// Reads one number with its unit. Returns it in nanoseconds, and the rest of the text.
fn part(text: &str) -> Option<(i128, &str)> {
    let number_end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, rest) = text.split_at(number_end);
    let unit_end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
    let (unit, after) = rest.split_at(unit_end);
    let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    Some((whole.checked_mul(*scale)?.checked_add(fraction_of(fraction, *scale)?)?, after))
}

/// The digits after the point, in nanoseconds. Digits that are too small to matter are cut off.
fn fraction_of(digits: &str, scale: i128) -> Option<i128> {
    if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let digits = digits.get(..digits.len().min(18))?;
    let numerator: i128 = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    Some(numerator * scale / 10_i128.pow(digits.len() as u32))
}

/// As Go prints it: `24h0m0s`, `1m30s`, `1.5s`, `250ms`, `0s`.
pub fn format(duration: Duration) -> String {
    let nanoseconds = duration.as_nanos();
    let seconds = duration.as_secs();
    match nanoseconds {
        0 => "0s".to_owned(),
        1..1_000 => format!("{nanoseconds}ns"),
        1_000..1_000_000 => with_fraction(nanoseconds, 1_000, "µs"),
        1_000_000..1_000_000_000 => with_fraction(nanoseconds, 1_000_000, "ms"),
        _ => {
            let last = with_fraction(nanoseconds % 60_000_000_000, 1_000_000_000, "s");
            match (seconds / 3600, seconds / 60 % 60) {
                (0, 0) => last,
                (0, minutes) => format!("{minutes}m{last}"),
                (hours, minutes) => format!("{hours}h{minutes}m{last}"),
            }
        }
    }
}

fn with_fraction(nanoseconds: u128, unit: u128, name: &str) -> String {
    let digits = unit.ilog10() as usize;
    let fraction = format!("{:0digits$}", nanoseconds % unit);
    let text = format!("{}.{fraction}", nanoseconds / unit);
    format!("{}{name}", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_go_reads() {
        for (text, nanoseconds) in [
            ("0", 0),
            ("0s", 0),
            ("+0", 0),
            ("5s", 5_000_000_000),
            ("1.5s", 1_500_000_000),
            (".5s", 500_000_000),
            ("5.s", 5_000_000_000),
            ("1h30m", 5_400_000_000_000),
            ("24h0m0s", 86_400_000_000_000),
            ("-1m", -60_000_000_000),
            ("100ms", 100_000_000),
            ("3us2ns", 3_002),
            ("3µs", 3_000),
            ("0.1h", 360_000_000_000),
            ("1.00000000000000000000000000000000000000001s", 1_000_000_000),
        ] {
            assert_eq!(parse(text), Ok(nanoseconds), "{text}");
        }
    }

    #[test]
    fn what_go_refuses() {
        for text in ["", "-", "3", "s", ".s", "1x", "1 s", "1h ", "1.2.3s", "9999999999h", "1d", "٣s"] {
            let error = parse(text).unwrap_err();
            assert!(error.ends_with("is not a duration such as 30s or 1h30m"), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_written_reads_back() {
        for (nanoseconds, text) in [
            (0, "0s"),
            (1, "1ns"),
            (1_100, "1.1µs"),
            (250_000_000, "250ms"),
            (1_500_000_000, "1.5s"),
            (60_000_000_000, "1m0s"),
            (90_000_000_000, "1m30s"),
            (86_400_000_000_000, "24h0m0s"),
            (3_600_000_000_001, "1h0m0.000000001s"),
        ] {
            assert_eq!(format(Duration::from_nanos(nanoseconds)), text);
            assert_eq!(parse(text), Ok(nanoseconds as i64));
        }
    }
}
