//! The agent on a node: traffic, drift, restarts, takeover, health, metrics, pages. Every test has namespaces of its own, with
//! real packets where it is about traffic. One program for all of it, because linking one takes as long as most of its tests.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the functions that tests share are tests too; clippy does not know"
)]

mod affinity;
mod conformance;
mod drift;
mod flood;
mod host;
mod hostile;
mod iptables;
mod localhost;
mod logs;
mod manifests;
mod new_dataplane;
mod otlp;
mod page;
mod probes;
mod restart;
mod second_agent;
#[cfg(feature = "profiling")]
mod serve;
#[path = "../support/mod.rs"]
mod support;
mod takeover;
mod traffic;
mod udp;
mod userspace;
