//! The parts of the binary, as a library, so that tests can reach them.

pub mod agent;
pub mod command;
pub mod config;
pub mod dataplane;
pub mod flags;
pub mod host;
pub mod log;
pub mod output;
pub mod serve;
pub mod takeover;

use ferroxy_platform::memory;
