//! The entry for the binary, on every platform: wrapping a dataplane, and removing what is pinned.

use std::path::Path;

use ferroxy_core::Intent;
use ferroxy_dataplane::{Dataplane, Ruleset};

use crate::entry::Clients;
use crate::options::Options;
use crate::render::render;
use crate::ruleset::AcceleratedRuleset;
use crate::terms::{Salt, Terms};

/// The dataplane with sockets translated above it; the same dataplane where no clients are asked for.
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

/// The rules for packets with the maps of sockets; only the rules where no clients are asked for.
pub fn accelerate_ruleset(packets: Box<dyn Ruleset>, intent: &Intent, options: &Options) -> Box<dyn Ruleset> {
    let Some(choice) = packets.choice_of_endpoints().filter(|_| options.clients != Clients::NONE) else {
        return packets;
    };
    let terms = Terms::new(&intent.node, options.clients, choice, Salt::default());
    let state = render(intent, &terms);
    Box::new(AcceleratedRuleset { packets, state, terms })
}

/// Removes what is pinned in a directory, programs first. What there was, in words.
#[cfg(target_os = "linux")]
pub fn remove_pins(pins: &Path) -> Result<Vec<String>, String> {
    crate::dataplane::remove_pins(pins).map_err(|error| error.to_string())
}

#[cfg(not(target_os = "linux"))]
pub fn remove_pins(_: &Path) -> Result<Vec<String>, String> {
    Ok(Vec::new())
}
