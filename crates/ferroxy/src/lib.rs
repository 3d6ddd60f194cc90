//! The parts of the binary that can be tested without running it: the command line and the configuration.

pub mod config;
pub mod flags;
