//! What the dataplanes with a proxy share: the pool of a Service port (`pool.rs`), as annotations ask for it (`balancing.rs`), its
//! text, settings, and what the engine counts. How clients reach the proxy is not here: that is what these dataplanes differ in.

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
