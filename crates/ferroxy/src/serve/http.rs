//! A small HTTP/1.1 server for many sockets on one thread: binding, limits, timeouts. Handlers provide the answers.
//!
//! hyper implements the protocol. Each client's use of resources is limited: a request's head must arrive soon and be
//! small, a body is read only by handlers that expect one, and connections are limited (`room.rs` decides which one is
//! closed for a new one).

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ferroxy_platform::sockets;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet, yield_now};
use tokio::time::{sleep, timeout};
use tracing::{error, info, warn};

use super::body::Body;
use super::room::{Id, Limits, Peer, Room, Socket};
use super::status::Status;

pub type Answer = Response<Body>;
/// An answer that may take long; other requests are served meanwhile.
pub type Pending = Pin<Box<dyn Future<Output = Answer> + Send>>;
pub type Handler = Arc<dyn Fn(Request<Incoming>) -> Pending + Send + Sync>;

/// How long a request's head may take; also how long a connection may be idle. Health checkers often ask every ten
/// seconds and must not find their connection just closed.
const SLOWEST_HEAD: Duration = Duration::from_secs(12);
const LARGEST_HEAD: usize = 16 * 1024;
/// How long a connection may live, even if it is in use.
const LONGEST_CONNECTION: Duration = Duration::from_secs(600);
const BIND_AGAIN: Duration = Duration::from_secs(5);
/// Pause after an error of `accept` if no connection can be closed: it keeps the loop from spinning.
const PAUSE: Duration = Duration::from_millis(100);
/// A flood of connections is logged no more often than this.
const WARN_AGAIN: Duration = Duration::from_secs(60);

/// One kind of service: the limits of connections cover all its sockets.
#[derive(Clone)]
pub struct Service {
    pub name: &'static str,
    limits: Limits,
    shared: Arc<Mutex<Shared>>,
    status: Arc<Status>,
}

struct Shared {
    /// Connections that have sent nothing yet.
    silent: Room<AbortHandle>,
    /// All other connections.
    room: Room<AbortHandle>,
    last_id: u64,
    warned: Option<Instant>,
}

impl Shared {
    fn new_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }
}

impl Service {
    pub fn new(name: &'static str, limits: Limits, status: &Arc<Status>) -> Service {
        let silent = Room::new(limits.of_silent());
        let shared = Shared { silent, room: Room::new(limits), last_id: 0, warned: None };
        status.connections(name, |counts| counts.open = 0);
        Service { name, limits, shared: Arc::new(Mutex::new(shared)), status: Arc::clone(status) }
    }

