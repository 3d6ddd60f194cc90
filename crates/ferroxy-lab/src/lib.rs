//! A network of namespaces with pods, clients and probes, on the real kernel, for integration tests and the demo. It starts
//! no proxy, and only `api` (feature `api`), the API server for tests, knows Kubernetes objects.
//!
//! Needs root or a user namespace: `unshare -Urnm cargo test`. Leaves nothing behind, even if killed.
//!
//! ```no_run
//! use ferroxy_lab::{Effort, Network, Probe, Protocol};
//!
//! let network = Network::conformance()?;
//! let probe = Probe { from: "a1".into(), protocol: Protocol::Tcp, address: "10.244.2.5".parse()?, port: 80 };
//! let seen = probe.run(&network, &Effort::default())?;
//! assert!(seen.contains_key("b1:80 10.244.1.5"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(feature = "api")]
pub mod api;
pub mod capability;
pub mod cgroup;
pub mod conformance;
mod error;
pub mod load;
mod namespace;
mod network;
mod patience;
pub mod pod;
mod probe;

pub use capability::{Capability, require};
pub use cgroup::{BpfFilesystem, Cgroups};
pub use error::{LabError, Result};
pub use load::{Load, LongConnection};
pub use namespace::Namespace;
pub use network::{Network, prefixes};
pub use patience::{ANSWER, PATIENCE};
pub use pod::PodServer;
pub use probe::{Answer, Effort, Probe, Protocol, Seen, ask};
