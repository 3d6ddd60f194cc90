//! The node's page: static files, and a JSON API at `/api/v1` that commands use as well. Off unless an address is configured.
//!
//! It only reads. `auth.rs` decides which requests are admitted, `ask.rs` passes questions to the agent, `api.rs` has the
//! paths, `events.rs` the stream of events. `docs/api.md` describes the API.

mod api;
mod ask;
mod auth;
mod count;
mod events;
mod files;
mod lists;
mod query;

use std::sync::Arc;

use ferroxy_dataplane::Mode;
use hyper::body::Incoming;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Method, Request, StatusCode};
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::agent::Sender;
use crate::config::Config;
use crate::serve::http::{self, Answer, Handler, Pending};
use crate::serve::sockets::Sockets;
use crate::serve::traffic::Collector;
use crate::serve::{Moment, Status, not_allowed};
use crate::view;
use ask::Asker;
use auth::Door;
use count::Count;

/// The page loads nothing from elsewhere and sends nothing elsewhere, and no other page can embed it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// The parts that the page needs.
#[derive(Debug)]
pub struct Setting {
    pub status: Arc<Status>,
    pub config: Config,
    pub mode: &'static Mode,
    pub node: String,
    /// The queue for questions to the agent.
    pub inputs: Sender,
    pub traffic: Arc<Collector>,
    pub sockets: Arc<Sockets>,
    pub started: Moment,
}

#[derive(Debug)]
struct Page {
    status: Arc<Status>,
    config: Config,
    mode: &'static Mode,
    node: String,
    asker: Asker,
    traffic: Arc<Collector>,
    sockets: Arc<Sockets>,
    started: Moment,
    door: Door,
    problems: Count,
    /// One permit for each stream of events that may be open.
    streams: Arc<Semaphore>,
}

/// An error if a token is configured and cannot be read.
pub fn handler(setting: Setting) -> anyhow::Result<Handler> {
    let Setting { status, config, mode, node, inputs, traffic, sockets, started } = setting;
    let token_file = config.page.as_ref().and_then(|page| page.token_file.clone());
    let door = Door::new(token_file).map_err(anyhow::Error::msg)?;
    let (asker, problems) = (Asker::new(inputs), Count::default());
    let streams = Arc::new(Semaphore::new(events::MOST_STREAMS));
    let page = Page { status, config, mode, node, asker, traffic, sockets, started, door, problems, streams };
    let page = Arc::new(page);
    Ok(Arc::new(move |request| {
        let answer = page.answer(&request);
        Box::pin(async { secured(answer.await) })
    }))
}

impl Page {
    fn answer(self: &Arc<Page>, request: &Request<Incoming>) -> Pending {
        let is_api = request.uri().path().starts_with("/api/");
        if request.method() != Method::GET && request.method() != Method::HEAD {
            return http::at_once(not_allowed("GET, HEAD"));
        }
        match self.door.admit(request.headers(), is_api) {
            Err(refused) => http::at_once(refused.answer()),
            Ok(()) if is_api => api::answer(self, request),
            Ok(()) => http::at_once(files::answer(request)),
        }
    }

    /// The configuration in force.
    fn config(&self) -> Config {
        let changed = self.status.now().changed_config.clone();
        changed.map_or_else(|| self.config.clone(), |config| *config)
    }

    fn status_value(&self) -> Value {
        let sockets = self.sockets.value();
        let about = view::status::About {
            node: &self.node,
            mode: self.mode.name,
            started: self.started,
            problems: self.problems.last(),
            sockets: &sockets,
        };
        view::status::status(&self.status, &about)
    }
}

/// An error as a JSON answer.
#[derive(Debug, PartialEq, Eq)]
struct Refused {
    code: StatusCode,
    message: String,
}

impl Refused {
    fn new(code: StatusCode, message: impl Into<String>) -> Refused {
        Refused { code, message: message.into() }
    }

    fn answer(&self) -> Answer {
        let body = view::error(self.code.as_u16(), &self.message).to_string();
        let mut answer = http::answer(self.code, http::JSON, body);
        let headers = answer.headers_mut();
        match self.code {
            StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(hyper::header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            StatusCode::UNAUTHORIZED => {
                headers.insert(hyper::header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        answer
    }
}

/// Adds the headers that every answer has.
fn secured(mut answer: Answer) -> Answer {
    let headers = answer.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    answer
}
