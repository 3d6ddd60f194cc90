//! Accelerated sockets, the one thing that wraps a dataplane: the only use of that crate in the binary. The flags are in
//! `flags/mod.rs`, the fields in `config/own.rs`; figures come through a capability, like those of dataplanes.

use std::path::Path;

use ferroxy_core::Intent;
use ferroxy_dataplane::{Dataplane, Ruleset};
use ferroxy_platform::Privilege;
use ferroxy_sockets::Clients;
pub use ferroxy_sockets::Options;
pub use ferroxy_sockets::options::{MOST_ELEMENTS, PINS};

/// The clients whose sockets are accelerated, as flags and files spell them.
pub const CLIENTS: [&str; 4] = [OFF, "host", "pods", ALL];
pub const OFF: &str = "off";
pub const ALL: &str = "all";

/// The clients that one of [`CLIENTS`] means.
pub fn clients(word: &str) -> Clients {
    match word {
        "host" => Clients::HOST,
        "pods" => Clients::PODS,
        ALL => Clients::ALL,
        _ => Clients::NONE,
    }
}

pub fn is_on(options: &Options) -> bool {
    options.clients != Clients::NONE
}

/// The privileges that it needs besides those of the mode.
pub fn privileges(options: &Options) -> &'static [Privilege] {
    if is_on(options) { &[Privilege::Bpf] } else { &[] }
}

/// Returns the dataplane itself if acceleration is off, or if the dataplane cannot be wrapped.
pub fn wrap(dataplane: Box<dyn Dataplane>, options: &Options) -> Box<dyn Dataplane> {
    ferroxy_sockets::accelerate(dataplane, options)
}

pub fn wrap_ruleset(ruleset: Box<dyn Ruleset>, intent: &Intent, options: &Options) -> Box<dyn Ruleset> {
    ferroxy_sockets::accelerate_ruleset(ruleset, intent, options)
}

/// Removes the objects that any run left in the kernel. Returns what was removed, in words.
pub fn remove(pins: &Path) -> Result<Vec<String>, String> {
    ferroxy_sockets::remove_pins(pins)
}
