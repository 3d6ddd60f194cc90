//! Watches: the changes of a kind as a stream of events, from a version on or after all existing objects. Each open watch is
//! one task; the server notifies it of changes and faults.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::body::{AnswerBody, Ended, Pieces, in_pieces};
use super::fault::{Fault, Injection};
use super::kind::Kind;
use super::list::read_number;
use super::object::{Object, Version};
use super::query::{Request, Verb};
use super::server::Shared;
use super::status::Status;
use super::store::{Change, Selection};
use super::wire::{Sent, Wire};
use super::{PIECE, lock, unless};

/// Notifications to a watch.
#[derive(Debug, Clone)]
pub(super) enum Nudge {
    Changed,
    Inject(Injection),
}

/// An open watch as registered in the server.
#[derive(Debug)]
pub(super) struct Watcher {
    id: usize,
    pub kind: Kind,
    pub nudge: mpsc::UnboundedSender<Nudge>,
}

/// Begins an answer; a separate task continues it.
pub(super) fn watch(
    shared: &Arc<Shared>,
    request: &Request,
    selection: Selection,
    wire: Wire,
) -> Result<AnswerBody, Status> {
    let question = Question::read(shared, request)?;
    let (pieces, body) = in_pieces(request, &shared.faults);
    let begin_with = shared.faults.strike(request.kind, request.verb, |fault| match fault {
        Fault::WatchesBegin(injection) => Some(injection.clone()),
        _ => None,
    });
    // Registered before the store is read, so that no change is missed.
    let (membership, nudges) = Membership::join(shared, selection.kind);
    let shared = Arc::clone(shared);
    let mut watch = Watch { shared, selection, wire, pieces, sent: 0, unsent: BytesMut::new() };
    tokio::spawn(async move {
        let begun = watch.begin(&question, begin_with).await;
        // Ended by the client, the deadline or a fault: the result is not needed.
        if begun.is_ok() {
            let _: Result<(), Ended> = watch.go_on(&question, nudges).await;
        }
        drop(membership);
    });
    Ok(body)
}

/// The parameters of a watch.
struct Question {
    begin: Begin,
    bookmarks: Option<Duration>,
    /// Whether a bookmark ends the initial events.
    end_of_initial_events: bool,
    ends: Option<Instant>,
}

enum Begin {
    Everything,
    Now,
    Version(Version),
}

impl Question {
    fn read(shared: &Shared, request: &Request) -> Result<Question, Status> {
        let streaming = request.query.contains_key("sendInitialEvents");
        let (faults, kind, verb) = (&shared.faults, request.kind, request.verb);
        check_streaming(request, streaming && faults.strikes(kind, verb, &Fault::NoStreamingLists))?;
        let version = read_number(request, "resourceVersion")?;
        let bookmarks = request.flag("allowWatchBookmarks");
        let begin = match version {
            _ if request.flag("sendInitialEvents") => {
                let current = lock(&shared.store).version();
                if version > current {
                    return Err(Status::too_large_version(version, current));
                }
                Begin::Everything
            }
            0 if streaming => Begin::Now,
            0 => Begin::Everything,
            version => Begin::Version(version),
        };
        let endless = verb == Verb::StreamList && faults.strikes(kind, verb, &Fault::EndlessInitialEvents);
        let periodic = bookmarks && !faults.strikes(kind, verb, &Fault::NoBookmarks);
        let timeout = read_number(request, "timeoutSeconds")?;
        Ok(Question {
            begin,
            bookmarks: periodic.then_some(shared.bookmark_interval),
            end_of_initial_events: verb == Verb::StreamList && bookmarks && !endless,
            ends: (timeout > 0).then(|| Instant::now() + Duration::from_secs(timeout)),
        })
    }
}

