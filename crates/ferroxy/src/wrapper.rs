//! Accelerated sockets, the one thing that wraps a dataplane: all that the binary knows of its crate. Its flags are in
//! `flags/mod.rs`, its fields in `config/own.rs`; its figures come through a capability, like those of dataplanes.

use std::path::Path;

use ferroxy_core::Intent;
use ferroxy_dataplane::{Dataplane, Ruleset};
use ferroxy_platform::Privilege;
use ferroxy_sockets::Clients;
pub use ferroxy_sockets::Options;
pub use ferroxy_sockets::options::{MOST_ELEMENTS, PINS};

/// Whose sockets, as flags and files spell it.
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
