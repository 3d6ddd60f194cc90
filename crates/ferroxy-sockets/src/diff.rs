//! The Plan that turns one State into another. Works on whole States, and on the parts of them that belong to a few Services.

use crate::plan::{Op, Plan};
use crate::state::State;

/// What to do with elements that `seen` has and `desired` has not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unknown {
    Remove,
    /// Keep them, because not all of the cluster can be read.
    Keep,
}

pub fn diff(seen: &State, desired: &State) -> Plan {
    difference(seen, desired, Unknown::Remove)
}

pub fn difference(seen: &State, desired: &State, unknown: Unknown) -> Plan {
    let mut plan = Plan::default();
    let removes = unknown == Unknown::Remove;
    let gone = seen.frontends.keys().filter(|key| removes && !desired.frontends.contains_key(key));
    plan.withdraw.extend(gone.map(|key| Op::RemoveFrontend(*key)));
    let members = desired.members.iter().filter(|(key, value)| seen.members.get(key) != Some(value));
    plan.publish.extend(members.map(|(key, value)| Op::PutMember(*key, *value)));
    let slots = desired.endpoints.iter().filter(|(key, value)| seen.endpoints.get(key) != Some(value));
    plan.publish.extend(slots.map(|(key, value)| Op::PutSlot(*key, *value)));
    let frontends = desired.frontends.iter().filter(|(key, value)| seen.frontends.get(key) != Some(value));
    plan.publish.extend(frontends.map(|(key, value)| Op::PutFrontend(*key, *value)));
    let gone = seen.endpoints.keys().filter(|key| removes && !desired.endpoints.contains_key(key));
    plan.publish.extend(gone.map(|key| Op::RemoveSlot(*key)));
    let gone = seen.members.keys().filter(|key| removes && !desired.members.contains_key(key));
    plan.publish.extend(gone.map(|key| Op::RemoveMember(*key)));
    plan
}