/// Parameters that API servers require.
fn check_streaming(request: &Request, refused: bool) -> Result<(), Status> {
    let rule = request.parameter("resourceVersionMatch");
    let streaming = request.query.contains_key("sendInitialEvents");
    if refused {
        let message = "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
        return Err(Status::forbidden_option("sendInitialEvents", message));
    }
    if streaming && rule != "NotOlderThan" {
        let message = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        return Err(Status::forbidden_option("resourceVersionMatch", message));
    }
    if !streaming && !rule.is_empty() {
        let message = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
        return Err(Status::forbidden_option("resourceVersionMatch", message));
    }
    Ok(())
}

struct Watch {
    shared: Arc<Shared>,
    selection: Selection,
    wire: Wire,
    pieces: Pieces,
    /// All changes up to this version have been sent.
    sent: Version,
    unsent: BytesMut,
}

impl Watch {
    async fn begin(&mut self, question: &Question, begin_with: Option<Injection>) -> Result<(), Ended> {
        self.fall_silent_if_told_to().await?;
        let (objects, now) = {
            let store = lock(&self.shared.store);
            let everything = matches!(question.begin, Begin::Everything);
            (if everything { store.all(&self.selection) } else { Vec::new() }, store.version())
        };
        self.sent = match question.begin {
            Begin::Version(version) => version,
            Begin::Everything | Begin::Now => now,
        };
        for object in objects {
            self.event("ADDED", Sent::Object(&object)).await?;
        }
        if question.end_of_initial_events {
            self.bookmark(true).await?;
        }
        if let Some(injection) = begin_with {
            self.inject(injection).await?;
        }
        self.flush().await
    }

    async fn go_on(
        &mut self,
        question: &Question,
        mut nudges: mpsc::UnboundedReceiver<Nudge>,
    ) -> Result<(), Ended> {
        let mut bookmark_at = question.bookmarks.map(|interval| Instant::now() + interval);
        loop {
            self.send_changes().await?;
            let until = [bookmark_at, question.ends].into_iter().flatten().min();
            let woken = self.wait(&mut nudges, until).await?;
            self.fall_silent_if_told_to().await?;
            match woken {
                Woken::Nudged(Nudge::Changed) => {}
                Woken::Nudged(Nudge::Inject(injection)) => {
                    // Earlier changes first: events go out in the order in which the test caused them.
                    self.send_changes().await?;
                    self.inject(injection).await?;
                    self.flush().await?;
                }
                Woken::Due => {
                    if question.ends.is_some_and(|ends| ends <= Instant::now()) {
                        return Ok(());
                    }
                    bookmark_at = question.bookmarks.map(|interval| Instant::now() + interval);
                    self.bookmark(false).await?;
                    self.flush().await?;
                }
            }
        }
    }

    async fn wait(
        &self,
        nudges: &mut mpsc::UnboundedReceiver<Nudge>,
        until: Option<Instant>,
    ) -> Result<Woken, Ended> {
        let nudge = async {
            match until {
                Some(until) => timeout_at(until, nudges.recv()).await.ok(),
                None => Some(nudges.recv().await),
            }
        };
        match unless(self.pieces.closed(), nudge).await {
            Ok(None) => Ok(Woken::Due),
            Ok(Some(Some(nudge))) => Ok(Woken::Nudged(nudge)),
            // The client has disconnected, or the server stops.
            Ok(Some(None)) | Err(()) => Err(Ended),
        }
    }

    async fn send_changes(&mut self) -> Result<(), Ended> {
        let (changes, now) = {
            let store = lock(&self.shared.store);
            (store.changes_since(self.selection.kind, self.sent), store.version())
        };
        let changes = match changes {
            Ok(changes) => changes,
            Err(forgotten) => return self.fail(&Status::expired(self.sent, forgotten.oldest)).await,
        };
        for change in &changes {
            self.change(change).await?;
        }
        // The requested version may be in the future.
        self.sent = self.sent.max(now);
        self.flush().await
    }

