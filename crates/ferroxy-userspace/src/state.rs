//! The State of this mode as a value: the rules that lead to the proxy, its listeners and pools, and local routes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use ferroxy_proxy::{Frontend, Key, Pool, Redirect};

use crate::plan::Op;

#[derive(Debug, Clone, PartialEq, Default)]
pub struct State {
    pub rules: RuleState,
    /// Addresses that local routes make the host's own.
    pub routes: BTreeSet<IpAddr>,
    pub redirects: BTreeMap<Key, Redirect>,
    pub pools: BTreeMap<Key, Pool>,
    pub frontends: BTreeMap<Key, Frontend>,
}

/// The rules, of one of two kinds, or none.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RuleState {
    pub nftables: ferroxy_nftables::State,
    pub iptables: ferroxy_iptables::State,
}

/// Why an operation cannot be applied to a State.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// A route of a frontend leads to a pool that does not exist.
    NoPool(Key),
    /// A pool that a frontend still leads to.
    InUse(Key),
    Missing(Key),
    Rules(String),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::NoPool(key) => write!(f, "there is no pool {key}"),
            Refused::InUse(key) => write!(f, "pool {key} is in use"),
            Refused::Missing(key) => write!(f, "there is no {key}"),
            Refused::Rules(reason) => f.write_str(reason),
        }
    }
}

impl State {
    /// Applies one operation, as the engine and the kernel do: what is referred to must exist.
    pub fn apply(&mut self, op: &Op) -> Result<(), Refused> {
        match op {
            Op::AddRoute(address) => drop(self.routes.insert(*address)),
            Op::RemoveRoute(address) => drop(self.routes.remove(address)),
            Op::SetRedirect(key, redirect) => drop(self.redirects.insert(key.clone(), redirect.clone())),
            Op::RemoveRedirect(key) => {
                self.redirects.remove(key).ok_or_else(|| Refused::Missing(key.clone()))?;
            }
            Op::SetPool(key, pool) => drop(self.pools.insert(key.clone(), pool.clone())),
            Op::RemovePool(key) => self.remove_pool(key)?,
            Op::SetFrontend(key, frontend) => {
                if let Some(pool) = pools_of(frontend).find(|pool| !self.pools.contains_key(*pool)) {
                    return Err(Refused::NoPool(pool.clone()));
                }
                self.frontends.insert(key.clone(), frontend.clone());
            }
            Op::RemoveFrontend(key) => {
                self.frontends.remove(key).ok_or_else(|| Refused::Missing(key.clone()))?;
            }
            Op::Nftables(plan) => {
                for op in plan.ops() {
                    self.rules.nftables.apply(op).map_err(|it| Refused::Rules(format!("{op}: {it}")))?;
                }
            }
            Op::Iptables(_, state) => self.rules.iptables.clone_from(state),
        }
        Ok(())
    }

    fn remove_pool(&mut self, key: &Key) -> Result<(), Refused> {
        if self.frontends.values().flat_map(pools_of).any(|used| used == key) {
            return Err(Refused::InUse(key.clone()));
        }
        self.pools.remove(key).map(drop).ok_or_else(|| Refused::Missing(key.clone()))
    }
}

fn pools_of(frontend: &Frontend) -> impl Iterator<Item = &Key> {
    frontend.routes.iter().filter_map(|route| route.pool.as_ref())
}
