//! The way to the API server: the client in use, and when everybody has to change to another one.
//!
//! Everything that asks the server holds a [`Lease`]: a client that may be withdrawn. Who withdraws it, and why, is in
//! `credentials.rs` (they have changed) and `probe.rs` (the connections are dead).

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

/// A client, for as long as it is good.
#[derive(Clone)]
pub(super) struct Lease {
    pub(super) client: Client,
    /// `https://192.0.2.1:6443`
    pub(super) server: Arc<str>,
    /// Why there is a new lease.
    pub(super) why: Why,
    number: u64,
}

/// What a new lease means for work that is going on under the one before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Why {
    /// Credentials have changed. The old connections still work.
    Renewal,
    /// The old connections are dead.
    Death,
    /// It is another server: where the old one was in its history means nothing there.
    Move,
}

impl Why {
    /// For people.
    pub(super) fn words(self) -> &'static str {
        match self {
            Why::Renewal => "its credentials were renewed",
            Why::Death => "it did not answer any more",
            Why::Move => "the configuration names another one",
        }
    }
}

pub(super) struct Link {
    leases: watch::Sender<Option<Lease>>,
    /// That a new lease is needed.
    wanted: Cell<Option<Why>>,
    /// That requests fail, which new credentials might mend.
    doubted: Cell<bool>,
    pub(super) attention: Notify,
    /// Told to all who wait when the server is seen to answer again.
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

/// For those who ask the server.
impl Link {
    pub(super) fn leases(&self) -> watch::Receiver<Option<Lease>> {
        self.leases.subscribe()
    }

    /// Sends a request, as soon as the limits on our side allow, and waits so long for the head of the answer.
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

    /// The server does not take the credentials of this lease.
    pub(super) fn refused(&self, lease: &Lease) {
        // Of several requests that are refused only the first finds the lease still in force.
        let current = self.leases.borrow().as_ref().map(|it| it.number);
        if current == Some(lease.number) {
            self.want(Why::Renewal);
        }
    }
}

/// For those who supply the leases.
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
            // The link is gone, and with it everything that runs here.
            std::future::pending::<()>().await;
        }
    }
}