    /// An object that enters or leaves the selection is added or deleted for this client.
    async fn change(&mut self, change: &Change) -> Result<(), Ended> {
        let selected =
            |object: &Option<Arc<Object>>| object.clone().filter(|object| self.selection.has(object));
        match (selected(&change.before), selected(&change.after)) {
            (None, None) => Ok(()),
            (None, Some(after)) => self.event("ADDED", Sent::Object(&after)).await,
            (Some(_), Some(after)) => self.event("MODIFIED", Sent::Object(&after)).await,
            (Some(before), None) => self.event("DELETED", Sent::Deleted(&before, change.version)).await,
        }
    }

    async fn bookmark(&mut self, ends_initial_events: bool) -> Result<(), Ended> {
        let (kind, version) = (self.selection.kind, self.sent);
        self.event("BOOKMARK", Sent::Bookmark { kind, version, ends_initial_events }).await
    }

    /// An ERROR event, and the end.
    async fn fail(&mut self, status: &Status) -> Result<(), Ended> {
        self.event("ERROR", Sent::Error(status)).await?;
        self.flush().await?;
        Err(Ended)
    }

    async fn inject(&mut self, injection: Injection) -> Result<(), Ended> {
        match injection {
            Injection::Error(code) => self.fail(&Status::of_code(code, None)).await,
            Injection::Garbage => self.raw(b"\x00\xff<html>502 Bad Gateway</html>}{\n").await,
            Injection::AbsurdLength => self.raw(&[0xff; 4]).await,
            Injection::Raw(bytes) => self.raw(&bytes).await,
            Injection::Truncated => {
                self.half_an_event().await?;
                Err(Ended)
            }
            Injection::Cut => {
                self.half_an_event().await?;
                self.pieces.cut().await
            }
            Injection::Repeated(count) => {
                let changes = lock(&self.shared.store).last_changes(self.selection.kind, count);
                for change in &changes {
                    self.change(change).await?;
                }
                Ok(())
            }
            Injection::Stale(count) => {
                let changes = lock(&self.shared.store).last_changes(self.selection.kind, count);
                let old = changes.into_iter().filter_map(|change| change.before);
                for object in old.filter(|object| self.selection.has(object)).collect::<Vec<_>>() {
                    self.event("MODIFIED", Sent::Object(&object)).await?;
                }
                Ok(())
            }
        }
    }

    async fn half_an_event(&mut self) -> Result<(), Ended> {
        self.raw(&self.wire.half_an_event(self.selection.kind)).await?;
        self.flush().await
    }

    async fn event(&mut self, event: &str, sent: Sent<'_>) -> Result<(), Ended> {
        self.wire.put_event(&mut self.unsent, event, sent);
        self.raw(b"").await
    }

    async fn raw(&mut self, bytes: &[u8]) -> Result<(), Ended> {
        self.unsent.extend_from_slice(bytes);
        if self.unsent.len() >= PIECE { self.flush().await } else { Ok(()) }
    }

    async fn flush(&mut self) -> Result<(), Ended> {
        let piece: Bytes = self.unsent.split().freeze();
        self.pieces.send(piece).await
    }

    async fn fall_silent_if_told_to(&self) -> Result<(), Ended> {
        if self.shared.faults.strikes(Some(self.selection.kind), Verb::Watch, &Fault::SilentWatches) {
            self.pieces.closed().await;
            return Err(Ended);
        }
        Ok(())
    }
}

enum Woken {
    Nudged(Nudge),
    /// A bookmark is due, or the end of the watch.
    Due,
}

/// Keeps a watch registered until dropped.
struct Membership {
    shared: Arc<Shared>,
    id: usize,
}

impl Membership {
    fn join(shared: &Arc<Shared>, kind: Kind) -> (Membership, mpsc::UnboundedReceiver<Nudge>) {
        let (nudge, nudges) = mpsc::unbounded_channel();
        let id = shared.next_watch.fetch_add(1, Ordering::Relaxed);
        lock(&shared.watchers).push(Watcher { id, kind, nudge });
        (Membership { shared: Arc::clone(shared), id }, nudges)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        lock(&self.shared.watchers).retain(|watcher| watcher.id != self.id);
    }
}
