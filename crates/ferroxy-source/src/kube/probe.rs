//! Detects a server that disappeared silently: sends it a request when all streams are silent.
//!
//! TCP keep-alive (see `access.rs`) detects dead peers, but a proxy in between may answer for the server. In a busy
//! cluster the streams are never silent, and the probe costs nothing.

use std::rc::Rc;
use std::time::{Duration, Instant};

use ::kube::client::Body;
use http::Request;
use http_body_util::BodyExt;
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::access::failure;
use super::link::{Lease, Link, Why};

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// After this much silence the server is probed,
const QUIET: Duration = Duration::from_secs(10);
/// and must answer within this time.
const LIMIT: Duration = Duration::from_secs(10);

pub(super) async fn probe(link: Rc<Link>) {
    loop {
        sleep(LOOK_EVERY).await;
        let Some(lease) = link.current() else { continue };
        if !is_quiet(&link, Instant::now()) {
            continue;
        }
        match sign_of_life(&lease).await {
            Ok(()) => mark_activity(&link, Instant::now()),
            Err(reason) => {
                warn!(
                    server = &*lease.server,
                    reason, "no data on any watch, and the API server does not answer"
                );
                disconnected(&link);
                link.want(Why::Death);
            }
        }
    }
}

/// A stream is open, and none has had data for a while.
fn is_quiet(link: &Link, now: Instant) -> bool {
    let open = link.pulses.iter().map(|it| it.state()).filter(|it| it.connected);
    let last = open.filter_map(|it| it.last_activity).max();
    last.is_some_and(|last| now.saturating_duration_since(last) >= QUIET)
}

/// Any response is a sign of life, whatever its status.
async fn sign_of_life(lease: &Lease) -> Result<(), String> {
    let request = Request::get("/version").body(Body::empty()).map_err(|error| error.to_string())?;
    let answer = async {
        let response = lease.client.send(request).await.map_err(|error| failure(&error))?;
        // Read to its end, so that the connection can be used for the next probe.
        response.into_body().collect().await.map_err(|error| error.to_string())
    };
    match timeout(LIMIT, answer).await {
        Ok(answer) => answer.map(drop),
        Err(_) => Err(format!("no answer for {} seconds", LIMIT.as_secs())),
    }
}

fn mark_activity(link: &Link, now: Instant) {
    for pulse in &link.pulses {
        let mut state = pulse.state();
        if state.connected {
            state.last_activity = Some(now);
        }
    }
}

/// Stops further probes until the streams have reconnected.
fn disconnected(link: &Link) {
    link.pulses.iter().for_each(|it| it.state().connected = false);
}
