//! The pure half of a dataplane: a rendered Intent, as text, as JSON, and the path of a packet through it.

use std::fmt::{Debug, Display};
use std::net::IpAddr;

use ferroxy_core::{Packet, ServiceIntent, Verdict};

/// `Display` prints it as the mode's own tool does.
pub trait Ruleset: Display + Debug {
    fn trace(&self, packet: &Packet) -> Trace;

    fn to_json(&self) -> serde_json::Value;

    /// Whether this ruleset makes an address one of the host's own, as a device with the addresses of Services does.
    fn makes_local(&self, _: IpAddr) -> bool {
        false
    }

    /// What this mode adds to a Service that other modes do not have: a name and a value each.
    fn traits_of(&self, _: &ServiceIntent) -> Vec<(&'static str, String)> {
        Vec::new()
    }
}

/// Where a packet ends, and how it got there.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    pub verdict: Verdict,
    /// The rules that did something, in order.
    pub steps: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// A chain, a table, a listener: whatever holds rules in this mode.
    pub place: String,
    pub rule: String,
    pub effect: String,
    /// Session affinity: a client that returns gets the endpoint it had.
    pub is_sticky: bool,
}
