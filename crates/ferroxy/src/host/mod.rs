//! Prepares this host as configured: settings that are applied before the agent starts, and the privileges that the agent keeps.
//! How that is done is the platform's part (`ferroxy_platform`).

mod privileges;

use std::io;

use ferroxy_core::Family;
use ferroxy_dataplane::Mode;
use ferroxy_platform::notify::Notifier;
use ferroxy_platform::{conntrack, memory};
use tracing::{debug, info, warn};

pub use ferroxy_platform::{Claim, notify};

use crate::config::{Config, Conntrack};

/// The IP families that are switched on.
pub fn families() -> Vec<Family> {
    if ferroxy_platform::host::has_ipv6() { Family::ALL.to_vec() } else { vec![Family::V4] }
}

/// Applies the settings that need more privileges than the agent keeps. With `--init-only`, the process changes nothing else.
pub fn prepare(config: &Config) {
    set_oom_score(config.oom_score_adj);
    set_conntrack(&config.conntrack);
}

/// Applies the part of a changed configuration that [`prepare`] applies, as far as the remaining privileges allow it.
/// Settings that did not change are neither set nor reported again.
pub fn prepare_again(old: &Config, new: &Config) {
    if old.oom_score_adj != new.oom_score_adj {
        set_oom_score(new.oom_score_adj);
    }
    if old.conntrack != new.conntrack {
        set_conntrack(&new.conntrack);
    }
}

/// Keeps the privileges that the mode needs. Call it after [`prepare`] and before any thread is started.
pub fn give_up_privileges(mode: &Mode, config: &Config) {
    let kept = ferroxy_platform::privileges::keep(&mode.privileges, &privileges::extra(config));
    match kept {
        Err(error) if is_unknown_here(&error) => debug!("{error}"),
        Err(error) => warn!("cannot drop privileges, keeping all of them: {error}"),
        Ok(()) => {}
    }
}

/// The service manager that started this process, if one did.
pub fn service_manager() -> Notifier {
    Notifier::from_environment().unwrap_or_else(|error| {
        warn!("cannot notify the service manager: {error}");
        Notifier::default()
    })
}

fn set_oom_score(score: i32) {
    match memory::set_oom_score(score) {
        Err(error) if is_unknown_here(&error) => debug!("{error}"),
        Err(error) => warn!("cannot set oomScoreAdj to {score}, keeping the present score: {error}"),
        Ok(()) => {}
    }
}

/// The platform does not have the setting: users cannot change that, so it is not a warning.
fn is_unknown_here(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Unsupported
}

/// A failure is a warning. kube-proxy does not start if it cannot change these settings.
fn set_conntrack(wanted: &Conntrack) {
    let report = conntrack::apply(&conntrack_settings(wanted));
    report.written.iter().for_each(|written| info!("{written}"));
    if !report.failed.is_empty() {
        let failed: Vec<String> = report.failed.iter().map(ToString::to_string).collect();
        warn!("cannot apply all conntrack settings: {}", failed.join("; "));
    }
}

fn conntrack_settings(wanted: &Conntrack) -> conntrack::Settings {
    conntrack::Settings {
        max_per_core: wanted.max_per_core,
        min: wanted.min,
        tcp_established_timeout: wanted.tcp_established_timeout,
        tcp_close_wait_timeout: wanted.tcp_close_wait_timeout,
        tcp_be_liberal: wanted.tcp_be_liberal,
        udp_timeout: wanted.udp_timeout,
        udp_stream_timeout: wanted.udp_stream_timeout,
    }
}
