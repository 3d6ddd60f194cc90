//! What the agent says while it runs: to standard error, for people.

use std::io::{self, IsTerminal};

use tracing_subscriber::filter::LevelFilter;

use crate::config::Logging;

/// Starts logging. `-v` as in the original: 0 for what matters, 2 and up for more.
pub fn start(logging: &Logging) {
    let level = match logging.verbosity {
        0 | 1 => LevelFilter::INFO,
        2..=4 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let colour = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    // A second call (in tests) is refused; the first stays in force.
    let _ = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(io::stderr)
        .with_ansi(colour)
        .with_target(false)
        .try_init();
}
