//! A host networking service in memory. It keeps networks, endpoints and load balancers, refuses what HNS would refuse, and
//! fails on demand.
//!
//! [`Fake`] implements [`Api`](crate::Api) for tests in this process. [`serve`] offers the same to the libraries under wine
//! (`ferroxy-hcn-fake`), over TCP. It shows what a proxy requests. Only a real Windows can show what a real HNS answers.

mod fake;
mod first;
pub mod frame;
mod refuse;
mod server;
mod service;

/// An environment variable: set under wine, where calls are to go through the libraries of `ferroxy-hcn-fake`.
pub const THROUGH_LIBRARIES: &str = "FERROXY_THROUGH_LIBRARIES";

pub use fake::Fake;
pub use server::{Server, serve};
pub use service::{Answer, Counted, Fault, FirstFault, Service, Setup};
