//! The served objects by the caller's keys: pools, frontends and redirects. Only changes and readers lock it.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

#[cfg(target_os = "linux")]
use super::kept::Kept;
use super::listeners::{Adopted, Opened, Threads, Wanted, close};
use super::{Applied, Failure};
use crate::config::{self, Arrival, Change, Key, Protocol, Redirect, Route, Sockets};
use crate::counters::PoolCounters;
use crate::error::ProxyError;
use crate::pool::Pool;
use crate::table::{Frontend, Table, Target};
use crate::tcp::serve::Entry;

#[derive(Debug)]
pub struct Control {
    pub threads: Threads,
    table: Arc<Table>,
    pools: HashMap<Key, Known>,
    frontends: HashMap<Key, Served>,
    redirects: HashMap<Key, (Redirect, Opened)>,
    /// The only frontend of each arrival: two sockets on one address would share its clients at random.
    arrivals: HashMap<Place, Key>,
    pub adopted: Adopted,
    #[cfg(target_os = "linux")]
    pub kept: Kept,
}

/// A pool that was configured, or that a route names.
#[derive(Debug)]
struct Known {
    pool: Arc<Pool>,
    is_configured: bool,
}

#[derive(Debug)]
struct Served {
    config: config::Frontend,
    cell: Arc<Frontend>,
    /// `None` behind redirect listeners.
    opened: Option<Opened>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Place {
    Socket(Protocol, SocketAddr),
    Original(SocketAddr),
}

impl Control {
    pub fn new(threads: Threads) -> Control {
        Control {
            threads,
            table: Arc::new(Table::new()),
            pools: HashMap::new(),
            frontends: HashMap::new(),
            redirects: HashMap::new(),
            arrivals: HashMap::new(),
            adopted: Adopted::default(),
            #[cfg(target_os = "linux")]
            kept: Kept::default(),
        }
    }

    pub fn apply(&mut self, change: Change) -> Applied {
        let Change { pools, frontends, redirects } = change;
        let (changed, removed): (BTreeMap<_, _>, BTreeMap<_, _>) =
            pools.into_iter().partition(|(_, pool)| pool.is_some());
        for (key, pool) in changed {
            self.set_pool(key, pool);
        }
        let named: Vec<Key> = frontends.keys().flat_map(|key| self.pools_of(key)).collect();
        self.close_what_moves(&frontends, &redirects);
        let mut applied = Applied::default();
        for (key, frontend) in frontends.into_iter().filter_map(|(key, it)| Some((key, it?))) {
            let result = self.set_frontend(key.clone(), frontend);
            applied.note(key, result);
        }
        for (key, redirect) in redirects.into_iter().filter_map(|(key, it)| Some((key, it?))) {
            let result = self.set_redirect(key.clone(), redirect);
            applied.note(key, result);
        }
        for (key, pool) in removed {
            self.set_pool(key, pool);
        }
        named.iter().for_each(|key| self.forget_unused(key));
        applied
    }

    pub fn counters(&self) -> BTreeMap<Key, PoolCounters> {
        let configured = self.pools.iter().filter(|(_, it)| it.is_configured);
        configured.map(|(key, it)| (key.clone(), it.pool.counters())).collect()
    }

    /// Closes all listening sockets. Pools and connections stay.
    pub fn close_all(&mut self) {
        let of_frontends = self.frontends.values_mut().filter_map(|it| it.opened.take());
        let of_redirects = self.redirects.drain().map(|(_, (_, opened))| opened);
        close(of_frontends.chain(of_redirects).collect());
    }

    #[cfg(target_os = "linux")]
    pub fn opened(&self) -> impl Iterator<Item = &Opened> {
        let of_frontends = self.frontends.values().filter_map(|it| it.opened.as_ref());
        of_frontends.chain(self.redirects.values().map(|(_, opened)| opened))
    }

    fn set_pool(&mut self, key: Key, pool: Option<config::Pool>) {
        let known = self.known(&key);
        known.is_configured = pool.is_some();
        known.pool.change(pool.unwrap_or_default());
        self.forget_unused(&key);
    }

    fn known(&mut self, key: &Key) -> &mut Known {
        self.pools.entry(key.clone()).or_insert_with(|| {
            let pool = Arc::new(Pool::new(key.clone()));
            Known { pool, is_configured: false }
        })
    }

    /// Removes a pool that is not configured and that neither a route nor a connection refers to. If a connection still
    /// refers to the pool, the pool is removed when its key is used again.
    fn forget_unused(&mut self, key: &Key) {
        let is_unused = |it: &Known| !it.is_configured && Arc::strong_count(&it.pool) == 1;
        if self.pools.get(key).is_some_and(is_unused) {
            self.pools.remove(key);
        }
    }

    fn pools_of(&self, frontend: &Key) -> Vec<Key> {
        let routes = self.frontends.get(frontend).map(|it| it.config.routes.as_slice());
        routes.unwrap_or_default().iter().filter_map(|it| it.pool.clone()).collect()
    }

