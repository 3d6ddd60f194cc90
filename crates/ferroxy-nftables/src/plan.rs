//! The operations that change the kernel, in order: new chains, then the change itself as one transaction, then the removal of
//! what it left unused.
//!
//! The order is safe at every point, not only as a whole: references never dangle, and a frontend is added after its endpoints
//! and removed before them. So a Plan that is too large for one transaction can be split anywhere.

use ferroxy_core::Family;
use ferroxy_netlink::nftables::{Hook, Set};

use crate::element::{Element, SetId};
use crate::rule::Rule;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// A transaction of its own, before `changes`. A lookup sees the current elements, but a packet sees the chains of the moment
    /// it arrived: to a packet on its way, a chain that was committed together with the element that leads to it is empty.
    pub chains: Vec<Op>,
    pub changes: Vec<Op>,
    /// A transaction of its own, after `changes`: kernels before 6.2 count a chain as used until the transaction that removed its
    /// last user is over.
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
    /// The table of kube-proxy's nftables mode. No part of our State.
    RemoveKubeProxyTable,
    AddSet(Box<Set>),
    RemoveSet(String),
    AddChain {
        name: String,
        hook: Option<Hook>,
    },
    RemoveChain(String),
    /// To write it anew.
    FlushChain(String),
    /// Flushes a chain that nothing leads to any more.
    RetireChain(String),
    AddRule {
        chain: String,
        rule: Box<Rule>,
    },
    Add(Element),
    Remove(Element),
    /// The same key with another value, in one transaction.
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

    /// Merges the chains into the changes, for a table that is not in force yet.
    pub fn at_once(mut self) -> Plan {
        self.changes.append(&mut self.chains);
        self.sort();
        self
    }

    /// Sorts the operations into the safe order. Stable for those of one rank and one set.
    pub fn sort(&mut self) {
        for ops in [&mut self.chains, &mut self.changes] {
            ops.sort_by_key(|op| (op.action.rank(), op.family, op.action.element().map(|e| e.set)));
        }
    }
}

impl Action {
    /// The element that an operation is about: the new one, or for a removal the old one.
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
            Action::RetireChain(_) => 10,
            Action::RemoveSet(_) => 11,
            Action::RemoveChain(_) => 12,
            Action::RemoveKubeProxyTable => 13,
        }
    }
}

/// Removes kube-proxy's tables. Last in a Plan: they serve until ours do.
pub fn remove_kube_proxy_tables(families: &[Family]) -> impl Iterator<Item = Op> {
    families.iter().map(|family| Op { family: *family, action: Action::RemoveKubeProxyTable })
}

/// Elements that direct packets, as opposed to those that packets are directed to.
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
