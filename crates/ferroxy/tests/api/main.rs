//! The real agent with an API server: how it starts, what it does when the server fails it, and what it follows while
//! it runs. Every test has a network of its own, with real packets.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the functions that tests share are tests too; clippy does not know"
)]

mod credentials;
mod faults;
mod hosts;
mod live;
mod start;
#[path = "../support/mod.rs"]
mod support;
mod ways_in;
