//! What the dataplanes with a proxy share: the pool of a Service port (`pool.rs`), its configuration by annotations
//! (`balancing.rs`), its text, settings, and counters. How clients reach the proxy is not here, because it differs
//! between these dataplanes.

#![forbid(unsafe_code)]

pub mod balancing;
mod meter;
pub mod metrics;
mod pool;
pub mod settings;
pub mod text;
mod traffic;

pub use meter::{Meter, stop};
pub use pool::{CLUSTER, LOCAL, pool, pool_key, proxied, socket_key, unspecified};
pub use traffic::Reader;