    /// Serves on an address as soon as it can be bound. `first` is the result of the first attempt. Returns only if it cannot serve.
    pub async fn run(
        self,
        address: SocketAddr,
        first: Option<std::net::TcpListener>,
        handler: Handler,
    ) -> io::Error {
        let bound = match first {
            Some(listener) => listener,
            None => self.bind_in_the_end(address).await,
        };
        match TcpListener::from_std(bound) {
            Ok(listener) => {
                info!("serving {} on {address}", self.name);
                match self.serve(listener, handler).await {}
            }
            Err(error) => error,
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
    pub async fn serve(self, listener: TcpListener, handler: Handler) -> Infallible {
        let mut connections = JoinSet::new();
        let socket = self.shared().new_id();
        loop {
            while connections.try_join_next().is_some() {}
            let (stream, peer) = match listener.accept().await {
                Ok((stream, address)) => (stream, Peer::from(address.ip())),
                Err(error) => {
                    self.cannot_accept(&error).await;
                    continue;
                }
            };
            let closed = self.shared().silent.make_way(socket, peer);
            self.close(closed);
            let seat = Seat { service: self.clone(), id: self.shared().new_id(), socket, peer };
            let id = seat.id;
            let handler = Arc::clone(&handler);
            // The task does not run before the next `await` below: this runtime has one thread.
            let close = connections.spawn(async move {
                if seat.first_byte(&stream).await {
                    // Errors of single connections are caused by the client and are not logged.
                    let _ = timeout(LONGEST_CONNECTION, converse(stream, handler, &seat)).await;
                }
            });
            self.enter(id, socket, peer, close);
            // Answer requests that have arrived before the next connection can take their place.
            yield_now().await;
        }
    }

    fn enter(&self, id: Id, socket: Socket, peer: Peer, close: AbortHandle) {
        let mut shared = self.shared();
        shared.silent.enter(id, socket, peer, close);
        self.count_open(&shared);
    }

    /// Closes a connection that was evicted for a new one, if any.
    fn close(&self, closed: Option<AbortHandle>) {
        let Some(close) = closed else { return };
        close.abort();
        self.status.connections(self.name, |counts| counts.evicted += 1);
        let Limits { service, socket, peer, silent } = self.limits;
        self.warn(&format_args!(
            "too many connections to {}: closing the longest idle ones (limits: {peer} per client address, {socket} per listening \
             socket, {service} in total, and {silent} that have sent no request)",
            self.name,
        ));
    }

    /// The client waits in the kernel's queue. If this process has too many open files, closing a connection helps.
    async fn cannot_accept(&self, error: &io::Error) {
        if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
            return yield_now().await;
        }
        self.warn(&format_args!("cannot accept a connection to {}: {error}; trying again", self.name));
        let closed = {
            let mut shared = self.shared();
            shared.silent.shrink().or_else(|| shared.room.shrink())
        };
        self.status.connections(self.name, |counts| {
            counts.accept_errors += 1;
            counts.evicted += u64::from(closed.is_some());
        });
        match closed {
            Some(close) => {
                close.abort();
                // The socket is closed when its task has run once more.
                yield_now().await;
            }
            None => sleep(PAUSE).await,
        }
    }

    fn warn(&self, words: &dyn std::fmt::Display) {
        let now = Instant::now();
        let mut shared = self.shared();
        if shared.warned.is_none_or(|warned| now.duration_since(warned) >= WARN_AGAIN) {
            shared.warned = Some(now);
            drop(shared);
            warn!("{words}");
        }
    }

    fn count_open(&self, shared: &Shared) {
        self.status.connections(self.name, |counts| counts.open = shared.silent.len() + shared.room.len());
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection's place in one of the rooms. Dropping it frees the place.
struct Seat {
    service: Service,
    id: Id,
    socket: Socket,
    peer: Peer,
}

impl Seat {
    /// Waits for the first byte and moves to the room of served connections. False if the connection ends before.
    async fn first_byte(&self, stream: &TcpStream) -> bool {
        // `readable` alone may return without a byte.
        let Ok(Ok(1)) = timeout(SLOWEST_HEAD, stream.peek(&mut [0])).await else { return false };
        let mut shared = self.service.shared();
        let Some(close) = shared.silent.leave(self.id) else { return false };
        let closed = shared.room.make_way(self.socket, self.peer);
        shared.room.enter(self.id, self.socket, self.peer, close);
        drop(shared);
        self.service.close(closed);
        true
    }

    fn used(&self, is_busy: bool) {
        self.service.shared().room.used(self.id, is_busy);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut shared = self.service.shared();
        shared.silent.leave(self.id);
        shared.room.leave(self.id);
        self.service.count_open(&shared);
    }
}

async fn converse(stream: TcpStream, handler: Handler, seat: &Seat) -> hyper::Result<()> {
    let answer = |request: Request<Incoming>| {
        seat.used(true);
        let answer = handler(request);
        async {
            let answer = answer.await;
            seat.used(false);
            Ok::<_, Infallible>(answer)
        }
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
    whole_answer(code, content_type, Body::from(body))
}

pub fn whole_answer(code: StatusCode, content_type: &'static str, body: Body) -> Answer {
    let mut answer = Response::new(body);
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
