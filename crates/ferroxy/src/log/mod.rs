//! The log of the agent: in the original's formats, or, at a terminal, in a form for people.
//!
//! klog knows verbosities (`-v=4`), tracing knows levels. Ours: `info!` and above is always logged, `debug!` from `-v=2`,
//! `trace!` from `-v=4`; see `levels.rs`.

mod backlog;
mod events;
mod fields;
mod file;
mod json;
mod levels;
mod limit;
mod place;
mod streams;
mod terminal;
mod text;
mod writer;

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tracing::{Subscriber, info};
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{LogFormat, LogStream, Logging};
use crate::flags::Flags;
use crate::modes::MODES;
pub use events::to_event_log;
pub use file::{USUAL_MEGABYTES, to_file};
pub use levels::{set_verbosity, verbosity};
pub use limit::{count_suppressed, suppressed};
pub use streams::print_error;
pub use writer::{dropped, write_in_background};

static IS_JSON: AtomicBool = AtomicBool::new(false);

/// Starts logging. The first call counts.
pub fn start(logging: &Logging) {
    adjust(logging);
    let streams = streams::open(logging);
    let registry = tracing_subscriber::registry().with(levels::Filter);
    let started = match logging.format {
        LogFormat::Json => registry.with(layer(streams).event_format(json::Json)).try_init(),
        LogFormat::Text if is_for_people(logging) => {
            let colour = std::env::var_os("NO_COLOR").is_none();
            registry.with(layer(streams).event_format(terminal::Terminal { colour })).try_init()
        }
        LogFormat::Text => registry.with(layer(streams).event_format(text::Klog)).try_init(),
    };
    // A second call (in tests) is refused; the first stays in force.
    if started.is_ok() {
        IS_JSON.store(logging.format == LogFormat::Json, Ordering::Relaxed);
    }
}

/// Starts logging with the original's defaults, unless it has started: for errors before the configuration is known.
pub fn start_plainly() {
    let stream = LogStream { split_stream: false, info_buffer_size: "0".to_owned() };
    if !tracing::dispatcher::has_been_set() {
        start(&Logging {
            format: LogFormat::Text,
            flush_frequency: Duration::from_secs(5),
            verbosity: 0,
            vmodule: Vec::new(),
            text: stream.clone(),
            json: stream,
        });
    }
}

/// Waits until everything is written, for a second at most. To be called before the process ends.
pub fn flush() {
    writer::flush();
    events::flush();
}

/// Whether lines are JSON by now, so that nothing else may be printed among them.
pub fn is_json() -> bool {
    IS_JSON.load(Ordering::Relaxed)
}

/// Applies the settings that can change at run time: verbosity and `vmodule`.
pub fn adjust(logging: &Logging) {
    levels::set(logging.verbosity, logging.vmodule.clone());
}

/// Logs every flag with its value, from `-v=1`, as the original does at its start.
pub fn flags(flags: &Flags) {
    for (name, value) in flags.all(MODES) {
        info!(target: levels::V1, "FLAG: --{name}={value:?}");
    }
}

fn is_for_people(logging: &Logging) -> bool {
    io::stderr().is_terminal() && file::chosen().is_none() && !logging.text.split_stream
}

fn layer<S>(
    streams: streams::Streams,
) -> fmt::Layer<S, fmt::format::DefaultFields, fmt::format::Format, streams::Streams>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fmt::layer().with_writer(streams)
}

#[cfg(test)]
mod tests;
