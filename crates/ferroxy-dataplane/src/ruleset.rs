//! The pure half of a dataplane: a rendered Intent, as text, as JSON, and the path of a packet through it.

use std::fmt::{Debug, Display};
use std::net::IpAddr;

use ferroxy_core::{Diagnostic, Packet, ServiceIntent, Verdict};

use crate::outcome::ChoiceOfEndpoints;

/// `Display` prints it as the mode's own tool does.
pub trait Ruleset: Display + Debug {
    fn trace(&self, packet: &Packet) -> Trace;

    fn to_json(&self) -> serde_json::Value;

    /// Whether this ruleset makes an address one of the host's own, as a device with the addresses of Services does.
    fn makes_local(&self, _: IpAddr) -> bool {
        false
    }

    /// As [`Dataplane::choice_of_endpoints`](crate::Dataplane::choice_of_endpoints).
    fn choice_of_endpoints(&self) -> Option<ChoiceOfEndpoints> {
        None
    }

    /// The properties that a Service has only in this mode: a name and a value each. `shortcomings`: the result of
    /// [`Dataplane::shortcomings`](crate::Dataplane::shortcomings) on this host, if it was queried; a ruleset alone can
    /// only assume.
    fn traits_of(
        &self,
        _: &ServiceIntent,
        _shortcomings: Option<&[Diagnostic]>,
    ) -> Vec<(&'static str, String)> {
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

impl Step {
    /// Removes steps with the effect `jump PLACE` after which nothing happened in that place.
    pub fn remove_idle_jumps(steps: &mut Vec<Step>) {
        for index in (0..steps.len()).rev() {
            let next = steps.get(index + 1).map(|step| step.place.as_str());
            let target = steps[index].effect.strip_prefix("jump ");
            if target.is_some_and(|target| next != Some(target)) {
                steps.remove(index);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_stays_if_something_happens_behind_it() {
        let step = |place: &str, effect: &str| Step {
            place: place.into(),
            rule: String::new(),
            effect: effect.into(),
            is_sticky: false,
        };
        let mut steps =
            vec![step("a", "jump b"), step("b", "jump c"), step("a", "jump d"), step("d", "dropped")];
        Step::remove_idle_jumps(&mut steps);
        assert_eq!(steps, [step("a", "jump d"), step("d", "dropped")]);
    }
}
