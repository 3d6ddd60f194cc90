//! What to do to the kernel, step by step, in an order in which traffic never sees a gap.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use crate::set::{Member, SetName};
use crate::state::{Address, Treatment};

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    ops: Vec<Op>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    CreateSet(SetName),
    /// Puts another set with these members in the place of one that is too small or of another type.
    ReplaceSet(SetName, BTreeSet<Member>),
    CreateDevice,
    /// Chains and jumps written, which refer to sets.
    WriteRules(ferroxy_iptables::Plan),
    AddMember(SetName, Member),
    /// Forbids the node itself to use a load-balancer address.
    Guard(Address),
    AddServer(Address, Treatment),
    /// One that is still there, on its way out, is revived: whoever planned this may not have looked.
    AddEndpoint(Address, SocketAddr),
    AddAddress(IpAddr),
    ChangeServer(Address, Treatment),
    /// Sets a weight back to normal: the endpoint came back before its last connection ended.
    Revive(Address, SocketAddr),
    /// Sets a weight to 0: no new connections, established ones go on.
    Drain(Address, SocketAddr),
    RemoveEndpoint(Address, SocketAddr),
    RemoveAddress(IpAddr),
    /// With its endpoints.
    RemoveServer(Address),
    Unguard(Address),
    RemoveMember(SetName, Member),
    RemoveRules(ferroxy_iptables::Plan),
    RemoveDevice,
    DestroySet(SetName),
}

impl Plan {
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    pub fn len(&self) -> usize {
        self.ops.len()
    }

    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    pub fn into_ops(self) -> Vec<Op> {
        self.ops
    }
}

/// What serves until a Plan has been carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// This mode, or nothing.
    ThisMode,
    /// The rules of iptables mode, in chains that both modes have: they stay until all else is there.
    OtherRules,
}

impl Plan {
    /// Brings operations into the safe order; those of one rank stay as they are.
    pub fn in_order(mut ops: Vec<Op>, before: Before) -> Plan {
        ops.sort_by_key(|op| op.rank(before));
        Plan { ops }
    }
}

impl FromIterator<Op> for Plan {
    fn from_iter<T: IntoIterator<Item = Op>>(ops: T) -> Plan {
        Plan::in_order(ops.into_iter().collect(), Before::ThisMode)
    }
}

impl Op {
    /// What is referred to exists first and goes last. A virtual server balances before its address is the host's, and
    /// until after it is: in between, the host itself would answer. What says how to treat a packet comes before
    /// what makes packets come.
    fn rank(&self, before: Before) -> u8 {
        match self {
            // Nothing gets to the virtual servers while other rules translate it: how it is treated can wait.
            Op::WriteRules(_) if before == Before::OtherRules => 8,
            Op::Guard(_) if before == Before::OtherRules => 9,
            Op::CreateSet(_) | Op::ReplaceSet(..) => 0,
            Op::CreateDevice => 1,
            Op::WriteRules(_) => 2,
            Op::AddMember(..) => 3,
            Op::Guard(_) => 4,
            Op::AddServer(..) => 5,
            Op::AddEndpoint(..) | Op::Revive(..) => 6,
            Op::AddAddress(_) => 7,
            Op::ChangeServer(..) => 10,
            Op::Drain(..) | Op::RemoveEndpoint(..) => 11,
            Op::RemoveAddress(_) => 12,
            Op::RemoveServer(_) => 13,
            Op::Unguard(_) => 14,
            Op::RemoveMember(..) => 15,
            Op::RemoveRules(_) => 16,
            Op::RemoveDevice => 17,
            Op::DestroySet(_) => 18,
        }
    }
}
