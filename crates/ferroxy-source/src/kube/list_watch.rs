//! The rules of listing and watching one kind: which request is next, and what responses and failures mean. No
//! sockets and no clock: `follow.rs` has those.
//!
//! ```text
//!            ┌────────────── 410, or stuck in one place ──────────────┐
//!            ▼                                                        │
//!  Start ─ streaming list ─ bookmark "initial events end" ──▶ Watch { version } ─ cut, ended ─▶ the same Watch
//!    └─ (refused) ─ page ─ Pages { token } ─ last page ───────────────▲
//! ```
//!
//! An object is reported as gone only when the server says so, or when a complete list does not contain it.

use std::time::{Duration, Instant};

use ferroxy_core::{Cause, Diagnostic, Object as Subject, ObjectKind};

use super::ask::{Ask, Go, Wait};
use super::backoff::Backoff;
use super::decode::{self, Item, Line, Status};
use super::encoding::{Accept, Encoding};
use super::inventory::Inventory;
use super::outlet::Outlet;
use crate::object::Kind;

const PAGE: u32 = 500;
/// This many errors at the same version cause a new list.
const STUCK: u32 = 3;
/// After this many interrupted streaming lists, pages are requested instead.
const UNFINISHED: u32 = 2;
/// How long a kind that the server does not have is not requested. The server may have it after an upgrade.
const ABSENT_FOR: Duration = Duration::from_secs(180);
/// `Retry-After` is respected up to this.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(60);
/// A watch that lasts this long counts as working, even if it is silent.
const WELL: Duration = Duration::from_secs(10);
/// A watch that ends sooner than this, without data, has failed.
const TOO_SHORT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct ListWatch {
    kind: Kind,
    /// The server, as diagnostics name it.
    server: Subject,
    random: fn() -> f64,
    phase: Phase,
    /// Whether the server is assumed to support streaming lists.
    streaming: bool,
    unfinished: u32,
    page_limit: u32,
    /// The encodings to request.
    pub(super) accept: Accept,
    inventory: Inventory,
    /// When the current response started.
    answered: Option<Instant>,
    /// The encoding of the current response.
    encoding: Encoding,
    /// Whether that response brought data.
    has_data: bool,
    listed: bool,
    settled: bool,
    stuck: Option<Stuck>,
    backoff: Backoff,
    wait: Option<Wait>,
    failure: Option<String>,
    /// Consecutive failed requests, without data in between.
    failures: u32,
    relists: u64,
    errors: u64,
}

#[derive(Debug, Clone, PartialEq)]
enum Phase {
    Start,
    Pages { token: String },
    Watch { version: String },
}

#[derive(Debug)]
struct Stuck {
    version: String,
    times: u32,
}

/// Queries.
impl ListWatch {
    pub(super) fn new(kind: Kind, server: &str, accept: Accept, random: fn() -> f64) -> ListWatch {
        ListWatch {
            kind,
            server: Subject { kind: ObjectKind::ApiServer, name: server.to_owned() },
            random,
            phase: Phase::Start,
            streaming: true,
            unfinished: 0,
            page_limit: PAGE,
            accept,
            inventory: Inventory::new(kind),
            answered: None,
            encoding: Encoding::default(),
            has_data: false,
            listed: false,
            settled: false,
            stuck: None,
            backoff: Backoff::default(),
            wait: None,
            failure: None,
            failures: 0,
            relists: 0,
            errors: 0,
        }
    }

    /// A list has been complete once.
    pub(super) fn is_listed(&self) -> bool {
        self.listed
    }

    /// It is listed, or the server said that there is nothing to list.
    pub(super) fn is_settled(&self) -> bool {
        self.settled
    }

    pub(super) fn is_watching(&self) -> bool {
        matches!(self.phase, Phase::Watch { .. })
    }

    pub(super) fn version(&self) -> Option<&str> {
        match &self.phase {
            Phase::Watch { version } => Some(version),
            _ => None,
        }
    }

    pub(super) fn relists(&self) -> u64 {
        self.relists
    }

    pub(super) fn errors(&self) -> u64 {
        self.errors
    }

    /// Everything that is wrong now. A single failed request does not count: connections end, and the retry succeeds.
    pub(super) fn troubles(&self) -> Vec<Diagnostic> {
        let stuck = self.stuck.as_ref().is_some_and(|stuck| stuck.times > 1);
        let shown = !self.listed || self.failures > 1 || stuck;
        let kind = self.kind.as_str();
        let failure = self.failure.as_ref().filter(|_| shown).map(|reason| Diagnostic {
            object: self.server.clone(),
            field: format!("{kind}s"),
            reason: reason.clone(),
            effect: match self.listed {
                true => format!("changes of {kind}s are not received; the last known state stays in force"),
                false => format!("no {kind} is known yet"),
            },
            cause: if self.listed { Cause::SourceStale } else { Cause::SourceIncomplete },
        });
        failure.into_iter().chain(self.inventory.troubles(&self.server)).collect()
    }
}

