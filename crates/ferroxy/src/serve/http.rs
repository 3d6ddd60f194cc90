//! A small HTTP/1.1 server for many sockets on one thread: binding, limits, timeouts. Knows nothing of the answers.
//!
//! hyper implements the protocol. A client cannot hold many resources: a request's head must arrive soon and be
//! small, a body is read only by handlers that expect one, and connections are limited per socket and per service.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ferroxy_platform::sockets;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{debug, error, info, warn};

pub type Answer = Response<Full<Bytes>>;
/// An answer that may take long; other requests are served meanwhile.
pub type Pending = Pin<Box<dyn Future<Output = Answer> + Send>>;
pub type Handler = Arc<dyn Fn(Request<Incoming>) -> Pending + Send + Sync>;

/// How long a request's head may take; also how long a connection may be idle. Health checkers often ask every ten
/// seconds and must not find their connection just closed.
const SLOWEST_HEAD: Duration = Duration::from_secs(12);
const LARGEST_HEAD: usize = 16 * 1024;
/// How long a connection may live, whatever happens on it.
const LONGEST_CONNECTION: Duration = Duration::from_secs(600);
const MOST_CONNECTIONS_OF_A_SOCKET: usize = 64;
const BIND_AGAIN: Duration = Duration::from_secs(5);
/// Pause after an error of `accept` (such as too many open files), to keep the loop from spinning.
const PAUSE: Duration = Duration::from_millis(100);

/// One kind of service: the limit of connections covers all its sockets.
#[derive(Clone)]
pub struct Service {
    pub name: &'static str,
    connections: Arc<Semaphore>,
}

impl Service {
    pub fn new(name: &'static str, most_connections: usize) -> Service {
        Service { name, connections: Arc::new(Semaphore::new(most_connections)) }
    }

    /// Serves on an address as soon as it can be bound. `first` is the result of the first attempt.
    pub async fn run(self, address: SocketAddr, first: Option<std::net::TcpListener>, handler: Handler) {
        let bound = match first {
            Some(listener) => listener,
            None => self.bind_in_the_end(address).await,
        };
        match TcpListener::from_std(bound) {
            Ok(listener) => {
                info!("serving {} on {address}", self.name);
                self.serve(listener, handler).await;
            }
            Err(error) => error!("cannot serve {} on {address}: {error}", self.name),
        }
    }

    async fn bind_in_the_end(&self, address: SocketAddr) -> std::net::TcpListener {
        loop {
            sleep(BIND_AGAIN).await;
            match sockets::listen(address) {
                Ok(listener) => return listener,
                Err(error) => self.complain(address, &error),
            }
        }
    }

    pub fn complain(&self, address: SocketAddr, error: &io::Error) {
        warn!("cannot serve {} on {address}: {error}; trying again in {BIND_AGAIN:?}", self.name);
    }

    /// Serves until it is dropped, which also closes its connections.
    pub async fn serve(self, listener: TcpListener, handler: Handler) {
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            if connections.len() >= MOST_CONNECTIONS_OF_A_SOCKET {
                connections.join_next().await;
                continue;
            }
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    debug!("cannot accept a connection for {}: {error}", self.name);
                    sleep(PAUSE).await;
                    continue;
                }
            };
            // The semaphore is never closed.
            let Ok(permit) = Arc::clone(&self.connections).acquire_owned().await else { return };
            let handler = Arc::clone(&handler);
            connections.spawn(async move {
                // Errors of single connections are caused by the client and are not logged.
                let _ = timeout(LONGEST_CONNECTION, converse(stream, handler)).await;
                drop(permit);
            });
        }
    }
}

async fn converse(stream: TcpStream, handler: Handler) -> hyper::Result<()> {
    let answer = |request: Request<Incoming>| {
        let answer = handler(request);
        async { Ok::<_, std::convert::Infallible>(answer.await) }
    };
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(SLOWEST_HEAD)
        .max_buf_size(LARGEST_HEAD)
        // Title-case header names like kube-proxy: some health checkers need them.
        .title_case_headers(true)
        .serve_connection(TokioIo::new(stream), service_fn(answer))
        .await
}

/// An answer that is ready.
pub fn at_once(answer: Answer) -> Pending {
    Box::pin(std::future::ready(answer))
}

/// An answer that is computed on a thread for blocking work.
pub async fn elsewhere(work: impl FnOnce() -> Answer + Send + 'static) -> Answer {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        error!("cannot answer a request: {error}");
        answer(StatusCode::INTERNAL_SERVER_ERROR, TEXT, "internal error; see the log\n")
    })
}

/// An answer with `nosniff`, so that browsers do not guess its type.
pub fn answer(code: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = code;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(NOSNIFF, HeaderValue::from_static("nosniff"));
    answer
}

const NOSNIFF: HeaderName = HeaderName::from_static("x-content-type-options");

pub const TEXT: &str = "text/plain; charset=utf-8";
pub const JSON: &str = "application/json";
pub const YAML: &str = "application/yaml";

pub fn not_found() -> Answer {
    answer(StatusCode::NOT_FOUND, TEXT, "404 page not found\n")
}
