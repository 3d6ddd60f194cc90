//! Lists and watches one resource for ever, as the rules in `list_watch.rs` decide.

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::kube::client::Body;
use bytes::Bytes;
use futures_util::future::{Either, select};
use http::header::{ACCEPT, RETRY_AFTER};
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Limited};
use tokio::sync::watch;
use tokio::time::{sleep_until, timeout};
use tracing::debug;

use super::Denial;
use super::access::with_causes;
use super::ask::{Ask, Go};
use super::backoff::random;
use super::decode;
use super::encoding::{Accept, Encoding};
use super::framer::{Framer, LONGEST_LINE};
use super::hub::Hub;
use super::link::{Lease, Link, Why, usable};
use super::list_watch::ListWatch;
use super::liveness::Pulse;
use super::outlet::Outlet;
use super::resource::Resource;
use crate::object::Kind;

/// The response to a watch starts at once.
const WATCH_HEAD_LIMIT: Duration = Duration::from_secs(10);
/// A busy server may queue a list for 15 seconds; an earlier retry would only go to the end of the queue.
const LIST_HEAD_LIMIT: Duration = Duration::from_secs(20);
/// Longest pause within a list, or within an event.
const LIST_SILENCE: Duration = Duration::from_secs(15);
/// Servers send a bookmark about every minute. A watch that is silent for this long is reopened at its version, which
/// costs next to nothing: a proxy in between may have lost it and still keep the connection open.
const WATCH_SILENCE: Duration = Duration::from_secs(180);
/// The server ends a watch after 5 to 10 minutes, as for kube-proxy, so that watches spread over API servers.
const WATCH_SECONDS: f64 = 300.0;
const LONGEST_PAGE: usize = LONGEST_LINE;
const LONGEST_REFUSAL: usize = 64 << 10;

/// Never returns. `insists`: waits for optional resources as well.
pub(super) async fn follow(
    resource: Resource,
    insists: bool,
    accept: Accept,
    link: Rc<Link>,
    hub: Rc<Hub>,
    pulse: Arc<Pulse>,
) {
    let mut leases = link.leases();
    let first = usable(&mut leases).await;
    let outlet = Rc::clone(&hub);
    let mut follower = Follower {
        machine: ListWatch::new(resource.kind, &first.server, accept, random),
        out: Outlet::new(move |events| outlet.events(events)),
        cut_off: false,
        insists,
        resource,
        link,
        hub,
        pulse,
        leases,
    };
    loop {
        follower.turn().await;
        follower.out.flush();
        follower.report(false);
    }
}

struct Follower {
    machine: ListWatch,
    out: Outlet,
    /// The last request did not reach the server.
    cut_off: bool,
    insists: bool,
    resource: Resource,
    link: Rc<Link>,
    hub: Rc<Hub>,
    pulse: Arc<Pulse>,
    leases: watch::Receiver<Option<Lease>>,
}

/// The next part of a stream.
enum Next {
    Bytes(Bytes),
    End,
    /// No data for this long.
    Silence(Duration),
    Broken(String),
}

impl Follower {
    /// Sends one request and reads its response to the end.
    async fn turn(&mut self) {
        self.rest().await;
        self.hub.room().await;
        let lease = usable(&mut self.leases).await;
        if lease.why == Why::Move {
            self.machine.change_server(&lease.server);
        }
        let ask = self.machine.ask();
        let timeout_seconds = (WATCH_SECONDS * (1.0 + random())) as u32;
        let target = self.resource.target(&ask, timeout_seconds);
        let limit = if matches!(ask, Ask::Watch { .. }) { WATCH_HEAD_LIMIT } else { LIST_HEAD_LIMIT };
        let accept = self.machine.accept.header();
        let answer = match Request::get(target).header(ACCEPT, accept).body(Body::empty()) {
            Ok(request) => self.link.send(&lease, request, limit).await,
            Err(error) => Err(error.to_string()),
        };
        let response = match answer {
            Ok(response) => response,
            Err(reason) => {
                self.cut_off = true;
                return self.machine.broken(reason, Instant::now());
            }
        };
        if std::mem::take(&mut self.cut_off) {
            self.link.recovered.notify_waiters();
        }
        self.mark_activity();
        let encoding = Encoding::of(response.headers());
        match (response.status().as_u16(), ask) {
            (200, Ask::Page { .. }) => self.read_page(encoding, response.into_body()).await,
            (200, _) => self.read_stream(encoding, response.into_body()).await,
            (status, _) => self.read_refusal(status, &lease, response).await,
        }
    }