/// What to do next.
impl ListWatch {
    pub(super) fn ask(&self) -> Ask {
        match &self.phase {
            Phase::Start if self.streaming => Ask::StreamingList,
            Phase::Start => Ask::Page { limit: self.page_limit, token: None },
            Phase::Pages { token } => Ask::Page { limit: self.page_limit, token: Some(token.clone()) },
            Phase::Watch { version } => Ask::Watch { version: version.clone() },
        }
    }

    pub(super) fn wait(&self) -> Option<Wait> {
        self.wait
    }
}

/// What happened.
impl ListWatch {
    /// The server answered 200; the body follows, in this encoding.
    pub(super) fn answered(&mut self, encoding: Encoding, now: Instant) {
        self.answered = Some(now);
        self.encoding = encoding;
        self.has_data = false;
        self.wait = None;
        if self.stuck.is_none() {
            self.failure = None;
        }
        if self.phase == Phase::Start {
            self.inventory.begin_list();
        }
    }

    /// A line or a frame of a watch or of a streaming list.
    pub(super) fn line(&mut self, bytes: &[u8], now: Instant, out: &mut Outlet) -> Go {
        self.has_data = true;
        let line = match decode::line(self.encoding, self.kind, bytes) {
            Ok(line) => line,
            Err(error) => {
                let unit = self.encoding.unit();
                return self.unreadable(format!("sent a {unit} that is not a watch event: {error}"), now);
            }
        };
        self.accept.readable();
        match line {
            Line::Changed(item) => self.take_in(item, Inventory::change, out),
            Line::Deleted(item) => self.take_in(item, Inventory::delete, out),
            Line::Unknown => {}
            Line::Bookmark(bookmark) => match (bookmark.version, &self.phase) {
                (Some(version), Phase::Watch { .. }) if !self.is_past(&version) => self.advance(version),
                (Some(version), _) if bookmark.ends_list => self.finish_list(version, out),
                // Before the end of the list, no watch can continue from a version.
                _ => {}
            },
            Line::Error(status) => return self.error(status, now),
        }
        Go::On
    }

    /// A whole page of a list.
    pub(super) fn page(&mut self, body: &[u8], now: Instant, out: &mut Outlet) {
        let mut each = |item| self.inventory.change(item, out);
        let end = match decode::page(self.encoding, self.kind, body, &mut each) {
            Ok(end) if !end.resource_version.is_empty() => end,
            Ok(_) => return self.lose_list("sent a list without a resourceVersion".to_owned(), now),
            Err(error) => {
                self.accept.unreadable(self.encoding);
                return self.lose_list(format!("sent a list that cannot be read: {error}"), now);
            }
        };
        self.accept.readable();
        self.answered = None;
        if end.r#continue.is_empty() {
            self.finish_list(end.resource_version, out);
        } else {
            self.phase = Phase::Pages { token: end.r#continue };
        }
    }

    /// A page is too large for the buffer: smaller ones are requested.
    pub(super) fn page_too_large(&mut self, now: Instant) {
        self.page_limit = (self.page_limit / 2).max(1);
        let limit = self.page_limit;
        self.lose_list(
            format!("sent a page that is too large; now requesting {limit} objects at a time"),
            now,
        );
    }

    /// The server answered with a status other than 200.
    pub(super) fn refused(
        &mut self,
        status: Status,
        retry_after: Option<Duration>,
        now: Instant,
        out: &mut Outlet,
    ) {
        let streaming_list = self.ask() == Ask::StreamingList;
        self.settled |= matches!(status.code, 403 | 404);
        match status.code {
            406 | 415 if self.accept.refused() => self.wait = None,
            // 422: the feature is off. 400, 405, 501: the server, or a proxy before it, is too old to support it.
            // 403: listing may be permitted without watching; if neither is, the request for a page shows it.
            400 | 403 | 405 | 422 | 501 if streaming_list => {
                self.streaming = false;
                self.wait = None;
            }
            404 if self.kind == Kind::ServiceCidr => self.absent(now, out),
            410 => self.restart(&status, now),
            _ if status.is_version_too_large() => self.restart(&status, now),
            _ => {
                let watching = self.is_watching();
                let count = watching && matches!(status.code, 400 | 402 | 404..=428);
                self.fail(status.to_string(), now);
                // Retry-After holds even if other requests are answered earlier.
                if let (429 | 503, Some(after), Some(wait)) = (status.code, retry_after, &mut self.wait) {
                    let until = wait.until.max(now + after.min(LONGEST_RETRY_AFTER));
                    *wait = Wait { until, until_recovery: false };
                }
                if count {
                    self.count_stumble();
                }
            }
        }
    }

    /// The connection failed, broke or is silent.
    pub(super) fn broken(&mut self, reason: String, now: Instant) {
        if self.answered.is_some() && self.phase == Phase::Start {
            self.count_unfinished();
        }
        self.fail(reason, now);
    }

    /// The response is too long, or is not a watch event.
    pub(super) fn unreadable(&mut self, reason: String, now: Instant) -> Go {
        self.accept.unreadable(self.encoding);
        self.stumble(reason, now)
    }

