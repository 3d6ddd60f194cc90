//! Ring 2: the engine with real sockets, on loopback and in namespaces of its own.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the functions that tests share are tests too"
)]

mod arrivals;
mod churn;
mod data;
mod datagrams;
mod descriptors;
mod dials;
mod hand_over;
mod idle;
mod peers;
mod pools;
mod vanishing;
