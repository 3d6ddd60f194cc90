//! The content of the maps that the agent writes. Any subset of a right State is right: packet rules serve the rest.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use crate::entry::{FrontendKey, FrontendValue, MemberKey, MemberValue, SlotKey, SlotValue};
use crate::plan::Op;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct State {
    pub frontends: BTreeMap<FrontendKey, FrontendValue>,
    pub endpoints: BTreeMap<SlotKey, SlotValue>,
    /// The endpoints of Service ports with session affinity, once more: clients may stay at them.
    pub members: BTreeMap<MemberKey, MemberValue>,
}

/// An element of one of the maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    Frontend(FrontendKey, FrontendValue),
    Slot(SlotKey, SlotValue),
    Member(MemberKey, MemberValue),
}

impl State {
    pub fn insert(&mut self, entry: Entry) {
        match entry {
            Entry::Frontend(key, value) => drop(self.frontends.insert(key, value)),
            Entry::Slot(key, value) => drop(self.endpoints.insert(key, value)),
            Entry::Member(key, value) => drop(self.members.insert(key, value)),
        }
    }

    pub fn len(&self) -> usize {
        self.frontends.len() + self.endpoints.len() + self.members.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The endpoints of a frontend, listed or in its pool. Skips missing slots.
    pub fn endpoints_of<'a>(&'a self, value: &'a FrontendValue) -> impl Iterator<Item = SocketAddr> + 'a {
        let slots = value
            .pool()
            .into_iter()
            .flat_map(|pool| (0..value.count()).map(move |slot| SlotKey::new(pool, slot)));
        value.endpoints().chain(slots.filter_map(|slot| Some(self.endpoints.get(&slot)?.endpoint())))
    }

    /// Applies a write as the kernel does.
    pub fn apply(&mut self, op: &Op) {
        match *op {
            Op::PutMember(key, value) => self.insert(Entry::Member(key, value)),
            Op::PutSlot(key, value) => self.insert(Entry::Slot(key, value)),
            Op::PutFrontend(key, value) => self.insert(Entry::Frontend(key, value)),
            Op::RemoveFrontend(key) => drop(self.frontends.remove(&key)),
            Op::RemoveSlot(key) => drop(self.endpoints.remove(&key)),
            Op::RemoveMember(key) => drop(self.members.remove(&key)),
        }
    }
}

impl FromIterator<Entry> for State {
    fn from_iter<I: IntoIterator<Item = Entry>>(entries: I) -> State {
        let mut state = State::default();
        entries.into_iter().for_each(|entry| state.insert(entry));
        state
    }
}

/// A line for each frontend, with its endpoints below.
impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "sockets {{")?;
        for (key, value) in &self.frontends {
            let sticky = if value.is_sticky() { ", sticky" } else { "" };
            writeln!(f, "\t{} tcp for {}{sticky} {{", key.address(), value.clients().words())?;
            for (number, endpoint) in self.endpoints_of(value).enumerate() {
                writeln!(f, "\t\t{number} : {endpoint}")?;
            }
            writeln!(f, "\t}}")?;
        }
        writeln!(f, "}}")
    }
}
