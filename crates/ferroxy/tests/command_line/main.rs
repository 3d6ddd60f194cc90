//! The program as people call it: commands, flags, configuration, what they print, and the examples of the README.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the functions that tests share are tests too; clippy does not know"
)]

mod commands;
mod config;
#[cfg(feature = "demo")]
mod demo;
mod explain;
#[cfg(feature = "api")]
mod fleet;
mod manual;
mod progress;
mod readme;
#[path = "../support/mod.rs"]
mod support;
mod tools;
#[cfg(feature = "top")]
mod top;
