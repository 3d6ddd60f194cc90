//! The operations that turn one State into another, in an order in which no client is refused that is served before and after.

use std::fmt;
use std::net::IpAddr;

use ferroxy_proxy::{Change, Frontend, Key, Pool, Redirect};

use crate::text::{frontend_text, pool_text, redirect_text};

#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    AddRoute(IpAddr),
    SetPool(Key, Pool),
    SetRedirect(Key, Redirect),
    SetFrontend(Key, Frontend),
    Nftables(Box<ferroxy_nftables::Plan>),
    /// The Plan to write, and the State after it.
    Iptables(Box<ferroxy_iptables::Plan>, Box<ferroxy_iptables::State>),
    RemoveFrontend(Key),
    RemoveRedirect(Key),
    RemovePool(Key),
    RemoveRoute(IpAddr),
}

/// First listeners are opened, then the rules that lead to them change, then unreferenced listeners are closed.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    pub before_rules: Vec<Op>,
    pub rules: Vec<Op>,
    pub after_rules: Vec<Op>,
}

impl Plan {
    pub fn ops(&self) -> impl Iterator<Item = &Op> {
        self.before_rules.iter().chain(&self.rules).chain(&self.after_rules)
    }

    /// Each rule counts.
    pub fn len(&self) -> usize {
        let size = |op: &Op| match op {
            Op::Nftables(plan) => plan.len(),
            Op::Iptables(plan, _) => plan.len(),
            _ => 1,
        };
        self.ops().map(size).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The part of some operations that the engine carries out.
pub fn change(ops: &[Op]) -> Change {
    let mut change = Change::default();
    for op in ops {
        match op {
            Op::SetPool(key, pool) => drop(change.pools.insert(key.clone(), Some(pool.clone()))),
            Op::RemovePool(key) => drop(change.pools.insert(key.clone(), None)),
            Op::SetRedirect(key, to) => drop(change.redirects.insert(key.clone(), Some(to.clone()))),
            Op::RemoveRedirect(key) => drop(change.redirects.insert(key.clone(), None)),
            Op::SetFrontend(key, to) => drop(change.frontends.insert(key.clone(), Some(to.clone()))),
            Op::RemoveFrontend(key) => drop(change.frontends.insert(key.clone(), None)),
            Op::AddRoute(_) | Op::RemoveRoute(_) | Op::Nftables(_) | Op::Iptables(..) => {}
        }
    }
    change
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::AddRoute(address) => write!(f, "add route local {address} dev lo"),
            Op::RemoveRoute(address) => write!(f, "delete route local {address} dev lo"),
            Op::SetPool(key, pool) => write!(f, "set {}", pool_text(key, pool)),
            Op::RemovePool(key) => write!(f, "delete pool {key}"),
            Op::SetRedirect(key, redirect) => write!(f, "set {}", redirect_text(key, redirect)),
            Op::RemoveRedirect(key) => write!(f, "delete {key}"),
            Op::SetFrontend(_, frontend) => write!(f, "set {}", frontend_text(frontend)),
            Op::RemoveFrontend(key) => write!(f, "delete frontend {key}"),
            Op::Nftables(plan) => write!(f, "{}", plan.to_string().trim_end()),
            Op::Iptables(plan, _) => write!(f, "{}", plan.to_string().trim_end()),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ops().try_for_each(|op| writeln!(f, "{op}"))
    }
}
