//! Frontends as the data path sees them: routes to pools, and the table of original destinations.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::config::{Class, Route};
use crate::pool::Pool;

/// A frontend while it is served. Its routes are replaced as a whole.
#[derive(Debug)]
pub struct Frontend {
    routes: ArcSwap<Vec<Target>>,
}

/// A route, with the pool it leads to.
#[derive(Debug)]
pub struct Target {
    pub route: Route,
    pub pool: Option<Arc<Pool>>,
}

impl Frontend {
    pub fn new(targets: Vec<Target>) -> Frontend {
        Frontend { routes: ArcSwap::from_pointee(targets) }
    }

    pub fn change(&self, targets: Vec<Target>) {
        self.routes.store(Arc::new(targets));
    }

    /// The pool of the first route that matches.
    pub fn pool(&self, source: IpAddr, class: Class) -> Option<Arc<Pool>> {
        let targets = self.routes.load();
        targets.iter().find(|it| it.route.matches(source, class))?.pool.clone()
    }
}

/// Frontends by original destination. The table has parts, because a change copies a whole map.
#[derive(Debug)]
pub struct Table {
    parts: Vec<ArcSwap<HashMap<SocketAddr, Arc<Frontend>>>>,
    hash: RandomState,
}

const PARTS: usize = 256;

impl Table {
    pub fn new() -> Table {
        let parts = (0..PARTS).map(|_| ArcSwap::default()).collect();
        Table { parts, hash: RandomState::new() }
    }

    /// The frontend of this address, or the one for all addresses on this port.
    pub fn find(&self, destination: SocketAddr) -> Option<Arc<Frontend>> {
        let any = match destination.ip() {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let get = |address: &SocketAddr| self.part(address).load().get(address).cloned();
        get(&destination).or_else(|| get(&SocketAddr::new(any, destination.port())))
    }

    pub fn insert(&self, destination: SocketAddr, frontend: Arc<Frontend>) {
        self.part(&destination).rcu(|part| {
            let mut part = HashMap::clone(part);
            part.insert(destination, frontend.clone());
            part
        });
    }

    pub fn remove(&self, destination: &SocketAddr) {
        self.part(destination).rcu(|part| {
            let mut part = HashMap::clone(part);
            part.remove(destination);
            part
        });
    }

    fn part(&self, address: &SocketAddr) -> &ArcSwap<HashMap<SocketAddr, Arc<Frontend>>> {
        &self.parts[self.hash.hash_one(address) as usize % PARTS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frontend() -> Arc<Frontend> {
        Arc::new(Frontend::new(vec![]))
    }

    #[test]
    fn an_address_of_its_own_comes_before_all_addresses() {
        let table = Table::new();
        let (own, all) = (frontend(), frontend());
        let address: SocketAddr = "192.0.2.1:30080".parse().unwrap();
        table.insert("0.0.0.0:30080".parse().unwrap(), all.clone());
        table.insert(address, own.clone());
        assert!(Arc::ptr_eq(&table.find(address).unwrap(), &own));
        assert!(Arc::ptr_eq(&table.find("192.0.2.2:30080".parse().unwrap()).unwrap(), &all));
        assert!(table.find("192.0.2.1:30081".parse().unwrap()).is_none());
        assert!(table.find("[::1]:30080".parse().unwrap()).is_none(), "another family");
        table.remove(&address);
        assert!(Arc::ptr_eq(&table.find(address).unwrap(), &all));
    }

    #[test]
    fn the_first_route_that_matches_decides() {
        let pool = |key: &str| Some(Arc::new(Pool::new(key.into())));
        let target = |sources: &[&str], classes: &[u8], pool| Target {
            route: Route {
                sources: sources.iter().map(|it| it.parse().unwrap()).collect(),
                classes: classes.iter().map(|it| Class(*it)).collect(),
                pool: None,
            },
            pool,
        };
        let frontend = Frontend::new(vec![
            target(&["10.0.0.66/32"], &[], None),
            target(&["10.0.0.0/8", "fd00::/8"], &[], pool("internal")),
            target(&[], &[7], pool("external")),
        ]);
        let key = |source: &str, class| {
            frontend.pool(source.parse().unwrap(), Class(class)).map(|it| it.key.clone())
        };
        assert_eq!(key("10.0.0.66", 7), None);
        assert_eq!(key("10.0.0.1", 0).as_deref(), Some("internal"));
        assert_eq!(
            key("::ffff:10.0.0.1", 0).as_deref(),
            Some("internal"),
            "an IPv4 client of an IPv6 socket"
        );
        assert_eq!(key("192.0.2.1", 7).as_deref(), Some("external"));
        assert_eq!(key("192.0.2.1", 0), None);
    }
}
