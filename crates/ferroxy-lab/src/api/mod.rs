//! A Kubernetes API server for tests: lists, watches and log-ins like those of the real one, for the few kinds that a
//! service proxy reads, with faults on demand. It rejects objects that tests have put by mistake and that the real one
//! rejects (`rules`). It allocates nothing, and has no controller behind it.
//! Beside it: the real API server where there is one to run ([`ControlPlane`]), for tests that both must pass
//! ([`ApiHost`]), and clusters of any size ([`cluster`]).
//!
//! ```no_run
//! use ferroxy_lab::api::{Fault, Kind, Options, Server, Verb};
//! use serde_json::json;
//!
//! let server = Server::start(Options::default())?;
//! server.put(&json!({"kind": "Service", "metadata": {"name": "web"}, "spec": {"clusterIP": "10.96.0.80"}}))?;
//! server.fault_on((Kind::Service, Verb::List), Fault::answer(503))?;
//! // ... let a client meet http://{server.address()} ...
//! server.clear_faults()?;
//! assert_eq!(server.count(Kind::Service, Verb::Watch), 1);
//! # Ok::<(), ferroxy_lab::LabError>(())
//! ```

mod access;
mod answer;
mod applier;
mod body;
mod caller;
pub mod cluster;
mod control_plane;
mod fault;
mod host;
mod kind;
mod kubeconfig;
mod list;
mod listen;
mod object;
mod process;
pub mod protobuf;
mod proxy;
mod query;
mod rules;
mod selector;
mod server;
mod status;
mod store;
mod watch;
mod wire;
mod write;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;

pub use access::{Access, CertificateError};
pub use control_plane::{Assets, ControlPlane};
pub use fault::{Fault, Injection, On};
pub use host::ApiHost;
pub use kind::Kind;
pub use kubeconfig::Login;
pub use object::{Key, ObjectError, Version};
pub use query::{Request, Verb};
pub use server::{Options, Server};

/// Lists and events are sent in pieces of about this size.
const PIECE: usize = 64 << 10;

/// A poisoned lock is ignored: a second panic here would hide the first.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The result of `work`, or as an error that of `stop` if it is ready first.
async fn unless<S, T>(stop: impl Future<Output = S>, work: impl Future<Output = T>) -> Result<T, S> {
    let (mut stop, mut work) = (pin!(stop), pin!(work));
    poll_fn(|context| match stop.as_mut().poll(context) {
        Poll::Ready(stopped) => Poll::Ready(Err(stopped)),
        Poll::Pending => work.as_mut().poll(context).map(Ok),
    })
    .await
}
