//! The State of this mode as a value: addresses on an interface, and the proxy's listeners and pools.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ferroxy_proxy::{Arrival, Frontend, Key, Pool, Protocol};

use crate::plan::Op;

#[derive(Debug, Clone, PartialEq, Default)]
pub struct State {
    /// Addresses of Services, on the interface.
    pub addresses: BTreeSet<IpAddr>,
    pub pools: BTreeMap<Key, Pool>,
    /// By [`ferroxy_pools::socket_key`] on an address of a Service, and by [`node_port_key`] elsewhere.
    pub frontends: BTreeMap<Key, Frontend>,
}

/// A listener of a node port, on one address of the host or on all.
pub fn node_port_key(protocol: Protocol, address: SocketAddr) -> Key {
    let protocol = if protocol == Protocol::Tcp { "tcp" } else { "udp" };
    format!("node-port/{address}/{protocol}").into()
}

/// The address and port that a frontend listens on.
pub fn place(frontend: &Frontend) -> SocketAddr {
    match frontend.arrival {
        Arrival::Socket { address, .. } | Arrival::OriginalDestination(address) => address,
    }
}

/// The address that must be on the interface before this frontend can listen. Node ports need none of ours.
pub fn needed_address(key: &Key, frontend: &Frontend) -> Option<IpAddr> {
    key.starts_with("at/").then(|| place(frontend).ip())
}

/// Why an operation cannot be applied to a State.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// A route of a frontend leads to a pool that does not exist.
    NoPool(Key),
    /// A frontend's address is on no interface.
    NoAddress(IpAddr),
    /// A pool that a frontend still leads to.
    PoolInUse(Key),
    /// An address that a frontend still listens on.
    AddressInUse(IpAddr),
    Missing(Key),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::NoPool(key) => write!(f, "there is no pool {key}"),
            Refused::NoAddress(ip) => write!(f, "no interface has the address {ip}"),
            Refused::PoolInUse(key) => write!(f, "pool {key} is in use"),
            Refused::AddressInUse(ip) => write!(f, "address {ip} is in use"),
            Refused::Missing(key) => write!(f, "there is no {key}"),
        }
    }
}

impl State {
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.pools.is_empty() && self.frontends.is_empty()
    }

    /// Adds what another Service needs.
    pub fn extend(&mut self, other: State) {
        self.addresses.extend(other.addresses);
        self.pools.extend(other.pools);
        self.frontends.extend(other.frontends);
    }

    /// Applies one operation, as the host and the engine do: what is referred to must exist.
    pub fn apply(&mut self, op: &Op) -> Result<(), Refused> {
        match op {
            Op::AddAddress(ip) => drop(self.addresses.insert(*ip)),
            Op::RemoveAddress(ip) => {
                let needed = self.frontends.iter().filter_map(|(key, it)| needed_address(key, it));
                if needed.into_iter().any(|needed| needed == *ip) {
                    return Err(Refused::AddressInUse(*ip));
                }
                self.addresses.remove(ip);
            }
            Op::SetPool(key, pool) => drop(self.pools.insert(key.clone(), pool.clone())),
            Op::RemovePool(key) => {
                if self.frontends.values().flat_map(pools_of).any(|used| used == key) {
                    return Err(Refused::PoolInUse(key.clone()));
                }
                self.pools.remove(key).ok_or_else(|| Refused::Missing(key.clone()))?;
            }
            Op::SetFrontend(key, frontend) => {
                if let Some(pool) = pools_of(frontend).find(|pool| !self.pools.contains_key(*pool)) {
                    return Err(Refused::NoPool(pool.clone()));
                }
                if let Some(ip) = needed_address(key, frontend).filter(|ip| !self.addresses.contains(ip)) {
                    return Err(Refused::NoAddress(ip));
                }
                self.frontends.insert(key.clone(), frontend.clone());
            }
            Op::RemoveFrontend(key) => {
                self.frontends.remove(key).ok_or_else(|| Refused::Missing(key.clone()))?;
            }
        }
        Ok(())
    }
}

fn pools_of(frontend: &Frontend) -> impl Iterator<Item = &Key> {
    frontend.routes.iter().filter_map(|route| route.pool.as_ref())
}
