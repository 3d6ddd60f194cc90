//! Warnings and errors of a Windows service go to the Event Log as well. A thread writes them: logging never waits.

use std::io;
use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use ferroxy_platform::event_log::{EventLog, Severity};
use tracing::Level;

/// How many events may wait. More are only in the log.
const MOST: usize = 256;

/// How long the end of the process waits for its last events.
const LAST_WORDS: Duration = Duration::from_secs(1);

enum Message {
    Event(Severity, String),
    /// Answered when all earlier events are written.
    Flush(SyncSender<()>),
}

static EVENTS: OnceLock<SyncSender<Message>> = OnceLock::new();

/// From now on, events are written under this name. Fails if the system has no such log. The first call counts.
pub fn to_event_log(name: &str) -> io::Result<()> {
    if EVENTS.get().is_none() {
        let log = EventLog::open(name)?;
        // There is no place to report a log that is full or stopped.
        let sender = forward(move |severity, text| drop(log.write(severity, text)))?;
        EVENTS.get_or_init(|| sender);
    }
    Ok(())
}

/// A thread that writes.
fn forward(mut write: impl FnMut(Severity, &str) + Send + 'static) -> io::Result<SyncSender<Message>> {
    let (sender, receiver) = sync_channel(MOST);
    let run = move || {
        for message in receiver {
            match message {
                Message::Event(severity, text) => write(severity, &text),
                // The caller of `flush` may have given up.
                Message::Flush(answer) => drop(answer.try_send(())),
            }
        }
    };
    thread::Builder::new().name("event-log".to_owned()).spawn(run)?;
    Ok(sender)
}

/// Waits until events are written, for a second at most.
pub(super) fn flush() {
    if let Some(events) = EVENTS.get() {
        wait(events, LAST_WORDS);
    }
}

fn wait(events: &SyncSender<Message>, most: Duration) {
    let (answer, answered) = sync_channel(1);
    if events.try_send(Message::Flush(answer)).is_ok() {
        let _ = answered.recv_timeout(most);
    }
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
        let _ = events.try_send(Message::Event(severity, text));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn only_what_people_must_know_is_an_event() {
        assert_eq!(severity(&Level::ERROR), Some(Severity::Error));
        assert_eq!(severity(&Level::WARN), Some(Severity::Warning));
        assert_eq!((severity(&Level::INFO), severity(&Level::TRACE)), (None, None));
    }

    /// A process that ends writes its last events first.
    #[test]
    fn the_end_waits_for_events() {
        let written = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&written);
        let write = move |severity, text: &str| seen.lock().unwrap().push((severity, text.to_owned()));
        let events = forward(write).unwrap();
        for number in 0..100 {
            events.send(Message::Event(Severity::Error, number.to_string())).unwrap();
        }
        // Far longer than any machine needs.
        wait(&events, Duration::from_secs(600));
        assert_eq!(written.lock().unwrap().len(), 100);
    }

    #[cfg(not(windows))]
    #[test]
    fn a_system_without_an_event_log_says_so() {
        assert_eq!(to_event_log("ferroxy-test").unwrap_err().kind(), io::ErrorKind::Unsupported);
        offer(Severity::Error, b"no thread reads\n");
    }
}
