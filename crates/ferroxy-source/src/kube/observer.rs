//! Reports every request and its outcome, and the version of the server.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ::kube::client::Body;
use http::Request;
use http_body_util::{BodyExt, Limited};
use serde::Deserialize;
use tokio::time::{sleep, timeout};

use super::link::{Lease, Link, usable};

const LIMIT: Duration = Duration::from_secs(10);
/// Pause before the version is requested again from a server that did not report it.
const PAUSE: Duration = Duration::from_secs(60);
const LARGEST_ANSWER: usize = 64 * 1024;

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Observation<'a> {
    /// The response to a request has started, or the request has failed (no code).
    Request { method: &'a str, server: &'a str, code: Option<u16>, took: Duration },
    /// `v1.37.0`
    ServerVersion(&'a str),
}

/// Called on the thread of the watches; must not block it.
#[derive(Clone)]
pub struct Observer(Arc<dyn Fn(Observation<'_>) + Send + Sync>);

impl Observer {
    pub fn new(observe: impl Fn(Observation<'_>) + Send + Sync + 'static) -> Observer {
        Observer(Arc::new(observe))
    }

    pub(super) fn tell(&self, observation: Observation<'_>) {
        (self.0)(observation);
    }
}

/// Ignores everything.
impl Default for Observer {
    fn default() -> Observer {
        Observer::new(|_| {})
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

/// Asks the server for its version once.
pub(super) async fn learn_version(link: Rc<Link>, observer: Observer) {
    let mut leases = link.leases();
    loop {
        let lease = usable(&mut leases).await;
        match timeout(LIMIT, version(&link, &lease)).await {
            Ok(Some(version)) => return observer.tell(Observation::ServerVersion(&version)),
            Ok(None) | Err(_) => sleep(PAUSE).await,
        }
    }
}

async fn version(link: &Link, lease: &Lease) -> Option<String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Version {
        git_version: String,
    }
    let request = Request::get("/version").body(Body::empty()).ok()?;
    let response = link.send(lease, request, LIMIT).await.ok()?;
    let body = Limited::new(response.into_body(), LARGEST_ANSWER).collect().await.ok()?.to_bytes();
    serde_json::from_slice::<Version>(&body).ok().map(|version| version.git_version)
}
