//! What to do to the kernel, in order: chains that will be led to, then what should be one transaction, then what it left
//! unused.
//!
//! The order is safe at every point, not only as a whole: what is referred to exists, a frontend appears after its
//! endpoints and goes before them. So a Plan too large for one transaction can be cut anywhere.

use ferroxy_core::Family;
use ferroxy_netlink::nftables::{Hook, Set};

use crate::element::{Element, SetId};
use crate::rule::Rule;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// Of a change, a transaction of its own, before `changes`: a packet sees elements as they are when it asks for them,
    /// but chains as they were when it came. Those that came with the element that leads there would be empty to it.
    pub chains: Vec<Op>,
    pub changes: Vec<Op>,
    /// A transaction of its own, after `changes`: kernels before 6.2 count a chain as used until the transaction
    /// that removed its last user is over.
    pub tidy: Vec<Op>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Op {
    pub family: Family,
    pub action: Action,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    AddTable,
    RemoveTable,
    /// kube-proxy's own table of this family. No part of our State.
    RemovePredecessor,
    AddSet(Box<Set>),
    RemoveSet(String),
    AddChain {
        name: String,
        hook: Option<Hook>,
    },
    RemoveChain(String),
    FlushChain(String),
    AddRule {
        chain: String,
        rule: Box<Rule>,
    },
    Add(Element),
    Remove(Element),
    /// The same key with another value: never a moment without it.
    Replace {
        old: Element,
        new: Element,
    },
}

impl Plan {
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn len(&self) -> usize {
        self.ops().count()
    }

    pub fn ops(&self) -> impl Iterator<Item = &Op> {
        self.chains.iter().chain(&self.changes).chain(&self.tidy)
    }

    /// The same with its chains among the changes: for a start, which is one transaction, that it may replace others' rules.
    pub fn at_once(mut self) -> Plan {
        self.changes.append(&mut self.chains);
        self.sort();
        self
    }

    /// Brings the operations into the safe order; those of one rank and one set stay together, as they were.
    pub fn sort(&mut self) {
        for ops in [&mut self.chains, &mut self.changes] {
            ops.sort_by_key(|op| (op.action.rank(), op.family, op.action.element().map(|e| e.set)));
        }
    }
}

impl Action {
    /// The element an operation is about, as it will be (or, for a removal, was).
    pub fn element(&self) -> Option<&Element> {
        match self {
            Action::Add(element) | Action::Remove(element) | Action::Replace { new: element, .. } => {
                Some(element)
            }
            _ => None,
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Action::RemoveTable => 0,
            Action::AddTable => 1,
            Action::AddSet(_) => 2,
            Action::AddChain { .. } => 3,
            Action::FlushChain(_) | Action::AddRule { .. } => 4,
            Action::Add(element) if !directs_traffic(element.set) => 5,
            Action::Replace { .. } => 6,
            Action::Add(_) => 7,
            Action::Remove(element) if directs_traffic(element.set) => 8,
            Action::Remove(_) => 9,
            Action::RemoveSet(_) => 10,
            Action::RemoveChain(_) => 11,
            Action::RemovePredecessor => 12,
        }
    }
}

/// Elements that send packets somewhere, as opposed to those they meet there.
fn directs_traffic(set: SetId) -> bool {
    matches!(
        set,
        SetId::SoleEndpoints
            | SetId::Frontends(_)
            | SetId::NoEndpoints(_)
            | SetId::Firewalled
            | SetId::AffinityTimeouts(_)
    )
}