    /// Waits as long as the rules say, or until the server answers other requests.
    async fn rest(&self) {
        let Some(wait) = self.machine.wait() else { return };
        debug!(kind = self.resource.kind.as_str(), until = ?wait.until, "waiting");
        let until = sleep_until(wait.until.into());
        if wait.until_recovery {
            select(pin!(until), pin!(self.link.recovered.notified())).await;
        } else {
            until.await;
        }
    }

    async fn read_refusal(&mut self, status: u16, lease: &Lease, response: Response<Body>) {
        if status == 401 {
            self.link.refused(lease);
        }
        let retry_after = retry_after(response.headers());
        let body = Limited::new(response.into_body(), LONGEST_REFUSAL).collect();
        let body = match timeout(LIST_SILENCE, body).await {
            Ok(Ok(body)) => body.to_bytes(),
            // The status code alone is enough.
            Ok(Err(_)) | Err(_) => Bytes::new(),
        };
        let status = decode::status(status, &body);
        debug!(kind = self.resource.kind.as_str(), code = status.code, message = status.message, "refused");
        self.deny(&status);
        self.machine.refused(status, retry_after, Instant::now(), &mut self.out);
    }

    /// Reports a list that the server refuses for good. A refused watch is no denial. Nor is a refused streaming list,
    /// because it also needs the permission to watch: pages are requested next.
    fn deny(&self, status: &decode::Status) {
        let is_final = match status.code {
            401 => true,
            403 => matches!(self.machine.ask(), Ask::Page { .. }),
            _ => false,
        };
        if is_final && self.insists && !self.machine.is_listed() && self.resource.kind != Kind::ServiceCidr {
            let message = status.message.lines().next().unwrap_or_default().to_owned();
            let resource = self.resource.qualified_name();
            self.hub.denied(Denial { code: status.code, resource, message });
        }
    }

    async fn read_page(&mut self, encoding: Encoding, mut body: Body) {
        self.machine.answered(encoding, Instant::now());
        let mut page = Vec::new();
        loop {
            match next(&mut body, LIST_SILENCE).await {
                Next::Bytes(bytes) if page.len() + bytes.len() > LONGEST_PAGE => {
                    return self.machine.page_too_large(Instant::now());
                }
                Next::Bytes(bytes) => page.extend_from_slice(&bytes),
                Next::End => {
                    // A large page takes long: its end counts as the last activity, not its beginning.
                    self.mark_activity();
                    break;
                }
                Next::Silence(length) => return self.machine.broken(silent(length), Instant::now()),
                Next::Broken(reason) => return self.machine.broken(reason, Instant::now()),
            }
        }
        self.machine.page(&page, Instant::now(), &mut self.out);
    }

    /// A watch, or a streaming list that becomes one.
    async fn read_stream(&mut self, encoding: Encoding, mut body: Body) {
        self.machine.answered(encoding, Instant::now());
        self.report(true);
        let mut framer = Framer::new(encoding);
        loop {
            self.hub.room().await;
            // Only between events may a watch be silent for long.
            let idle = self.machine.is_watching() && !framer.is_amid_event();
            let silence = if idle { WATCH_SILENCE } else { LIST_SILENCE };
            match unless_withdrawn(next(&mut body, silence), &mut self.leases).await {
                Ok(Next::Bytes(bytes)) => {
                    framer.push(&bytes);
                    if self.read_events(&mut framer) == Go::Reconnect {
                        return;
                    }
                }
                Ok(Next::End) => return self.machine.ended(Instant::now()),
                Ok(Next::Silence(_)) if idle => return self.machine.ended(Instant::now()),
                Ok(Next::Silence(length)) => return self.machine.broken(silent(length), Instant::now()),
                Ok(Next::Broken(reason)) => return self.machine.broken(reason, Instant::now()),
                Err(Why::Death) => {
                    self.cut_off = true;
                    return self.machine.broken("stopped answering".to_owned(), Instant::now());
                }
                // A list would have to start over, and its connection still works.
                Err(Why::Renewal) if !self.machine.is_watching() => {}
                Err(Why::Renewal | Why::Move) => return self.machine.moved(),
            }
        }
    }

