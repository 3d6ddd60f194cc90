//! Traffic of Services and endpoints, as the proxy counts it. A pool serves all frontends of a Service port, so what it counts
//! is reported for the first of them. SCTP does not meet the proxy, and a proxy sees no TCP packets: both are zero.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferroxy_core::{PortIntent, Protocol, ServiceIntent, ServiceName};
use ferroxy_dataplane::capability::traffic::{Flow, Traffic, Volume};
use ferroxy_dataplane::{Change, CountsTraffic, Failure};
use ferroxy_proxy::{EndpointCounters, Key};

use super::engine::Meter;
use crate::fragment::{pool_key, unspecified};
use crate::ledger::Ledger;
use crate::ports::{CLUSTER, LOCAL};

/// Reads on a thread of the metrics server, while the dataplane changes what the pools are for.
#[derive(Debug, Clone)]
pub(super) struct Reader {
    meter: Meter,
    pools: Arc<Mutex<Pools>>,
}

/// What the pools are for, while traffic is counted.
#[derive(Debug, Default)]
struct Pools {
    frontends: BTreeMap<Key, (Protocol, SocketAddr)>,
    of_services: BTreeMap<ServiceName, Vec<Key>>,
}

impl Reader {
    pub(super) fn new(meter: &Meter) -> Reader {
        Reader { meter: meter.clone(), pools: Arc::default() }
    }

    /// These Services change.
    pub(super) fn follow(&self, changes: &[Change], ledger: &Ledger) {
        let mut pools = self.pools();
        for (name, service) in changes {
            pools.set(name, service.as_deref().map(|it| ledger.in_families(it)).as_ref());
        }
    }

    /// Counting may have been switched on or off.
    pub(super) fn follow_all(&self, ledger: &Ledger) {
        let in_force = ledger.acknowledged();
        let mut pools = Pools::default();
        if in_force.node().count_traffic {
            for (name, service) in in_force.services() {
                pools.set(name, Some(&ledger.in_families(&service)));
            }
        }
        *self.pools() = pools;
    }

    fn pools(&self) -> MutexGuard<'_, Pools> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pools {
    fn set(&mut self, name: &ServiceName, service: Option<&ServiceIntent>) {
        for key in self.of_services.remove(name).unwrap_or_default() {
            self.frontends.remove(&key);
        }
        let Some(service) = service else { return };
        for port in &service.ports {
            let Some(frontend) = first_frontend(port) else { continue };
            for class in [CLUSTER, LOCAL] {
                let key = pool_key(service, port, class);
                self.frontends.insert(key.clone(), (port.protocol, frontend));
                self.of_services.entry(name.clone()).or_default().push(key);
            }
        }
    }
}

fn first_frontend(port: &PortIntent) -> Option<SocketAddr> {
    let first = port.frontends.first()?;
    Some(SocketAddr::new(first.address.unwrap_or_else(|| unspecified(port.family)), first.port))
}

impl CountsTraffic for Reader {
    fn read(&mut self) -> Result<HashMap<Flow, Traffic>, Failure> {
        let counters = self.meter.counters();
        let pools = self.pools();
        let mut flows: HashMap<Flow, Traffic> = HashMap::new();
        for (key, pool) in &counters.pools {
            let Some((protocol, frontend)) = pools.frontends.get(key) else { continue };
            for (endpoint, counted) in &pool.endpoints {
                let flow = Flow { protocol: *protocol, frontend: *frontend, endpoint: *endpoint };
                let news = traffic(counted);
                if news != Traffic::default() {
                    add(flows.entry(flow).or_default(), news);
                }
            }
        }
        Ok(flows)
    }

    /// Pools are counted anyway.
    fn limit(&self) -> u64 {
        u64::MAX
    }
}

fn traffic(counted: &EndpointCounters) -> Traffic {
    Traffic {
        connections: counted.connections + counted.all_sessions,
        at_sockets: 0,
        received: Volume { packets: counted.datagrams_in, bytes: counted.bytes_in },
        sent: Volume { packets: counted.datagrams_out, bytes: counted.bytes_out },
    }
}

/// A Service port has two pools, which share endpoints.
fn add(sum: &mut Traffic, more: Traffic) {
    sum.connections += more.connections;
    for (sum, more) in [(&mut sum.received, more.received), (&mut sum.sent, more.sent)] {
        sum.packets += more.packets;
        sum.bytes += more.bytes;
    }
}
