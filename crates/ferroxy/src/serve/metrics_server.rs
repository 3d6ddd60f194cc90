//! The paths of the metrics address: `/metrics` and what people look at when they wonder about this proxy.

use std::sync::Arc;

use hyper::header::{ACCEPT, ALLOW, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use super::http::{self, Answer, Handler, TEXT};
use super::moment::Moment;
use super::status::Status;
use super::{exposition, metrics};
use crate::config::Config;

const PATHS: [&str; 7] =
    ["/configz", "/flagz", "/healthz", "/metrics", "/metrics/slis", "/proxyMode", "/statusz"];
const CAUTION: &str = "For people who look for a problem: this text may change with any version.";

/// What does not change while the process runs.
#[derive(Debug)]
pub struct About {
    pub config: Config,
    pub mode: &'static str,
    /// Names and values of the flags that were given.
    pub flags: Vec<(String, Value)>,
    pub started: Moment,
}

pub fn handler(status: Arc<Status>, about: About) -> Handler {
    Arc::new(move |request| {
        if !PATHS.contains(&request.uri.path()) {
            return http::not_found();
        }
        if request.method != Method::GET && request.method != Method::HEAD {
            let mut answer = http::answer(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD\n");
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return answer;
        }
        page(request, &status, &about)
    })
}

fn page(request: &Parts, status: &Status, about: &About) -> Answer {
    let text = |body: String| http::answer(StatusCode::OK, TEXT, body);
    match request.uri.path() {
        "/healthz" => text("ok".to_owned()),
        "/proxyMode" => text(about.mode.to_owned()),
        "/metrics" => {
            let page = metrics::page(status, &about.config.feature_gates);
            http::answer(StatusCode::OK, exposition::CONTENT_TYPE, page)
        }
        // The original registers no service-level indicators either.
        "/metrics/slis" => http::answer(StatusCode::OK, exposition::CONTENT_TYPE, ""),
        "/configz" => json_page(&json!({ "kubeproxy.config.k8s.io": about.config.to_json() })),
        "/flagz" if wants_json(request) => {
            let flags: serde_json::Map<String, Value> = about.flags.iter().cloned().collect();
            json_page(&json!({ "flags": flags }))
        }
        "/flagz" => text(flagz(about)),
        "/statusz" if wants_json(request) => json_page(&statusz_json(about, Moment::now())),
        "/statusz" => text(statusz(about, Moment::now())),
        _ => http::not_found(),
    }
}

fn json_page(value: &Value) -> Answer {
    http::answer(StatusCode::OK, http::JSON, value.to_string())
}

fn wants_json(request: &Parts) -> bool {
    let accepted = request.headers.get(ACCEPT).and_then(|value| value.to_str().ok());
    accepted.is_some_and(|types| types.contains("application/json"))
}

fn flagz(about: &About) -> String {
    let mut page = format!("ferroxy flagz\n{CAUTION}\n\n");
    for (name, value) in &about.flags {
        // Text without its quotes.
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        page.push_str(&format!("{name}={value}\n"));
    }
    page
}

fn statusz(about: &About, now: Moment) -> String {
    let up = about.started.age(now).as_secs();
    format!(
        "ferroxy statusz\n{CAUTION}\n\nStarted: {}\nUp: {} hr {:02} min {:02} sec\nBinary version: {}\nMode: {}\n\
         Paths: {}\n",
        about.started.rfc3339(),
        up / 3600,
        up / 60 % 60,
        up % 60,
        env!("CARGO_PKG_VERSION"),
        about.mode,
        PATHS.join(" "),
    )
}

fn statusz_json(about: &About, now: Moment) -> Value {
    json!({
        "startTime": about.started.rfc3339(),
        "uptimeSeconds": about.started.age(now).as_secs(),
        "binaryVersion": env!("CARGO_PKG_VERSION"),
        "mode": about.mode,
        "paths": PATHS,
    })
}
