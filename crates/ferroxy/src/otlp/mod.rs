//! Traces of changes from the API to the kernel, sent to an OpenTelemetry collector (OTLP over HTTP, in JSON). Off unless an endpoint is
//! configured.
//!
//! A thread reads the journal, which serves as the queue: it is bounded, and the agent never waits for a reader. While the
//! collector does not answer, the oldest entries are evicted and counted.

mod endpoint;
mod spans;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tracing::{info, warn};

use crate::journal::{Journal, Part};
use crate::serve::Status;

pub use endpoint::Endpoint;
use spans::About;

/// How often the journal is read. Entries wait for this long at most, unless there are very many.
const EVERY: Duration = Duration::from_secs(1);

/// Waits after failures: twice as long each time, up to this.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Entries in one request.
const BATCH: usize = 200;

static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Entries of the journal that the collector did not get.
pub fn dropped() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

/// Sends new entries of the journal, until the process ends.
pub fn start(endpoint: Endpoint, node: &str, mode: &'static str, status: Arc<Status>) -> std::io::Result<()> {
    let about = About { node: node.to_owned(), mode };
    let work = move || {
        if let Some(journal) = &status.journal {
            Exporter { endpoint, about, sent: journal.last(), failures: 0 }.work(journal);
        }
    };
    thread::Builder::new().name("otlp".to_owned()).spawn(work).map(drop)
}

#[derive(Debug)]
struct Exporter {
    endpoint: Endpoint,
    about: About,
    /// The number of the last entry that was sent, or given up.
    sent: u64,
    failures: u32,
}

impl Exporter {
    fn work(mut self, journal: &Journal) -> ! {
        loop {
            let wait = self.round(journal);
            thread::sleep(wait);
        }
    }

    /// Sends one batch. Returns how long to wait.
    fn round(&mut self, journal: &Journal) -> Duration {
        let part = journal.after(self.sent, BATCH);
        self.count_lost(&part);
        let Some(last) = part.entries.last().map(|entry| entry.number) else { return EVERY };
        let is_all = last == part.last;
        let Some(body) = spans::request(&part.entries, &self.about) else {
            self.sent = last;
            return if is_all { EVERY } else { Duration::ZERO };
        };
        match self.endpoint.post(body.to_string().as_bytes()) {
            Ok(()) => {
                if self.failures > 0 {
                    info!("the OpenTelemetry collector {} answers again", self.endpoint);
                }
                (self.sent, self.failures) = (last, 0);
                if is_all { EVERY } else { Duration::ZERO }
            }
            Err(error) => {
                // Logged once, and not for each attempt.
                if self.failures == 0 {
                    let endpoint = &self.endpoint;
                    warn!(
                        "cannot send traces to {endpoint}: {error}; retrying, and dropping the oldest traces when the \
                         journal is full"
                    );
                }
                self.failures += 1;
                EVERY.saturating_mul(1 << self.failures.min(5)).min(LONGEST_WAIT)
            }
        }
    }

    /// Counts entries that were evicted before they were sent.
    fn count_lost(&mut self, part: &Part) {
        let lost = part.first.saturating_sub(self.sent + 1);
        DROPPED.fetch_add(lost, Ordering::Relaxed);
        self.sent += lost;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;
    use crate::journal::{Entry, MOST, What};

    fn exporter(address: &str) -> Exporter {
        let endpoint = Endpoint::parse(&format!("http://{address}")).unwrap();
        let about = About { node: "ka".to_owned(), mode: "nftables" };
        Exporter { endpoint, about, sent: 0, failures: 0 }
    }

    fn write(journal: &Journal, count: usize) {
        for _ in 0..count {
            let service = Some(ferroxy_core::ServiceName::new("default", "web"));
            journal.write(Entry { service, took: Some(0.001), ..Entry::new(What::Changed, "") });
        }
    }

    #[test]
    fn what_a_silent_collector_misses_is_counted_and_bounded() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let (journal, mut exporter) = (Journal::default(), exporter(&address.to_string()));
        write(&journal, 5);
        assert_eq!((exporter.round(&journal), exporter.sent), (2 * EVERY, 0), "it is retried");
        assert_eq!(exporter.round(&journal), 4 * EVERY);
        for _ in 0..10 {
            exporter.round(&journal);
        }
        assert_eq!(exporter.round(&journal), LONGEST_WAIT);
        let before = dropped();
        write(&journal, MOST);
        exporter.round(&journal);
        assert_eq!((dropped() - before, exporter.sent), (5, 5), "five made way");
    }

    #[test]
    fn a_collector_gets_each_entry_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let collector = std::thread::spawn(move || {
            let mut bodies = Vec::new();
            for _ in 0..2 {
                let (mut stream, _) = listener.accept().unwrap();
                let (mut request, mut byte) = (Vec::new(), [0]);
                while !request.ends_with(b"}]}]}]}") {
                    stream.read_exact(&mut byte).unwrap();
                    request.extend(byte);
                }
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").unwrap();
                let text = String::from_utf8(request).unwrap();
                assert!(text.starts_with("POST /v1/traces HTTP/1.0\r\n"), "{text}");
                bodies.push(text.split_once("\r\n\r\n").unwrap().1.matches("\"name\":\"change\"").count());
            }
            bodies
        });
        let (journal, mut exporter) = (Journal::default(), exporter(&address.to_string()));
        assert_eq!(exporter.round(&journal), EVERY, "there is nothing to send");
        write(&journal, BATCH + 1);
        assert_eq!(exporter.round(&journal), Duration::ZERO, "there is more");
        assert_eq!(exporter.round(&journal), EVERY);
        assert_eq!(exporter.sent, BATCH as u64 + 1);
        assert_eq!(collector.join().unwrap(), [BATCH, 1]);
    }
}
