//! The engine of userspace mode: a layer-4 proxy for TCP and UDP. It knows neither Kubernetes nor any dataplane, and it
//! writes no log: errors and counters are values.
//!
//! A caller describes what to serve, and changes it piece by piece:
//!
//! - a [`Pool`] is a set of endpoints, with the rules for choosing one of them and for treating its connections;
//! - a [`Frontend`] is a place where clients arrive (a socket of its own, or an original destination behind a redirect
//!   listener), with [`Route`]s: which clients go to which pool. A client that no route matches is refused;
//! - a [`Redirect`] is a TCP socket to which packet rules redirect connections of many frontends.
//!
//! ```no_run
//! use ferroxy_proxy::{Change, Engine, Frontend, Pool, Settings};
//!
//! let engine = Engine::start(Settings::default())?;
//! let mut change = Change::default();
//! change.set_pool("default/web:http", Pool::of(["10.244.1.5:8080".parse()?, "10.244.2.7:8080".parse()?]));
//! change.set_frontend("10.96.0.80:80/tcp", Frontend::tcp("10.96.0.80:80".parse()?).to("default/web:http"));
//! let applied = engine.apply(change);
//! assert!(applied.failures.is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The data path reads immutable snapshots: a change of one pool replaces the snapshot of that pool, and no connection waits
//! for a change. Threads share nothing but those snapshots, counters, and the affinity of sticky pools.

mod clock;
mod config;
mod counters;
mod ejected;
mod engine;
mod error;
mod pick;
mod pool;
mod random;
mod shared;
mod table;
mod tcp;
mod udp;
mod wheel;
mod worker;

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
use any as system;
#[cfg(target_os = "linux")]
use linux as system;
// Tests build the stand-ins on Linux as well, so that they keep working.
#[cfg(any(test, not(target_os = "linux")))]
#[cfg_attr(target_os = "linux", allow(dead_code, reason = "the platform has its own"))]
mod any;

pub use config::{
    Affinity, Arrival, Change, Class, Ejection, Frontend, Key, Limits, Policy, Pool, Protocol, Redirect,
    Route, Settings, SlowStart, Sockets, Timeouts, UdpLimits,
};
pub use counters::{Counters, EndpointCounters, EngineCounters, PoolCounters};
pub use engine::{Applied, Engine, Failure};
pub use error::ProxyError;
