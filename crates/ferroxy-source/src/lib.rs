//! Where facts come from: whatever the source, out comes the same [`Event`](ferroxy_core::Event).
//!
//! `kube/` watches a Kubernetes API server. `manifest/` reads a file or a directory and follows its changes. `wire/` holds the few fields of each kind that
//! a proxy reads, and is shared with whatever else delivers Kubernetes objects. Nothing here judges what the fields
//! mean: addresses and ports stay text and numbers until the store of `ferroxy-core` looks at them.

pub mod kube;
pub mod manifest;
mod object;
mod wire;

pub use manifest::{Batch, ManifestSource, ManifestWatch, OpenError, read_str};
pub use object::{Key, Kind, Object};
