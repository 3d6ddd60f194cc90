//! klog's text: `I1115 23:04:05.123456   12345 sweep.rs:42] message`, and with keys `"message" key="value"`.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ferroxy_core::foreign::printable;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::Offset;
use serde_json::Value;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::fields::Fields;
use super::place;

pub(super) struct Klog;

impl<S, N> FormatEvent<S, N> for Klog
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let metadata = event.metadata();
        let file = place::short(metadata.file().unwrap_or("???"));
        let line = metadata.line().unwrap_or(1);
        #[allow(clippy::disallowed_methods, reason = "for people")]
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        header(&mut out, *metadata.level(), now)?;
        write!(out, "{file}:{line}] ")?;
        body(&mut out, &Fields::of(event))?;
        writeln!(out)
    }
}

/// Severity, local time, process id.
fn header(out: &mut Writer<'_>, level: Level, since_epoch: Duration) -> fmt::Result {
    let severity = match level {
        Level::ERROR => 'E',
        Level::WARN => 'W',
        _ => 'I',
    };
    let time = local(since_epoch);
    write!(
        out,
        "{severity}{:02}{:02} {:02}:{:02}:{:02}.{:06} {:>7} ",
        time.month(),
        time.day(),
        time.hour(),
        time.minute(),
        time.second(),
        since_epoch.subsec_micros(),
        std::process::id(),
    )
}

/// klog writes local time, without the zone.
fn local(since_epoch: Duration) -> DateTime {
    let seconds = i64::try_from(since_epoch.as_secs()).unwrap_or_default();
    let offset = i64::from(ferroxy_platform::host::utc_offset_seconds(seconds));
    let local = Timestamp::from_second(seconds.saturating_add(offset)).unwrap_or_default();
    Offset::UTC.to_datetime(local)
}

/// One event is one line, whatever it contains, and no control character reaches a terminal.
fn body(out: &mut Writer<'_>, fields: &Fields) -> fmt::Result {
    if fields.pairs.is_empty() {
        return out.write_str(&printable(&fields.message));
    }
    write!(out, "{:?}", fields.message)?;
    for (name, value) in &fields.pairs {
        match value {
            Value::String(text) => write!(out, " {name}={text:?}")?,
            other => write!(out, " {name}={other}")?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body_of(message: &str, pairs: &[(&'static str, Value)]) -> String {
        let mut text = String::new();
        let fields = Fields { message: message.to_owned(), pairs: pairs.to_vec() };
        body(&mut Writer::new(&mut text), &fields).unwrap();
        text
    }

    #[test]
    fn headers() {
        for (level, severity) in [
            (Level::ERROR, 'E'),
            (Level::WARN, 'W'),
            (Level::INFO, 'I'),
            (Level::DEBUG, 'I'),
            (Level::TRACE, 'I'),
        ] {
            let mut text = String::new();
            header(&mut Writer::new(&mut text), level, Duration::new(951_782_400, 1_234_567)).unwrap();
            assert!(text.starts_with(&format!("{severity}02")), "{text}");
            // The hour, and perhaps the day, depend on where this runs.
            assert!(text.contains(":00.001234 "), "{text}");
            assert!(text.ends_with(&format!(" {:>7} ", std::process::id())), "{text}");
        }
    }

    #[test]
    fn messages_alone_are_plain_and_one_line() {
        assert_eq!(body_of("in sync: 3 \"things\"", &[]), "in sync: 3 \"things\"");
        assert_eq!(body_of("two\nlines", &[]), "two\\nlines");
        assert_eq!(body_of("\u{1b}[2Jgone", &[]), "\\u{1b}[2Jgone");
        assert_eq!(body_of("a \u{1b}[31mcolour\u{202e}", &[]), r"a \u{1b}[31mcolour\u{202e}");
    }

    #[test]
    fn messages_with_keys_are_quoted() {
        let pairs = [("err", "no\nway \"home\"".into()), ("count", 3.into()), ("fast", true.into())];
        assert_eq!(body_of("it failed", &pairs), r#""it failed" err="no\nway \"home\"" count=3 fast=true"#);
    }
}
