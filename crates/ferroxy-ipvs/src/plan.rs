//! Operations on the kernel, in an order without a gap for traffic.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use crate::set::{Member, SetName};
use crate::state::{Address, DEVICE, Treatment};

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    ops: Vec<Op>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    CreateSet(SetName),
    /// Replaces a set that is too small, or of another type, with one that has these members.
    ReplaceSet(SetName, BTreeSet<Member>),
    CreateDevice,
    /// Writes chains and jumps, which refer to sets.
    WriteRules(ferroxy_iptables::Plan),
    AddMember(SetName, Member),
    /// Keeps the node itself from using a load-balancer address.
    Guard(Address),
    AddServer(Address, Treatment),
    /// If the endpoint is still draining, it is revived: the planner may not have read the kernel.
    AddEndpoint(Address, SocketAddr),
    AddAddress(IpAddr),
    ChangeServer(Address, Treatment),
    /// Sets the weight back to normal: the endpoint was added again before its last connection ended.
    Revive(Address, SocketAddr),
    /// Sets the weight to 0: no new connections, established ones go on.
    Drain(Address, SocketAddr),
    RemoveEndpoint(Address, SocketAddr),
    RemoveAddress(IpAddr),
    /// Removes a virtual server with its endpoints.
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

    /// The removed objects as text: `3 virtual servers`, `14 chains of ip nat`.
    pub fn removals(&self) -> Vec<String> {
        let count = |is_counted: fn(&Op) -> bool, one: &str| {
            let count = self.ops.iter().filter(|op| is_counted(op)).count();
            let plural = if count == 1 { "" } else { "s" };
            (count > 0).then(|| format!("{count} {one}{plural}"))
        };
        let mut removed = Vec::new();
        removed.extend(count(|op| matches!(op, Op::RemoveServer(_)), "virtual server"));
        for op in &self.ops {
            match op {
                Op::RemoveRules(plan) => removed.extend(plan.removals()),
                Op::RemoveDevice => removed.push(format!("device {DEVICE}")),
                _ => {}
            }
        }
        removed.extend(count(|op| matches!(op, Op::DestroySet(_)), "set"));
        removed
    }

    pub fn into_ops(self) -> Vec<Op> {
        self.ops
    }
}

/// What serves Services until a Plan was applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// This mode, or nothing.
    ThisMode,
    /// The rules of iptables mode, in chains that both modes have. These rules stay until everything else exists.
    OtherRules,
}

impl Plan {
    /// Sorts operations into the safe order; those of one rank keep their order.
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
    /// Referenced objects are created first and removed last. A virtual server is created before its address is added to the
    /// device, and removed after it: otherwise the host itself would answer. Rules that treat packets are written before the
    /// objects that attract packets.
    fn rank(&self, before: Before) -> u8 {
        match self {
            // While the rules of iptables mode translate packets, no packet reaches the virtual servers: our rules can be written last.
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

#[cfg(test)]
mod tests {
    use ferroxy_core::{Family, Protocol};
    use ferroxy_iptables::{Op as RuleOp, TableName};

    use super::*;
    use crate::set::Set;

    #[test]
    fn removals_are_counted_by_kind() {
        let server = |port| Address { ip: [10, 96, 0, 80].into(), protocol: Protocol::Tcp, port };
        let mut rules = ferroxy_iptables::Plan::default();
        rules.add(Family::V4, TableName::Nat, [RuleOp::Remove { chain: "KUBE-SERVICES".into() }]);
        let plan: Plan = [
            Op::DestroySet(Set::ClusterIp.of(Family::V4)),
            Op::RemoveDevice,
            Op::RemoveRules(rules),
            Op::RemoveServer(server(80)),
            Op::RemoveServer(server(81)),
        ]
        .into_iter()
        .collect();
        let expected = ["2 virtual servers", "1 chain of ip nat", "device kube-ipvs0", "1 set"];
        assert_eq!(plan.removals(), expected);
    }
}
