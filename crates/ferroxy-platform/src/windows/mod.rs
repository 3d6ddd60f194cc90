//! Windows: console events, services, process figures, the host's name and addresses. The rest is what any platform has.

pub mod addresses;
pub mod event_log;
pub mod host;
pub mod interface;
mod library;
pub mod process;
pub mod service;
pub mod signals;

#[cfg(feature = "profiling")]
pub use crate::any::profile;
pub use crate::any::{claim, conntrack, files, memory, notify, privileges, sockets, streams};