    /// Closes the listeners that the change removes or moves to another address. They are closed together: this costs
    /// one wait, and frontends can exchange their addresses.
    fn close_what_moves(
        &mut self,
        frontends: &BTreeMap<Key, Option<config::Frontend>>,
        redirects: &BTreeMap<Key, Option<Redirect>>,
    ) {
        let mut closed = Vec::new();
        for (key, change) in frontends {
            let stays = |it: &Served| {
                let opened_or_redirected =
                    it.opened.is_some() || matches!(it.config.arrival, Arrival::OriginalDestination(_));
                opened_or_redirected
                    && change.as_ref().is_some_and(|change| change.arrival == it.config.arrival)
            };
            if self.frontends.get(key).is_none_or(stays) {
                continue;
            }
            if let Some(gone) = self.frontends.remove(key) {
                if let Arrival::OriginalDestination(address) = gone.config.arrival {
                    self.table.remove(&address);
                }
                self.arrivals.remove(&place(gone.config.arrival));
                closed.extend(gone.opened);
            }
        }
        for (key, change) in redirects {
            if self.redirects.get(key).is_some_and(|(it, _)| change.as_ref() != Some(it)) {
                closed.extend(self.redirects.remove(key).map(|(_, opened)| opened));
            }
        }
        #[cfg(target_os = "linux")]
        closed.iter().for_each(|it| self.kept.forget(it));
        close(closed);
    }

    fn set_frontend(&mut self, key: Key, config: config::Frontend) -> Result<Option<SocketAddr>, ProxyError> {
        let targets = self.targets(&config.routes);
        if let Some(served) = self.frontends.get_mut(&key) {
            served.cell.change(targets);
            served.config = config;
            return Ok(None);
        }
        let at = place(config.arrival);
        self.check_free(at)?;
        let cell = Arc::new(Frontend::new(targets));
        let opened = match config.arrival {
            Arrival::Socket { protocol, address, freebind, sockets, class } => {
                let wanted = Wanted { protocol, address, freebind, sockets, class };
                let entry = Entry::Frontend(cell.clone(), class);
                let opened = self.threads.listen(&wanted, &entry, Some(&cell), &mut self.adopted);
                Some(opened.map_err(|error| ProxyError::new("listen on", address, error))?)
            }
            Arrival::OriginalDestination(address) => {
                self.table.insert(address, cell.clone());
                None
            }
        };
        let bound = opened.as_ref().map(|it| it.address);
        if !at.is_chosen_by_kernel() {
            self.arrivals.insert(at, key.clone());
        }
        #[cfg(target_os = "linux")]
        opened.iter().for_each(|it| self.kept.keep(it));
        self.frontends.insert(key, Served { config, cell, opened });
        Ok(bound)
    }

    fn set_redirect(&mut self, key: Key, redirect: Redirect) -> Result<Option<SocketAddr>, ProxyError> {
        if self.redirects.contains_key(&key) {
            return Ok(None);
        }
        let Redirect { address, class } = redirect;
        let sockets = Sockets::PerThread;
        // The address may be the host's own only because of a local route. IPv6 refuses to bind such an address without
        // freebind.
        let freebind = cfg!(target_os = "linux");
        let wanted = Wanted { protocol: Protocol::Tcp, address, freebind, sockets, class };
        let entry = Entry::Redirect(self.table.clone(), class);
        let opened = self.threads.listen(&wanted, &entry, None, &mut self.adopted);
        let opened = opened.map_err(|error| ProxyError::new("listen on", address, error))?;
        let bound = opened.address;
        #[cfg(target_os = "linux")]
        self.kept.keep(&opened);
        self.redirects.insert(key, (redirect, opened));
        Ok(Some(bound))
    }

    fn targets(&mut self, routes: &[Route]) -> Vec<Target> {
        let target = |route: &Route| {
            let pool = route.pool.as_ref().map(|key| self.known(key).pool.clone());
            Target { route: route.clone(), pool }
        };
        routes.iter().map(target).collect()
    }

    fn check_free(&self, at: Place) -> Result<(), ProxyError> {
        let Some(other) = self.arrivals.get(&at) else { return Ok(()) };
        let error = io::Error::new(io::ErrorKind::AddrInUse, format!("it belongs to frontend {other}"));
        Err(ProxyError::new("listen on", at.address(), error))
    }
}

impl Place {
    fn address(&self) -> SocketAddr {
        match self {
            Place::Socket(_, address) | Place::Original(address) => *address,
        }
    }

    fn is_chosen_by_kernel(&self) -> bool {
        matches!(self, Place::Socket(_, address) if address.port() == 0)
    }
}

fn place(arrival: Arrival) -> Place {
    match arrival {
        Arrival::Socket { protocol, address, .. } => Place::Socket(protocol, address),
        Arrival::OriginalDestination(address) => Place::Original(address),
    }
}

impl Applied {
    fn note(&mut self, key: Key, result: Result<Option<SocketAddr>, ProxyError>) {
        match result {
            Ok(Some(address)) => self.bound.push((key, address)),
            Ok(None) => {}
            Err(error) => self.failures.push(Failure { key, error }),
        }
    }
}
