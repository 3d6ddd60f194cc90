//! Server-sent events: the journal as it grows, and the status when it changes.

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{sleep, timeout};

use super::query::Query;
use super::{Page, Refused};
use crate::journal::Journal;
use crate::serve::body::{Body, Chunks, Making};
use crate::serve::http::Answer;
use crate::view;

/// Streams at a time.
pub const MOST_STREAMS: usize = 16;

/// Entries in one chunk.
const MOST_ENTRIES: usize = 200;
/// The pause between two chunks: in a busy cluster it wakes a reader a few times a second, and not for each change.
const PAUSE: Duration = Duration::from_millis(100);
/// The pause between two events of the status.
const STATUS: Duration = Duration::from_secs(1);
/// A silent stream sends a comment at this interval, so that proxies do not close it.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// `last_seen`: the header with the last entry that a client has seen before it reconnects.
pub fn answer(
    page: &Arc<Page>,
    query: Option<&str>,
    last_seen: Option<&str>,
    is_head: bool,
) -> Result<Answer, Refused> {
    let query = Query::read(query, &["after"])?;
    let after = last_seen.and_then(|text| text.parse().ok()).or(query.number("after")?);
    let Some(journal) = &page.status.journal else {
        return Err(Refused::new(StatusCode::NOT_FOUND, "no journal is kept"));
    };
    let permit = Arc::clone(&page.streams).try_acquire_owned().map_err(|_| {
        let words = format!("{MOST_STREAMS} streams of events are open already, and no more are allowed");
        Refused::new(StatusCode::SERVICE_UNAVAILABLE, words)
    })?;
    let stream = Follower {
        seen: after.unwrap_or_else(|| journal.last()),
        news: journal.follow(),
        page: Arc::clone(page),
        spoke: None,
        told: None,
        outline: None,
        _permit: permit,
    };
    let body = if is_head { Body::from("") } else { Body::stream(Box::new(stream)) };
    let mut answer = Response::new(body);
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    Ok(answer)
}

/// One stream.
struct Follower {
    page: Arc<Page>,
    news: watch::Receiver<u64>,
    /// The number of the last entry that was sent.
    seen: u64,
    /// When the last chunk was created.
    spoke: Option<Instant>,
    /// When the status was last sent, and the last entry of the journal at that time.
    told: Option<(Instant, u64)>,
    outline: Option<view::status::Outline>,
    _permit: OwnedSemaphorePermit,
}

impl Chunks for Follower {
    fn next(mut self: Box<Self>) -> Making {
        Box::pin(async move {
            let chunk = self.chunk().await;
            Some((chunk, self as Box<dyn Chunks>))
        })
    }
}

impl Follower {
    async fn chunk(&mut self) -> Bytes {
        if let Some(spoke) = self.spoke {
            sleep(PAUSE.saturating_sub(spoke.elapsed())).await;
        }
        loop {
            self.news.borrow_and_update();
            let mut chunk = String::new();
            self.entries(&mut chunk);
            self.status(&mut chunk).await;
            let is_silent = self.spoke.is_some_and(|spoke| spoke.elapsed() >= KEEP_ALIVE);
            if chunk.is_empty() && is_silent {
                chunk.push_str(":\n\n");
            }
            if !chunk.is_empty() {
                self.spoke = Some(Instant::now());
                return chunk.into();
            }
            // An error means that the journal is gone, and the process is about to end.
            let _ = timeout(STATUS, self.news.changed()).await;
        }
    }

    fn entries(&mut self, chunk: &mut String) {
        let Some(journal) = &self.page.status.journal else { return };
        let part = journal.after(self.seen, MOST_ENTRIES);
        // The entry is evicted already, or its number is from an earlier process.
        if self.seen.saturating_add(1) < part.first || self.seen > part.last {
            self.seen = part.first - 1;
            event(chunk, None, "lost", &json!({ "first": part.first }));
            return self.entries(chunk);
        }
        for entry in &part.entries {
            event(chunk, Some(entry.number), "journal", &view::entry::entry(entry));
            self.seen = entry.number;
        }
    }

    /// Writes the status at first, and then whenever it has changed, but at most once a second.
    async fn status(&mut self, chunk: &mut String) {
        if self.told.is_some_and(|(at, _)| at.elapsed() < STATUS) {
            return;
        }
        let (outline, last) = (view::status::outline(&self.page.status), self.last());
        if self.told.is_some_and(|(_, before)| before == last) && self.outline.as_ref() == Some(&outline) {
            return;
        }
        self.page.count_problems(Duration::ZERO).await;
        event(chunk, None, "status", &self.page.status_value());
        self.told = Some((Instant::now(), last));
        self.outline = Some(outline);
    }

    fn last(&self) -> u64 {
        self.page.status.journal.as_ref().map_or(0, Journal::last)
    }
}

/// JSON has no line breaks, so the data is one line.
fn event(chunk: &mut String, id: Option<u64>, name: &str, data: &Value) {
    if let Some(id) = id {
        let _ = writeln!(chunk, "id: {id}");
    }
    let _ = write!(chunk, "event: {name}\ndata: {data}\n\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_a_few_lines() {
        let mut chunk = String::new();
        event(&mut chunk, Some(7), "journal", &json!({ "text": "a\nb" }));
        event(&mut chunk, None, "lost", &json!({ "first": 3 }));
        let expected =
            "id: 7\nevent: journal\ndata: {\"text\":\"a\\nb\"}\n\nevent: lost\ndata: {\"first\":3}\n\n";
        assert_eq!(chunk, expected);
    }
}
