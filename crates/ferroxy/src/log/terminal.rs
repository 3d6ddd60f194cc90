//! A line for people at a terminal: `2026-11-17T04:05:06.123456Z  INFO message key="value"`, with colours if they are wanted.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ferroxy_core::foreign::printable;
use jiff::Timestamp;
use serde_json::Value;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::fields::Fields;

pub(super) struct Terminal {
    pub(super) colour: bool,
}

impl<S, N> FormatEvent<S, N> for Terminal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        #[allow(clippy::disallowed_methods, reason = "for people")]
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.line(&mut out, now, *event.metadata().level(), &Fields::of(event))
    }
}

impl Terminal {
    /// One event is one line, whatever it contains, and only our own control characters reach the terminal.
    fn line(&self, out: &mut Writer<'_>, now: Duration, level: Level, fields: &Fields) -> fmt::Result {
        let micros = i64::try_from(now.as_micros()).unwrap_or_default();
        let time = Timestamp::from_microsecond(micros).unwrap_or_default();
        let (name, code) = match level {
            Level::ERROR => ("ERROR", "31"),
            Level::WARN => (" WARN", "33"),
            Level::INFO => (" INFO", "32"),
            Level::DEBUG => ("DEBUG", "34"),
            Level::TRACE => ("TRACE", "35"),
        };
        match self.colour {
            true => write!(out, "\x1b[2m{time:.6}\x1b[0m \x1b[{code}m{name}\x1b[0m ")?,
            false => write!(out, "{time:.6} {name} ")?,
        }
        out.write_str(&printable(&fields.message))?;
        for (name, value) in &fields.pairs {
            match value {
                Value::String(text) => write!(out, " {name}={text:?}")?,
                other => write!(out, " {name}={other}")?,
            }
        }
        writeln!(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(colour: bool, level: Level, message: &str, pairs: &[(&'static str, Value)]) -> String {
        let mut text = String::new();
        let fields = Fields { message: message.to_owned(), pairs: pairs.to_vec() };
        let now = Duration::new(1_794_888_306, 123_456_789);
        Terminal { colour }.line(&mut Writer::new(&mut text), now, level, &fields).unwrap();
        text
    }

    #[test]
    fn a_line_is_plain_without_colours() {
        let pairs = [("err", "no \"way\"".into()), ("count", 3.into())];
        let expected = "2026-11-17T04:05:06.123456Z  INFO in sync err=\"no \\\"way\\\"\" count=3\n";
        assert_eq!(line(false, Level::INFO, "in sync", &pairs), expected);
    }

    /// A message may contain what tenants wrote: no part of it may look like a line of ours, or do anything to the terminal.
    #[test]
    fn what_others_wrote_neither_ends_the_line_nor_reaches_the_terminal() {
        let hostile = "gone\u{1b}[2J\n2026 ERROR forged\r\u{9b}31m\u{202e}";
        let pairs = [("err", hostile.into())];
        let plain = line(false, Level::WARN, hostile, &pairs);
        assert!(
            plain.trim_end_matches('\n').chars().all(|c| c.is_ascii() && !c.is_ascii_control()),
            "{plain:?}"
        );
        assert_eq!(plain.matches('\n').count(), 1);
        let coloured = line(true, Level::WARN, hostile, &pairs);
        assert_eq!(coloured.matches('\u{1b}').count(), 4, "{coloured:?}");
    }
}
