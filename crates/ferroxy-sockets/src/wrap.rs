//! The entry for the binary, on every platform: wrapping a dataplane, and removing what is pinned.

use std::path::Path;

use ferroxy_core::Intent;
use ferroxy_dataplane::{Dataplane, Ruleset};

use crate::entry::Clients;
use crate::options::Options;
use crate::render::render;
use crate::ruleset::AcceleratedRuleset;
use crate::terms::{Salt, Terms};

/// The dataplane with sockets translated above it; the dataplane itself if no clients are configured.
#[cfg(target_os = "linux")]
pub fn accelerate(packets: Box<dyn Dataplane>, options: &Options) -> Box<dyn Dataplane> {
    match options.clients {
        Clients::NONE => packets,
        _ => Box::new(crate::Accelerated::new(packets, options.clone())),
    }
}

#[cfg(not(target_os = "linux"))]
pub fn accelerate(packets: Box<dyn Dataplane>, _: &Options) -> Box<dyn Dataplane> {
    packets
}

/// The rules for packets with the maps of sockets; only the rules if no clients are configured.
pub fn accelerate_ruleset(packets: Box<dyn Ruleset>, intent: &Intent, options: &Options) -> Box<dyn Ruleset> {
    let Some(choice) = packets.choice_of_endpoints().filter(|_| options.clients != Clients::NONE) else {
        return packets;
    };
    let terms = Terms::new(&intent.node, options.clients, choice, Salt::default());
    let state = render(intent, &terms);
    Box::new(AcceleratedRuleset { packets, state, terms })
}

/// Removes everything that is pinned in a directory, programs first. Returns what was removed, in words.
#[cfg(target_os = "linux")]
pub fn remove_pins(pins: &Path) -> Result<Vec<String>, String> {
    crate::dataplane::remove_pins(pins).map_err(|error| error.to_string())
}

#[cfg(not(target_os = "linux"))]
pub fn remove_pins(_: &Path) -> Result<Vec<String>, String> {
    Ok(Vec::new())
}
