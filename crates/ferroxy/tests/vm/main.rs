//! ipvs mode, and every mode on an older kernel, in the virtual machine of ring 3 (`make test-vm`).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the functions that tests share are tests too; clippy does not know"
)]

mod agent;
mod conformance;
#[path = "../support/mod.rs"]
mod support;
mod takeover;
mod traffic;
