//! The Host Compute Network API of Windows (HCN), served by the Host Networking Service (HNS).
//!
//! ```text
//! Hcn ── documents ──▶ Api ──┬─▶ Patience (a deadline) ──▶ the system's libraries (Windows)
//!                            └─▶ a service in memory (feature `testing`)
//! ```
//! [`Hcn`] has typed documents and does the work around a call: open, query, close, and learning ids. [`Api`] is the C
//! interface with text. The crate has no terms of Kubernetes, and writes no log.

#![cfg_attr(not(windows), forbid(unsafe_code))]

mod api;
mod document;
mod error;
mod guid;
mod hcn;
pub mod patience;
mod version;

#[cfg(windows)]
mod windows;

#[cfg(feature = "testing")]
pub mod testing;

pub use api::{Api, Handle, Kind, Notification};
pub use document::{
    Endpoint, IpConfiguration, Listed, LoadBalancer, Network, PolicyDocument, PortMapping, Query,
    RemoteSubnetRoute, SchemaVersion, endpoint_flag, load_balancer_flag, mapping_flag,
};
pub use error::{Code, Error, ErrorKind};
pub use guid::Guid;
pub use hcn::{Calls, Hcn};
pub use patience::Patience;
pub use version::{Features, Version};

#[cfg(windows)]
pub use windows::Library;