    fn read_events(&mut self, framer: &mut Framer) -> Go {
        let now = Instant::now();
        loop {
            match framer.next_event() {
                Ok(Some(line)) => {
                    if self.machine.line(line, now, &mut self.out) == Go::Reconnect {
                        return Go::Reconnect;
                    }
                }
                Ok(None) => break,
                Err(error) => return self.machine.unreadable(error.to_string(), now),
            }
        }
        // During a list, batches fill up: the agent waits for the complete list.
        if self.machine.is_watching() {
            self.out.flush();
        }
        self.report(true);
        Go::On
    }

    fn mark_activity(&self) {
        self.pulse.state().last_activity = Some(Instant::now());
    }

    /// Publishes the state of this resource.
    fn report(&self, connected: bool) {
        let kind = self.resource.kind;
        let mut state = self.pulse.state();
        state.connected = connected;
        state.listed = self.machine.is_listed();
        state.version = self.machine.version().map(str::to_owned);
        (state.relists, state.errors) = (self.machine.relists(), self.machine.errors());
        if connected {
            state.last_activity = Some(Instant::now());
        }
        drop(state);
        if self.machine.is_listed() || self.does_without() {
            self.hub.complete(kind);
        }
        self.hub.troubles(Some(kind), self.machine.troubles());
    }

    /// ServiceCIDRs are the one optional resource. They are awaited until a request for them has
    /// failed, so that their rules are not removed and added again at every start.
    fn does_without(&self) -> bool {
        let failed = !self.insists && self.machine.errors() > 0;
        self.resource.kind == Kind::ServiceCidr && (self.machine.is_settled() || failed)
    }
}

/// The next bytes of a body, if they arrive in time.
async fn next<B>(body: &mut B, silence: Duration) -> Next
where
    B: BodyExt<Data = Bytes, Error: std::error::Error + 'static> + Unpin,
{
    loop {
        match timeout(silence, body.frame()).await {
            Err(_) => return Next::Silence(silence),
            Ok(None) => return Next::End,
            Ok(Some(Err(error))) => return Next::Broken(with_causes(&error)),
            Ok(Some(Ok(frame))) => {
                if let Ok(bytes) = frame.into_data() {
                    return Next::Bytes(bytes);
                }
            }
        }
    }
}

fn silent(length: Duration) -> String {
    format!("silent for {} seconds", length.as_secs())
}

/// The next bytes, or why the connection must be given up.
async fn unless_withdrawn(
    next: impl Future<Output = Next>,
    leases: &mut watch::Receiver<Option<Lease>>,
) -> Result<Next, Why> {
    let withdrawn = async {
        if leases.changed().await.is_err() {
            // The link is dropped together with everything that runs on this thread.
            std::future::pending::<()>().await;
        }
        leases.borrow_and_update().as_ref().map_or(Why::Renewal, |lease| lease.why)
    };
    match select(pin!(next), pin!(withdrawn)).await {
        Either::Left((next, _)) => Ok(next),
        Either::Right((why, _)) => Err(why),
    }
}

/// Seconds; the API server does not send dates.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream;
    use http_body_util::{Empty, Full, StreamBody};

    use super::*;

    fn answer_of(body: impl BodyExt<Data = Bytes, Error = Infallible> + Unpin) -> Next {
        let mut body = body;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { next(&mut body, Duration::from_millis(5)).await })
    }

    #[test]
    fn silence_differs_from_the_end() {
        assert!(matches!(answer_of(StreamBody::new(stream::pending())), Next::Silence(_)));
        assert!(matches!(answer_of(Empty::new()), Next::End));
        assert!(matches!(answer_of(Full::from("line")), Next::Bytes(bytes) if bytes == "line"));
    }
}
