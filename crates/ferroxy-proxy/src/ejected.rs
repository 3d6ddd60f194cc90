//! Ejected endpoints of all pools, by address: a passed probe finds the pools of its endpoint without walking all
//! pools, and without taking the lock that a change holds.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::pool::Pool;

/// When the map has this many addresses, and twice as many as the last cleanup left, entries of expired ejections are
/// removed.
const MANY: usize = 1000;

#[derive(Debug, Default)]
pub struct Ejected {
    /// The number of addresses. Usually 0, and then `pardon` takes no lock.
    count: AtomicUsize,
    pools: Mutex<Pools>,
}

#[derive(Debug, Default)]
struct Pools {
    by_address: HashMap<SocketAddr, Vec<Weak<Pool>>>,
    left: usize,
}

impl Ejected {
    /// Records that the pool has ejected this endpoint.
    pub fn add(&self, address: SocketAddr, pool: &Arc<Pool>) {
        let mut pools = self.pools();
        if pools.by_address.len() >= MANY.max(2 * pools.left) {
            pools.by_address.retain(|address, pools| {
                pools.retain(|pool| pool.upgrade().is_some_and(|pool| pool.is_ejected(*address)));
                !pools.is_empty()
            });
            pools.left = pools.by_address.len();
        }
        let of_address = pools.by_address.entry(address).or_default();
        let known = Arc::downgrade(pool);
        if !of_address.iter().any(|it| it.ptr_eq(&known)) {
            of_address.push(known);
        }
        self.count.store(pools.by_address.len(), Relaxed);
    }

    /// Ends the ejection of the endpoint at this port in all pools, or, without a port, of all endpoints at this address.
    pub fn pardon(&self, ip: IpAddr, port: Option<u16>) {
        if self.count.load(Relaxed) == 0 {
            return;
        }
        let mut pools = self.pools();
        let addresses: Vec<SocketAddr> = match port {
            Some(port) => vec![SocketAddr::new(ip, port)],
            None => pools.by_address.keys().filter(|address| address.ip() == ip).copied().collect(),
        };
        let removed = addresses.into_iter().filter_map(|it| Some((it, pools.by_address.remove(&it)?)));
        let removed: Vec<(SocketAddr, Vec<Weak<Pool>>)> = removed.collect();
        self.count.store(pools.by_address.len(), Relaxed);
        drop(pools);
        for (address, pools) in removed {
            pools.iter().filter_map(Weak::upgrade).for_each(|pool| pool.pardon(address));
        }
    }

    fn pools(&self) -> MutexGuard<'_, Pools> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::config::{Key, Pool as Config};

    fn address(number: u32) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::from(0x0af4_0000 + number), 80))
    }

    fn pool(name: &str, endpoints: impl IntoIterator<Item = SocketAddr>) -> Arc<Pool> {
        let pool = Pool::new(Key::from(name));
        pool.change(Config { endpoints: endpoints.into_iter().collect(), ..Config::default() });
        Arc::new(pool)
    }

    fn eject(ejected: &Ejected, pool: &Arc<Pool>, address: SocketAddr) {
        let endpoint = pool.snapshot().endpoints.iter().find(|it| it.address == address).cloned().unwrap();
        let times = (0..5).filter(|_| pool.dial_failed(&endpoint)).count();
        assert_eq!(times, 1, "ejected once, by the last failure");
        ejected.add(address, pool);
    }

    #[test]
    fn a_passed_probe_ends_the_ejection_in_every_pool_and_of_no_other_endpoint() {
        let ejected = Ejected::default();
        let (web, api) = (pool("web", (0..8).map(address)), pool("api", (0..8).map(address)));
        for pool in [&web, &api] {
            eject(&ejected, pool, address(1));
            eject(&ejected, pool, address(2));
        }
        ejected.pardon(address(3).ip(), Some(80));
        ejected.pardon(address(1).ip(), Some(80));
        ejected.pardon(address(2).ip(), Some(81));
        for pool in [&web, &api] {
            assert!(!pool.is_ejected(address(1)) && pool.is_ejected(address(2)));
        }
    }

    #[test]
    fn a_probe_of_a_port_of_its_own_speaks_for_all_ports_of_the_pod() {
        let ejected = Ejected::default();
        let other_port = SocketAddr::new(address(1).ip(), 8080);
        let web = pool("web", (0..8).map(address).chain([other_port]));
        for address in [address(1), address(2), other_port] {
            eject(&ejected, &web, address);
        }
        ejected.pardon(address(1).ip(), None);
        let still = [address(1), address(2), other_port].map(|it| web.is_ejected(it));
        assert_eq!(still, [false, true, false]);
    }

    #[test]
    fn ejections_that_have_ended_are_not_kept() {
        let ejected = Ejected::default();
        for number in 0..3 * MANY as u32 {
            // The pool is gone at once.
            let pool = pool("short", [address(number), address(number + 1)]);
            ejected.add(address(number), &pool);
            assert!(ejected.pools().by_address.len() <= MANY);
        }
    }
}