    fn stumble(&mut self, reason: String, now: Instant) -> Go {
        self.fail(reason, now);
        self.count_stumble();
        Go::Reconnect
    }

    /// The server ended a watch normally. It does so every few minutes, as requested.
    pub(super) fn ended(&mut self, now: Instant) {
        let short = self.answered.is_some_and(|since| now.saturating_duration_since(since) < TOO_SHORT);
        if !self.is_watching() {
            self.count_unfinished();
            self.fail("ended a list before it was complete".to_owned(), now);
        } else if short && !self.has_data {
            self.fail("closes every watch immediately without data".to_owned(), now);
        }
        self.answered = None;
    }

    /// We closed the connection to continue on another.
    pub(super) fn moved(&mut self) {
        self.answered = None;
        self.wait = None;
    }

    /// Switches to another server. Its resource versions are different: everything is listed again.
    pub(super) fn change_server(&mut self, server: &str) {
        if self.server.name != server {
            server.clone_into(&mut self.server.name);
            self.phase = Phase::Start;
            self.stuck = None;
            self.accept.reset();
            self.streaming = true;
            self.unfinished = 0;
        }
    }
}

impl ListWatch {
    fn take_in(
        &mut self,
        item: Item,
        apply: impl FnOnce(&mut Inventory, Item, &mut Outlet),
        out: &mut Outlet,
    ) {
        let Some(version) = item.version.clone() else { return apply(&mut self.inventory, item, out) };
        if !self.is_past(&version) {
            apply(&mut self.inventory, item, out);
            self.advance(version);
        }
    }

    /// A watch only goes forward: an event older than its version is a replay, and would bring back objects that are
    /// gone. A list is always current: a server restored from a backup may have lower versions.
    fn is_past(&self, version: &str) -> bool {
        let place = self.version().map_or(0, number);
        number(version) != 0 && number(version) < place
    }

    /// Continue from here after the next interruption. Ignored during a list, which is sorted by name.
    fn advance(&mut self, to: String) {
        let Phase::Watch { version } = &mut self.phase else { return };
        *version = to;
        if self.stuck.as_ref().is_some_and(|stuck| stuck.version != *version) {
            self.stuck = None;
            self.failure = None;
        }
    }

    fn finish_list(&mut self, version: String, out: &mut Outlet) {
        self.relists += u64::from(self.listed);
        self.inventory.end_list(out);
        self.phase = Phase::Watch { version };
        (self.listed, self.settled) = (true, true);
        self.unfinished = 0;
        self.failure = None;
        self.wait = None;
        out.flush();
    }

    fn absent(&mut self, now: Instant, out: &mut Outlet) {
        self.inventory.begin_list();
        self.inventory.end_list(out);
        out.flush();
        self.phase = Phase::Start;
        self.failure = None;
        self.wait = Some(Wait { until: now + ABSENT_FOR, until_recovery: false });
    }

    fn error(&mut self, status: Status, now: Instant) -> Go {
        if status.code == 410 || status.is_version_too_large() {
            self.restart(&status, now);
            return Go::Reconnect;
        }
        self.stumble(status.to_string(), now)
    }

    /// The version to continue from is gone: list again. No object is dropped meanwhile.
    fn restart(&mut self, status: &Status, now: Instant) {
        self.fail(status.to_string(), now);
        self.failure = None;
        self.failures = 0;
        self.phase = Phase::Start;
        self.stuck = None;
    }

    fn lose_list(&mut self, reason: String, now: Instant) {
        self.phase = Phase::Start;
        self.fail(reason, now);
    }

    fn fail(&mut self, reason: String, now: Instant) {
        // A proxy in between may accept connections only to cut them.
        let lasted = self.answered.take().is_some_and(|since| now.saturating_duration_since(since) >= WELL);
        self.failures = if self.has_data || lasted { 1 } else { self.failures + 1 };
        if lasted {
            // Earlier failures are over: after a restart of the server, reconnect at once.
            self.backoff = Backoff::default();
        }
        self.has_data = false;
        self.errors += 1;
        self.failure = Some(reason);
        let until = now + self.backoff.next(now, (self.random)());
        self.wait = Some(Wait { until, until_recovery: true });
    }

    fn count_stumble(&mut self) {
        let Phase::Watch { version } = &self.phase else {
            return self.count_unfinished();
        };
        let times = self.stuck.take_if(|stuck| stuck.version == *version).map_or(0, |stuck| stuck.times) + 1;
        if times < STUCK {
            self.stuck = Some(Stuck { version: version.clone(), times });
        } else {
            self.phase = Phase::Start;
        }
    }

    fn count_unfinished(&mut self) {
        self.unfinished += 1;
        self.streaming &= self.unfinished < UNFINISHED;
        self.phase = Phase::Start;
    }
}

/// Versions are opaque by contract, and numbers in every known server. 0: this one is not a number.
fn number(version: &str) -> u64 {
    version.parse().unwrap_or(0)
}

#[cfg(test)]
mod tests;
