//! The system's event log, where it has one (Windows), for messages that operators look for there first.

use std::io;

use crate::system;

/// A program in the log. Each write is a call to another process, so it is not meant for every log line.
#[derive(Debug)]
pub struct EventLog {
    source: system::event_log::Source,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    Warning,
    Error,
}

impl EventLog {
    /// `name` is the source's name as users see it.
    pub fn open(name: &str) -> io::Result<EventLog> {
        Ok(EventLog { source: system::event_log::Source::open(name)? })
    }

    /// Long texts are cut.
    pub fn write(&self, severity: Severity, text: &str) -> io::Result<()> {
        self.source.write(severity, text)
    }
}
