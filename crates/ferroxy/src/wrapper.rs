//! Accelerated sockets, the one thing that wraps a dataplane: all that the binary knows of its crate. Its flags are in
//! `flags/mod.rs`; its figures come through a capability, like those of dataplanes.

use std::path::Path;

use ferroxy_core::Intent;
use ferroxy_dataplane::{Dataplane, Ruleset};
use ferroxy_platform::Privilege;
use ferroxy_sockets::Clients;
pub use ferroxy_sockets::Options;
pub use ferroxy_sockets::options::PINS;
use serde_json::Value;

use crate::flags::Flags;

/// What the flags ask for. `by_mode`: the name of the mode asks for all clients ([`crate::modes::ACCELERATED`]).
pub fn options(flags: &Flags, by_mode: bool) -> Options {
    let clients = match flags.accelerate_sockets.as_deref() {
        Some("host") => Clients::HOST,
        Some("pods") => Clients::PODS,
        Some("all") => Clients::ALL,
        None if by_mode => Clients::ALL,
        _ => Clients::NONE,
    };
    let path = |given: &Option<String>| given.clone().filter(|path| !path.is_empty()).map(Into::into);
    let Options { pins, most_elements, .. } = Options::default();
    Options {
        clients,
        names_peers: flags.sockets_peer_names.unwrap_or_default(),
        cgroup: path(&flags.sockets_cgroup),
        pods_cgroup: path(&flags.sockets_pods_cgroup),
        pins: path(&flags.sockets_pins).unwrap_or(pins),
        most_elements: flags.sockets_max_entries.unwrap_or(most_elements),
    }
}

/// The default values of its flags, by name.
pub fn flag_defaults() -> [(&'static str, Value); 3] {
    let Options { pins, most_elements, .. } = Options::default();
    [
        ("sockets-max-entries", most_elements.into()),
        ("sockets-pins", pins.to_string_lossy().into()),
        ("accelerate-sockets", "off".into()),
    ]
}

pub fn is_on(options: &Options) -> bool {
    options.clients != Clients::NONE
}

/// What it needs besides the privileges of the mode.
pub fn privileges(options: &Options) -> &'static [Privilege] {
    if is_on(options) { &[Privilege::Bpf] } else { &[] }
}

/// The dataplane itself where it is off, or cannot be wrapped.
pub fn wrap(dataplane: Box<dyn Dataplane>, options: &Options) -> Box<dyn Dataplane> {
    ferroxy_sockets::accelerate(dataplane, options)
}

pub fn wrap_ruleset(ruleset: Box<dyn Ruleset>, intent: &Intent, options: &Options) -> Box<dyn Ruleset> {
    ferroxy_sockets::accelerate_ruleset(ruleset, intent, options)
}

/// Removes what any run left in the kernel. Returns what was removed, in words.
pub fn remove(pins: &Path) -> Result<Vec<String>, String> {
    ferroxy_sockets::remove_pins(pins)
}
