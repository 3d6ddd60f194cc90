//! The agent as a Windows program, under wine, with libraries that forward to a service in memory (`ferroxy-hcn-fake`), and our
//! API server for tests.
//!
//! `scripts/cross windows` builds the agent and names it in the environment. The behaviour of the real HNS is not tested.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the functions that tests share are tests too; clippy does not know"
)]

mod as_service;
mod commands;
mod life;
mod node;
mod scale;
mod start;
mod winuserspace;
