//! Ring 0 of conformance: every recorded probe of every case, against the rendered ruleset, with each case's configuration as the
//! binary reads it. No privileges, no packets.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "the functions that tests share are tests too; clippy does not know"
)]

use ferroxy::config::Config;
use ferroxy::flags::Flags;
use ferroxy::modes::MODES;
use ferroxy_core::{Intent, Packet, Policy};
use ferroxy_dataplane::{Mode, Platform, Rendering, Settings};
use ferroxy_lab::conformance::{self, Case, Trial};

fn policy(case: &Case, mode: &Mode) -> Policy {
    let flags = Flags {
        config: Some(case.folder.join("config.yaml").display().to_string()),
        hostname_override: Some("ka".into()),
        ..Flags::default()
    };
    let (config, _) = Config::load(&flags, MODES).expect("the case's configuration is valid");
    config.policy(mode, "ka".into())
}

/// `conformance::Mode::named` says which recordings belong to a mode. (No traffic was recorded on Windows: there,
/// the recorded objects of HNS are compared, in the crate of the mode.)
#[test]
fn every_recorded_probe_follows_from_the_ruleset_of_every_mode() {
    for mode in MODES.for_platform(Platform::Linux) {
        let recorded_as = conformance::Mode::named(mode.name);
        follow(mode, recorded_as.unwrap_or_else(|| panic!("{} mode: no recordings", mode.name)));
    }
}

fn follow(mode: &Mode, recorded_as: conformance::Mode) {
    let trials = Trial::all_with(recorded_as, |case| Ok(policy(case, mode))).unwrap();
    let host_addresses = conformance::HOST_ADDRESSES.map(|address| address.parse().unwrap());
    let rules = |intent: &Intent| {
        let settings = Settings::default();
        let ruleset =
            (mode.render)(&Rendering { intent, settings: &settings, host_addresses: &host_addresses });
        move |packet: &Packet| ruleset.trace(packet).verdict
    };
    let probes =
        conformance::play(&trials, rules).unwrap_or_else(|faults| panic!("{} mode: {faults}", mode.name));
    assert!(probes > 100, "{} mode: only {probes} probes: is the corpus complete?", mode.name);
}
