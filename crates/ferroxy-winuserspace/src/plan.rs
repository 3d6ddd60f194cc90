//! The operations that turn one State into another: addresses are added before listeners open, and removed after they close.

use std::fmt;
use std::net::IpAddr;

use ferroxy_pools::text::{frontend_text, pool_text};
use ferroxy_proxy::{Change, Frontend, Key, Pool};

#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    AddAddress(IpAddr),
    SetPool(Key, Pool),
    SetFrontend(Key, Frontend),
    RemoveFrontend(Key),
    RemovePool(Key),
    RemoveAddress(IpAddr),
}

/// Operations in the order in which they can be carried out. A Plan can be interrupted anywhere.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    ops: Vec<Op>,
}

impl Plan {
    pub(crate) fn new(ops: Vec<Op>) -> Plan {
        Plan { ops }
    }

    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    pub fn len(&self) -> usize {
        self.ops.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    pub fn added(&self) -> impl Iterator<Item = IpAddr> {
        self.ops.iter().filter_map(|op| if let Op::AddAddress(ip) = op { Some(*ip) } else { None })
    }

    pub fn removed(&self) -> impl Iterator<Item = IpAddr> {
        self.ops.iter().filter_map(|op| if let Op::RemoveAddress(ip) = op { Some(*ip) } else { None })
    }

    /// The part that the engine carries out, in its own order: one frontend can replace another at the same address and port.
    pub fn change(&self) -> Change {
        let mut change = Change::default();
        for op in &self.ops {
            match op {
                Op::SetPool(key, pool) => drop(change.pools.insert(key.clone(), Some(pool.clone()))),
                Op::RemovePool(key) => drop(change.pools.insert(key.clone(), None)),
                Op::SetFrontend(key, to) => drop(change.frontends.insert(key.clone(), Some(to.clone()))),
                Op::RemoveFrontend(key) => drop(change.frontends.insert(key.clone(), None)),
                Op::AddAddress(_) | Op::RemoveAddress(_) => {}
            }
        }
        change
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::AddAddress(ip) => write!(f, "add address {ip}"),
            Op::SetPool(key, pool) => write!(f, "set {}", pool_text(key, pool)),
            Op::SetFrontend(_, frontend) => write!(f, "set {}", frontend_text(frontend)),
            Op::RemoveFrontend(key) => write!(f, "delete frontend {key}"),
            Op::RemovePool(key) => write!(f, "delete pool {key}"),
            Op::RemoveAddress(ip) => write!(f, "delete address {ip}"),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ops.iter().try_for_each(|op| writeln!(f, "{op}"))
    }
}
