//! The paths of the metrics address: `/metrics` and pages for troubleshooting. Profiles are in
//! `debug.rs`.

use std::sync::{Arc, Mutex, PoisonError};

use ferroxy_dataplane::{CountsPackets, CountsTraffic, Dataplane, Mode, TranslatesSockets};
use hyper::body::Incoming;
use hyper::header::{ALLOW, HeaderValue};
use hyper::{Method, Request, StatusCode};
use serde_json::{Value, json};

use super::accept::{self, Format};
use super::body::Body;
use super::contents::Shelf;
use super::http::{self, Answer, Handler, Pending, TEXT};
use super::moment::Moment;
use super::sockets::Sockets;
use super::status::Status;
use super::traffic::Collector;
use super::{debug, exposition, metrics};
use crate::config::Config;

/// The name of this server in metrics and logs.
pub const NAME: &str = "metrics";

const PATHS: [&str; 7] =
    ["/configz", "/flagz", "/healthz", "/metrics", "/metrics/slis", "/proxyMode", "/statusz"];
const CAUTION: &str = "For troubleshooting only: the format of this page may change with any version.";

/// How the process was started.
#[derive(Debug)]
pub struct About {
    pub config: Config,
    pub mode: &'static Mode,
    /// Names and values of all flags.
    pub flags: Vec<(String, String)>,
    pub started: Moment,
}

/// Counters of the dataplane that are read on each scrape.
#[derive(Debug, Default)]
pub struct Counters {
    pub traffic: Option<Box<dyn CountsTraffic>>,
    pub packets: Option<Box<dyn CountsPackets>>,
    pub sockets: Option<Box<dyn TranslatesSockets>>,
}

impl Counters {
    pub fn of(dataplane: &dyn Dataplane) -> Counters {
        Counters {
            traffic: dataplane.counts_traffic(),
            packets: dataplane.counts_packets(),
            sockets: dataplane.translates_sockets(),
        }
    }
}

/// The same counters, shared by this server and the node's page.
#[derive(Debug)]
pub struct Shared {
    pub traffic: Arc<Collector>,
    pub packets: Mutex<Option<Box<dyn CountsPackets>>>,
    pub sockets: Arc<Sockets>,
}

impl From<Counters> for Shared {
    fn from(Counters { traffic, packets, sockets }: Counters) -> Shared {
        Shared {
            traffic: Arc::new(Collector::new(traffic)),
            packets: Mutex::new(packets),
            sockets: Arc::new(Sockets::new(sockets)),
        }
    }
}

pub fn handler(status: Arc<Status>, about: About, counters: Shared) -> Handler {
    let pages = Arc::new(Pages { status, about, counters, shelf: Shelf::default() });
    Arc::new(move |request| pages.answer(request))
}

struct Pages {
    status: Arc<Status>,
    about: About,
    counters: Shared,
    shelf: Shelf,
}

impl Pages {
    fn answer(self: &Arc<Pages>, request: Request<Incoming>) -> Pending {
        let path = request.uri().path();
        if self.about.config.profiling && path.starts_with("/debug/") {
            return debug::answer(request);
        }
        if !PATHS.contains(&path) {
            return http::at_once(http::not_found());
        }
        if request.method() != Method::GET && request.method() != Method::HEAD {
            return http::at_once(not_allowed("GET, HEAD"));
        }
        match path {
            "/metrics" if self.status.traffic_limit().is_some() => {
                let pages = Arc::clone(self);
                Box::pin(http::elsewhere(move || pages.metrics()))
            }
            "/metrics" => http::at_once(self.metrics()),
            _ => http::at_once(self.page(&request)),
        }
    }

