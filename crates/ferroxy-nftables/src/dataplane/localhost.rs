//! The proxy that serves node ports on loopback addresses: follows what is in force. It runs once a Service needs it.
//!
//! A listener that cannot be opened is no failure of its Service, whose rules are in force: it is logged and tried again.

use std::collections::{BTreeMap, BTreeSet};

use ferroxy_core::{Family, ServiceName};
use ferroxy_dataplane::Acknowledged;
use ferroxy_proxy::{Change, Engine, Key, ProxyError, Settings};
use tracing::{info, warn};

use crate::localhost::{Listener, listeners};

#[derive(Debug)]
pub(super) struct Localhost {
    families: Vec<Family>,
    engine: Option<Engine>,
    /// What is wanted. A node port may go from one Service to another, in any order.
    wanted: BTreeMap<Key, (ServiceName, Listener)>,
    of_services: BTreeMap<ServiceName, BTreeSet<Key>>,
    /// Another program has the port.
    failed: BTreeSet<Key>,
}

impl Localhost {
    pub(super) fn new(families: &[Family]) -> Localhost {
        Localhost {
            families: families.to_vec(),
            engine: None,
            wanted: BTreeMap::new(),
            of_services: BTreeMap::new(),
            failed: BTreeSet::new(),
        }
    }

    /// The node has changed, or everything.
    pub(super) fn follow_all(&mut self, in_force: &Acknowledged) {
        if !self.is_asked_for(in_force) {
            return self.close();
        }
        let known = self.of_services.keys().chain(in_force.names());
        let names: BTreeSet<ServiceName> = known.cloned().collect();
        self.follow(&names.into_iter().collect::<Vec<_>>(), in_force);
    }

    /// These Services have changed.
    pub(super) fn follow(&mut self, names: &[ServiceName], in_force: &Acknowledged) {
        if !self.is_asked_for(in_force) {
            return;
        }
        let mut change = Change::default();
        for name in names {
            for key in self.of_services.remove(name).unwrap_or_default() {
                if self.wanted.get(&key).is_some_and(|(owner, _)| owner == name) {
                    self.wanted.remove(&key);
                    change.remove_frontend(key.clone()).remove_pool(key);
                }
            }
        }
        for name in names {
            let Some(mut service) = in_force.service(name).map(std::sync::Arc::unwrap_or_clone) else {
                continue;
            };
            service.ports.retain(|port| self.families.contains(&port.family));
            for (key, listener) in listeners(&service, in_force.node()) {
                self.of_services.entry(name.clone()).or_default().insert(key.clone());
                set(&mut change, &key, &listener);
                self.wanted.insert(key, (name.clone(), listener));
            }
        }
        // What is wanted again and fails again is no news.
        self.failed.retain(|key| self.wanted.contains_key(key));
        self.apply(change);
    }

    /// Opens what could not be opened before.
    pub(super) fn retry(&mut self) {
        let mut change = Change::default();
        for (key, (_, listener)) in self.failed.iter().filter_map(|key| Some((key, self.wanted.get(key)?))) {
            set(&mut change, key, listener);
        }
        self.apply(change);
    }

    pub(super) fn close(&mut self) {
        *self = Localhost::new(&self.families);
    }

    fn is_asked_for(&self, in_force: &Acknowledged) -> bool {
        self.families.iter().any(|family| in_force.node().family(*family).listen_on_loopback)
    }

    fn apply(&mut self, change: Change) {
        if change.is_empty() {
            return;
        }
        let opened = change.frontends.iter().filter(|(_, it)| it.is_some());
        let opened: Vec<Key> = opened.map(|(key, _)| key.clone()).collect();
        let failures: BTreeMap<Key, String> = match self.engine() {
            Ok(engine) => {
                engine.apply(change).failures.into_iter().map(|it| (it.key, it.error.to_string())).collect()
            }
            Err(error) => opened.iter().map(|key| (key.clone(), error.to_string())).collect(),
        };
        for key in opened {
            match failures.get(&key) {
                // Once, not each time it is tried.
                Some(error) if self.failed.insert(key.clone()) => {
                    warn!("node port {key} is not served on the loopback address: {error}");
                }
                Some(_) => {}
                None if self.failed.remove(&key) => {
                    info!("node port {key} is served on the loopback address now")
                }
                None => {}
            }
        }
    }

    /// One thread is enough for what a host asks itself.
    fn engine(&mut self) -> Result<&Engine, ProxyError> {
        match &mut self.engine {
            Some(engine) => Ok(engine),
            none => Ok(none.insert(Engine::start(Settings { threads: Some(1), ..Settings::default() })?)),
        }
    }
}

fn set(change: &mut Change, key: &Key, listener: &Listener) {
    change.set_pool(key.clone(), listener.pool.clone()).set_frontend(key.clone(), listener.frontend.clone());
}
