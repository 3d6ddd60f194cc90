//! Which lines are logged: klog's verbosity and `vmodule`, over tracing's levels. Both can change at any time.

use std::sync::{PoisonError, RwLock};

use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::{limit, place};

/// Target of `info!` lines that are logged from `-v=1`: tracing has no level for them.
pub(super) const V1: &str = "ferroxy::v1";

static SETTINGS: RwLock<Settings> = RwLock::new(Settings { verbosity: 0, vmodule: Vec::new() });

struct Settings {
    verbosity: u32,
    /// (pattern for a file, verbosity)
    vmodule: Vec<(String, u32)>,
}

/// The verbosity now, unless `vmodule` has one for the file.
pub fn verbosity() -> u32 {
    SETTINGS.read().unwrap_or_else(PoisonError::into_inner).verbosity
}

/// Applies from now on; `vmodule` stays.
pub fn set_verbosity(verbosity: u32) {
    SETTINGS.write().unwrap_or_else(PoisonError::into_inner).verbosity = verbosity;
    tracing::callsite::rebuild_interest_cache();
}

pub(super) fn set(verbosity: u32, vmodule: Vec<(String, u32)>) {
    *SETTINGS.write().unwrap_or_else(PoisonError::into_inner) = Settings { verbosity, vmodule };
    tracing::callsite::rebuild_interest_cache();
}

/// The verbosity from which a line is logged. Details of libraries need a higher verbosity than our own:
/// the one from which the original shows requests (6) or their content (8).
pub(super) fn verbosity_of(metadata: &Metadata<'_>) -> u32 {
    let ours = metadata.target().starts_with("ferroxy");
    match *metadata.level() {
        // A warning for every connection, that the server's certificate is not verified: the source logs it once.
        Level::WARN if metadata.target().starts_with("kube_client::client::tls") => 6,
        Level::INFO if metadata.target() == V1 => 1,
        Level::DEBUG if ours => 2,
        Level::TRACE if ours => 4,
        Level::DEBUG => 6,
        Level::TRACE => 8,
        _ => 0,
    }
}

/// tracing caches the result for each place that logs, until the settings change.
pub(super) struct Filter;

impl<S: Subscriber> Layer<S> for Filter {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if shows(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        shows(metadata)
    }

    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        limit::admits(event.metadata())
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let settings = SETTINGS.read().unwrap_or_else(PoisonError::into_inner);
        let modules = settings.vmodule.iter().map(|(_, verbosity)| *verbosity);
        Some(match modules.fold(settings.verbosity, u32::max) {
            0 | 1 => LevelFilter::INFO,
            2 | 3 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        })
    }
}

fn shows(metadata: &Metadata<'_>) -> bool {
    let settings = SETTINGS.read().unwrap_or_else(PoisonError::into_inner);
    settings.shows(verbosity_of(metadata), metadata.file().unwrap_or_default())
}

impl Settings {
    fn shows(&self, needed: u32, file: &str) -> bool {
        // As in klog, `vmodule` can only add.
        let by_module = || {
            let first = self.vmodule.iter().find(|(pattern, _)| place::matches(pattern, file));
            first.is_some_and(|(_, verbosity)| needed <= *verbosity)
        };
        needed <= self.verbosity || by_module()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_can_only_add() {
        let vmodule = vec![("agent".to_owned(), 4), ("s*".to_owned(), 1)];
        let settings = Settings { verbosity: 2, vmodule };
        let (agent, sweep) = ("crates/ferroxy/src/agent/mod.rs", "crates/ferroxy/src/agent/sweep.rs");
        assert!(settings.shows(4, agent) && !settings.shows(5, agent));
        assert!(settings.shows(2, sweep) && !settings.shows(3, sweep));
        assert!(settings.shows(2, "main.rs") && !settings.shows(4, "main.rs"));
    }
}
