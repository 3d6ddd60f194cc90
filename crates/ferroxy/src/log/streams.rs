//! Where lines go: all to standard error, or (`splitStream`) errors there and the rest to standard output, or to a file.

use std::io::{self, Write};
use std::time::Duration;

use ferroxy_core::foreign::printable;
use ferroxy_platform::event_log::Severity;
use tracing::callsite::Identifier;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use super::backlog::To;
use super::{events, limit, writer};
use crate::config::{LogFormat, Logging};

pub(super) fn open(logging: &Logging) -> Streams {
    let stream = match logging.format {
        LogFormat::Text => &logging.text,
        LogFormat::Json => &logging.json,
    };
    let hold = if stream.split_stream { stream.buffer_bytes() } else { 0 };
    let every = Some(logging.flush_frequency).filter(|every| hold > 0 && *every > Duration::ZERO);
    // Without the writer, lines are printed as those of any other command.
    let _ = writer::open(hold, every);
    Streams { split: stream.split_stream }
}

/// A line for people on standard error, in the order of the log. It never blocks once the log is open. Parts of the line may
/// be text of tenants.
pub fn print_error(line: &str) {
    let line = format!("{}\n", printable(line));
    if !writer::write(To::Stderr, line.as_bytes()) {
        // Not `eprintln!`, which panics when the reader is gone: then there is nowhere to report it.
        let _ = io::stderr().write_all(line.as_bytes());
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Streams {
    split: bool,
}

impl<'a> MakeWriter<'a> for Streams {
    type Writer = Stream;

    fn make_writer(&'a self) -> Stream {
        Stream { to: To::Stderr, payer: None, severity: None }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Stream {
        let is_apart = self.split && *metadata.level() != Level::ERROR;
        Stream {
            to: if is_apart { To::Stdout } else { To::Stderr },
            payer: limit::payer(metadata),
            severity: events::severity(metadata.level()),
        }
    }
}

/// Every write is a whole line.
#[derive(Debug)]
pub(super) struct Stream {
    to: To,
    payer: Option<Identifier>,
    /// The severity of an event for the system's own log.
    severity: Option<Severity>,
}

impl Write for Stream {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if let Some(payer) = &self.payer {
            limit::spend(payer, line.len());
        }
        if let Some(severity) = self.severity {
            events::offer(severity, line);
        }
        if !writer::write(self.to, line) {
            return io::stderr().write(line);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
