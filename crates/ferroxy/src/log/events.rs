//! Warnings and errors of a Windows service go to the Event Log as well. A thread writes them: logging never waits.

use std::io;
use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use ferroxy_platform::event_log::{EventLog, Severity};
use tracing::Level;

/// How many events may wait. More are only in the log.
const MOST: usize = 256;

static EVENTS: OnceLock<SyncSender<(Severity, String)>> = OnceLock::new();

/// From now on, under this name. Fails where the system has no such log.
pub fn to_event_log(name: &str) -> io::Result<()> {
    let log = EventLog::open(name)?;
    let (sender, receiver) = sync_channel::<(Severity, String)>(MOST);
    let write = move || {
        for (severity, text) in receiver {
            // There is no place to report a log that is full or stopped.
            let _: io::Result<()> = log.write(severity, &text);
        }
    };
    thread::Builder::new().name("event-log".to_owned()).spawn(write)?;
    EVENTS.get_or_init(|| sender);
    Ok(())
}

pub(super) fn severity(level: &Level) -> Option<Severity> {
    match *level {
        Level::ERROR => Some(Severity::Error),
        Level::WARN => Some(Severity::Warning),
        _ => None,
    }
}

pub(super) fn offer(severity: Severity, line: &[u8]) {
    if let Some(events) = EVENTS.get() {
        let text = String::from_utf8_lossy(line).trim_end().to_owned();
        let _ = events.try_send((severity, text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_people_must_know_is_an_event() {
        assert_eq!(severity(&Level::ERROR), Some(Severity::Error));
        assert_eq!(severity(&Level::WARN), Some(Severity::Warning));
        assert_eq!((severity(&Level::INFO), severity(&Level::TRACE)), (None, None));
    }

    #[cfg(not(windows))]
    #[test]
    fn a_system_without_an_event_log_says_so() {
        assert_eq!(to_event_log("ferroxy-test").unwrap_err().kind(), io::ErrorKind::Unsupported);
        offer(Severity::Error, b"no thread reads\n");
    }
}
