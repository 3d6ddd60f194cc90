//! The connection to the API server: the client in use, and when all requests must switch to another one.
//!
//! Every request uses a [`Lease`]: a client that may be withdrawn. It is withdrawn by
//! `credentials.rs` (the credentials have changed) and `probe.rs` (the connections are dead).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::kube::client::{Body, Client};
use http::{Request, Response};
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use super::Options;
use super::access::failure;
use super::backoff::Throttle;
use super::liveness::Pulse;
use super::observer::{Observation, Observer};

/// A client, for as long as it is valid.
#[derive(Clone)]
pub(super) struct Lease {
    pub(super) client: Client,
    /// `https://192.0.2.1:6443`
    pub(super) server: Arc<str>,
    /// Why there is a new lease.
    pub(super) why: Why,
    number: u64,
}

/// What a new lease means for requests under the previous one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Why {
    /// Credentials have changed. The old connections still work.
    Renewal,
    /// The old connections are dead.
    Death,
    /// The server is another one: resource versions of the old one mean nothing there.
    Move,
}

impl Why {
    /// For log messages.
    pub(super) fn words(self) -> &'static str {
        match self {
            Why::Renewal => "its credentials were renewed",
            Why::Death => "it stopped answering",
            Why::Move => "the configuration names another one",
        }
    }
}

pub(super) struct Link {
    leases: watch::Sender<Option<Lease>>,
    /// A new lease is needed.
    wanted: Cell<Option<Why>>,
    /// Requests fail, and new credentials might help.
    doubted: Cell<bool>,
    pub(super) attention: Notify,
    /// Wakes all retries when the server answers again.
    pub(super) recovered: Notify,
    throttle: RefCell<Throttle>,
    pub(super) pulses: Vec<Arc<Pulse>>,
    observer: Observer,
}

impl Link {
    pub(super) fn new(options: &Options, pulses: Vec<Arc<Pulse>>, observer: Observer) -> Rc<Link> {
        Rc::new(Link {
            leases: watch::Sender::new(None),
            wanted: Cell::new(None),
            doubted: Cell::new(false),
            attention: Notify::new(),
            recovered: Notify::new(),
            throttle: RefCell::new(Throttle::new(options.qps, options.burst)),
            pulses,
            observer,
        })
    }
}

/// For requests.
impl Link {
    pub(super) fn leases(&self) -> watch::Receiver<Option<Lease>> {
        self.leases.subscribe()
    }

    /// Sends a request as soon as the rate limit allows, and waits up to `limit` for the head of the response.
    pub(super) async fn send(
        &self,
        lease: &Lease,
        request: Request<Body>,
        limit: Duration,
    ) -> Result<Response<Body>, String> {
        let wait = self.throttle.borrow_mut().take(Instant::now());
        if !wait.is_zero() {
            sleep(wait).await;
        }
        let (method, began) = (request.method().clone(), Instant::now());
        let answer = match timeout(limit, lease.client.send(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(failure(&error)),
            Err(_) => Err(format!("no answer for {} seconds", limit.as_secs())),
        };
        self.observer.tell(Observation::Request {
            method: method.as_str(),
            server: &lease.server,
            code: answer.as_ref().ok().map(|response| response.status().as_u16()),
            took: began.elapsed(),
        });
        let failed = match answer {
            Ok(response) => return Ok(response),
            Err(failed) => failed,
        };
        self.doubted.set(true);
        self.attention.notify_one();
        Err(failed)
    }

    /// The server rejects the credentials of this lease.
    pub(super) fn refused(&self, lease: &Lease) {
        // Of several rejected requests only the first finds the lease still current.
        let current = self.leases.borrow().as_ref().map(|it| it.number);
        if current == Some(lease.number) {
            self.want(Why::Renewal);
        }
    }
}

/// For the supplier of leases.
impl Link {
    pub(super) fn want(&self, why: Why) {
        self.wanted.set(Some(why));
        self.attention.notify_one();
    }

    pub(super) fn take_wanted(&self) -> Option<Why> {
        self.wanted.take()
    }

    pub(super) fn take_doubted(&self) -> bool {
        self.doubted.take()
    }

    pub(super) fn current(&self) -> Option<Lease> {
        self.leases.borrow().clone()
    }

    pub(super) fn supply(&self, client: Client, server: &str, why: Why) {
        let number = self.leases.borrow().as_ref().map_or(0, |it| it.number + 1);
        self.leases.send_replace(Some(Lease { client, server: server.into(), why, number }));
    }
}

/// Waits for a client that can be used.
pub(super) async fn usable(leases: &mut watch::Receiver<Option<Lease>>) -> Lease {
    loop {
        if let Some(lease) = &*leases.borrow_and_update() {
            return lease.clone();
        }
        if leases.changed().await.is_err() {
            // The link is dropped together with everything that runs on this thread.
            std::future::pending::<()>().await;
        }
    }
}
