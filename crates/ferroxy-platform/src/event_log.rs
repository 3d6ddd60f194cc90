//! The system's own log of events, where it has one (Windows): for what operators look for there first.

use std::io;

use crate::system;

/// A program in the log. Writing is a call to another process: not for every line.
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
    /// `name`: the source, as people see it.
    pub fn open(name: &str) -> io::Result<EventLog> {
        Ok(EventLog { source: system::event_log::Source::open(name)? })
    }

    /// Long texts are cut.
    pub fn write(&self, severity: Severity, text: &str) -> io::Result<()> {
        self.source.write(severity, text)
    }
}
