//! The parts of the binary, as a library, so that tests can reach them.

// `println!` and `eprintln!` panic when the reader is gone (`ferroxy … | head`), and a panic aborts.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod agent;
mod bucket;
mod client;
pub mod command;
pub mod config;
pub mod flags;
pub mod host;
pub mod journal;
pub mod log;
pub mod modes;
pub mod otlp;
pub mod output;
mod packet;
pub mod page;
pub mod panic;
mod progress;
pub mod serve;
pub mod view;
pub mod wrapper;

use ferroxy_platform::memory;
