//! The parts of the binary, as a library, so that tests can reach them.

pub mod agent;
mod bucket;
pub mod command;
pub mod config;
pub mod flags;
pub mod host;
pub mod log;
pub mod modes;
pub mod output;
pub mod panic;
pub mod serve;

use ferroxy_platform::memory;
