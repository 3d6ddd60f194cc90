//! The sources of facts. Every source produces the same [`Event`](ferroxy_core::Event)s.
//!
//! `kube/` follows an API server, `manifest/` a file or a directory. `wire/` holds the few fields of each kind that a
//! proxy reads, and is shared by both; `protobuf/` reads the same fields from the API's binary form. Nothing here
//! validates values: addresses and ports stay text and numbers until `ferroxy-core` reads them.

#![forbid(unsafe_code)]

#[cfg(feature = "kube")]
pub mod kube;
pub mod manifest;
mod object;
mod occurrence;
#[cfg_attr(not(feature = "kube"), allow(dead_code, reason = "some of it only the API needs"))]
pub mod protobuf;
#[cfg_attr(not(feature = "kube"), allow(dead_code, reason = "some of it only the API needs"))]
mod wire;

pub use manifest::{Batch, ManifestSource, ManifestWatch, OpenError, read_str};
pub use object::{Key, Kind, Object};
pub use occurrence::{Occurrence, Regarding};
