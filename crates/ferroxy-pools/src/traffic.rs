//! Traffic of Services and endpoints, as the proxy counts it. A pool serves all frontends of a Service port, so its
//! counters are reported for the first frontend. SCTP bypasses the proxy, and a proxy sees no TCP packets: both are
//! zero.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferroxy_core::{PortIntent, Protocol, ServiceIntent, ServiceName};
use ferroxy_dataplane::capability::traffic::{Flow, Traffic, Volume};
use ferroxy_dataplane::{CountsTraffic, Failure};
use ferroxy_proxy::{EndpointCounters, Key};

use crate::meter::Meter;
use crate::pool::{CLUSTER, LOCAL, pool_key, unspecified};

/// The metrics server reads on its own thread, while the dataplane changes which pools serve which frontends.
#[derive(Debug, Clone)]
pub struct Reader {
    meter: Meter,
    pools: Arc<Mutex<Pools>>,
}

/// The frontends and Services of the pools. Empty while traffic is not counted.
#[derive(Debug, Default)]
struct Pools {
    frontends: BTreeMap<Key, (Protocol, SocketAddr)>,
    of_services: BTreeMap<ServiceName, Vec<Key>>,
}

impl Reader {
    pub fn new(meter: &Meter) -> Reader {
        Reader { meter: meter.clone(), pools: Arc::default() }
    }

    /// Updates these Services: each as it is served now, or `None` if it is not.
    pub fn follow<'s>(&self, changes: impl IntoIterator<Item = (&'s ServiceName, Option<ServiceIntent>)>) {
        let mut pools = self.pools();
        for (name, service) in changes {
            pools.set(name, service.as_ref());
        }
    }

    /// Replaces all Services by these: all that are served, or none while nothing is counted.
    pub fn follow_all<'s>(&self, services: impl IntoIterator<Item = (&'s ServiceName, ServiceIntent)>) {
        let mut pools = Pools::default();
        for (name, service) in services {
            pools.set(name, Some(&service));
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

    /// No limit, because the proxy counts for all pools anyway.
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