    fn metrics(&self) -> Answer {
        let about = &self.about;
        let mut packets = self.counters.packets.lock().unwrap_or_else(PoisonError::into_inner);
        match packets.as_mut().map(|packets| packets.read()) {
            None => {}
            Some(Ok(read)) => self.status.packets(&read),
            // The last known numbers stay.
            Some(Err(error)) => tracing::debug!("cannot read packet counters: {error}"),
        }
        drop(packets);
        let gates = &about.config.feature_gates;
        let page =
            metrics::page(&self.status, about.mode, gates, &self.counters.traffic, &self.counters.sockets);
        let (contents, given_up) = self.shelf.contents(page);
        if given_up > 0 {
            self.status.connections(NAME, |counts| counts.evicted += given_up);
        }
        http::whole_answer(StatusCode::OK, exposition::CONTENT_TYPE, Body::Whole(contents))
    }

    fn page(&self, request: &Request<Incoming>) -> Answer {
        let about = &self.about;
        let text = |body: &str| http::answer(StatusCode::OK, TEXT, body.to_owned());
        let in_any_form = |words: String, value: Value| match accept::format(request.headers()) {
            Some(Format::Text) => text(&words),
            Some(Format::Json) => json_page(&value),
            Some(Format::Yaml) => yaml_page(&value),
            None => http::answer(
                StatusCode::NOT_ACCEPTABLE,
                TEXT,
                "text/plain, application/json, application/yaml\n",
            ),
        };
        match request.uri().path() {
            "/healthz" => text("ok"),
            "/proxyMode" => text(about.mode.name),
            "/metrics/slis" => {
                http::answer(StatusCode::OK, exposition::CONTENT_TYPE, metrics::slis(&self.status))
            }
            "/configz" => {
                let changed = self.status.now().changed_config.clone();
                let config = changed.as_deref().unwrap_or(&about.config);
                json_page(&json!({ "kubeproxy.config.k8s.io": config.to_json() }))
            }
            "/flagz" => in_any_form(flagz(about), flagz_value(about)),
            "/statusz" => {
                let mut value = statusz_value(about, Moment::now());
                let sockets = self.counters.sockets.value();
                if !sockets.is_null() {
                    value["sockets"] = sockets;
                }
                value["probes"] = self.status.probes.value();
                let more = self.counters.sockets.text() + &self.status.probes.text();
                in_any_form(statusz(about, Moment::now()) + &more, value)
            }
            _ => http::not_found(),
        }
    }
}

pub fn not_allowed(methods: &'static str) -> Answer {
    let mut answer = http::answer(StatusCode::METHOD_NOT_ALLOWED, TEXT, format!("only {methods}\n"));
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static(methods));
    answer
}

fn json_page(value: &Value) -> Answer {
    http::answer(StatusCode::OK, http::JSON, value.to_string())
}

fn yaml_page(value: &Value) -> Answer {
    match serde_saphyr::to_string(value) {
        Ok(text) => http::answer(StatusCode::OK, http::YAML, text),
        Err(error) => http::answer(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
    }
}

fn flagz(about: &About) -> String {
    let mut page = format!("ferroxy flagz\n{CAUTION}\n\n");
    for (name, value) in &about.flags {
        page.push_str(&format!("{name}={value}\n"));
    }
    page
}

fn flagz_value(about: &About) -> Value {
    let flags: serde_json::Map<String, Value> =
        about.flags.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect();
    json!({
        "kind": "Flagz",
        "apiVersion": "config.k8s.io/v1alpha1",
        "metadata": { "name": "kube-proxy" },
        "flags": flags,
    })
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
        about.mode.name,
        paths(about).join(" "),
    )
}

fn statusz_value(about: &About, now: Moment) -> Value {
    json!({
        "kind": "Statusz",
        "apiVersion": "config.k8s.io/v1alpha1",
        "metadata": { "name": "kube-proxy" },
        "startTime": about.started.rfc3339(),
        "uptimeSeconds": about.started.age(now).as_secs(),
        "binaryVersion": env!("CARGO_PKG_VERSION"),
        "mode": about.mode.name,
        "paths": paths(about),
    })
}

fn paths(about: &About) -> Vec<&'static str> {
    let profiling = if about.config.profiling { debug::PATHS } else { &[] };
    profiling.iter().chain(&PATHS).copied().collect()
}
