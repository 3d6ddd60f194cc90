//! The configuration that a caller passes in: plain values, with defaults that suit most Services.

mod change;
mod frontend;
mod pool;
mod settings;

pub use change::Change;
pub use frontend::{Arrival, Class, Frontend, Protocol, Redirect, Route, Sockets};
pub use pool::{Affinity, Ejection, Limits, Policy, Pool, SlowStart, Timeouts};
pub use settings::{Settings, UdpLimits};

use std::sync::Arc;

/// The caller's name of a pool, a frontend or a redirect listener. The engine only compares it.
pub type Key = Arc<str>;
