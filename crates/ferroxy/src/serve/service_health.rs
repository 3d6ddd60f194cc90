//! Health-check node ports: load balancers query whether this node has endpoints of a Service. `ports.rs` decides
//! which ports must be open; this file opens, closes and serves them.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ferroxy_core::ServiceName;
use ferroxy_platform::sockets;
use ferroxy_source::{Occurrence, Regarding};
use hyper::StatusCode;
use hyper::header::{HeaderName, HeaderValue};
use serde::Serialize;
use serde_json::ser::PrettyFormatter;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tracing::{debug, warn};

use super::http::{self, Answer, Handler, Service};
use super::moment::Moment;
use super::status::Status;

/// How soon a port that cannot be opened is retried: it may become free, or its address may appear.
const OPEN_AGAIN: Duration = Duration::from_secs(1);
const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// Keeps the required ports open while it is polled, but no more than `most_sockets`.
pub async fn run(status: Arc<Status>, service: Service, most_sockets: usize) -> Infallible {
    let mut open = Open { sockets: BTreeMap::new(), refused: BTreeSet::new(), status, service, most_sockets };
    loop {
        open.follow().await;
        if open.refused.is_empty() {
            open.status.ports_changed().await;
        } else {
            // After a change and after the timeout, the ports are compared again.
            let _ = timeout(OPEN_AGAIN, open.status.ports_changed()).await;
        }
    }
}

struct Open {
    sockets: BTreeMap<SocketAddr, (ServiceName, JoinHandle<Infallible>)>,
    /// Ports that could not be opened: each is logged once.
    refused: BTreeSet<SocketAddr>,
    status: Arc<Status>,
    service: Service,
    most_sockets: usize,
}

impl Open {
    async fn follow(&mut self) {
        let wanted = {
            let now = self.status.now();
            now.ports.listeners(&now.families)
        };
        let stays = |address: &SocketAddr, name: &ServiceName| wanted.get(address) == Some(name);
        for (address, (_, task)) in self.sockets.extract_if(.., |address, (name, _)| !stays(address, name)) {
            debug!("health-check node port {address} is closed");
            task.abort();
            // The socket is closed when the task has ended; the address may be bound again below.
            let _ = task.await;
        }
        self.refused.retain(|address| wanted.contains_key(address));
        for (address, name) in wanted {
            if !self.sockets.contains_key(&address) {
                self.open(address, name);
            }
        }
    }

    fn open(&mut self, address: SocketAddr, name: ServiceName) {
        let listener = if self.sockets.len() < self.most_sockets {
            sockets::listen_exactly(address).and_then(TcpListener::from_std)
        } else {
            let why = format!(
                "{} health-check node ports are open, half of this process's limit of open files; raise the limit (LimitNOFILE, ulimit -n)",
                self.most_sockets
            );
            Err(io::Error::other(why))
        };
        match listener {
            Ok(listener) => {
                debug!("health-check node port {address} of {name} is open");
                self.refused.remove(&address);
                let handler = handler(Arc::clone(&self.status), name.clone());
                let task = tokio::spawn(self.service.clone().serve(listener, handler));
                self.sockets.insert(address, (name, task));
            }
            Err(error) => {
                if self.refused.insert(address) {
                    self.report(address, &name, &error);
                }
            }
        }
    }

    fn report(&self, address: SocketAddr, name: &ServiceName, error: &io::Error) {
        warn!("cannot open health-check node port {address} of Service {name}: {error}; trying again");
        self.status.record_event(Occurrence {
            regarding: Regarding::Service {
                namespace: name.namespace().to_owned(),
                name: name.name().to_owned(),
            },
            reason: "FailedToStartServiceHealthcheck".to_owned(),
            action: "Listen".to_owned(),
            about: String::new(),
            note: format!("cannot open health-check node port {address}: {error}"),
            warning: true,
        });
    }
}

fn handler(status: Arc<Status>, name: ServiceName) -> Handler {
    Arc::new(move |_| {
        let now = status.now();
        // The socket of a Service that lost its port is about to be closed; until then it has no endpoints.
        let local_endpoints = now.ports.local_endpoints(&name).unwrap_or_default();
        http::at_once(answer(&name, local_endpoints, now.health.is_healthy(Moment::now())))
    })
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    service: Name<'a>,
    local_endpoints: u32,
    service_proxy_healthy: bool,
}

#[derive(Serialize)]
struct Name<'a> {
    namespace: &'a str,
    name: &'a str,
}

/// The same answer for every path and method, like kube-proxy.
fn answer(name: &ServiceName, local_endpoints: u32, proxy_is_healthy: bool) -> Answer {
    let body = Body {
        service: Name { namespace: name.namespace(), name: name.name() },
        local_endpoints,
        service_proxy_healthy: proxy_is_healthy,
    };
    let mut json = Vec::new();
    let mut writer = serde_json::Serializer::with_formatter(&mut json, PrettyFormatter::with_indent(b"\t"));
    // A struct of plain values always becomes JSON.
    let _ = body.serialize(&mut writer);
    let is_well = local_endpoints > 0 && proxy_is_healthy;
    let code = if is_well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut answer = http::answer(code, http::JSON, json);
    answer.headers_mut().insert(WEIGHT, HeaderValue::from(local_endpoints));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_endpoints_here_and_a_healthy_proxy_are_good() {
        let name = ServiceName::new("default", "web");
        for (endpoints, healthy, code) in [(1, true, 200), (3, true, 200), (0, true, 503), (1, false, 503)] {
            let answer = answer(&name, endpoints, healthy);
            assert_eq!(answer.status().as_u16(), code, "{endpoints} endpoints, healthy: {healthy}");
            assert_eq!(answer.headers()[&WEIGHT], endpoints.to_string());
        }
    }
}
