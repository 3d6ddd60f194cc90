//! Traffic of Services and endpoints: sums of the dataplane's counters for the metrics page. Read on each scrape, on a
//! separate thread.
//!
//! The dataplane counts by address and may reset a counter that was unused for long; a Prometheus counter never decreases.
//! So the difference to the last reading is added to totals kept here.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ferroxy_core::{Family, ServiceName};
use ferroxy_dataplane::CountsTraffic;
use ferroxy_dataplane::capability::traffic::{Flow, Traffic, Volume};
use tracing::warn;

use super::exposition::{Exposition, Kind};
use super::frontends::ServicePort;
use super::moment::Moment;
use super::status::Status;

/// A reading younger than this is reused.
const YOUNG: Duration = Duration::from_secs(1);

/// Series of one Service port, and of one endpoint: connections; packets and bytes, received and sent.
const SERIES_OF_ONE: usize = 5;

/// Flows looked up while the lock is held once; the agent needs it as well.
const CHUNK: usize = 1024;

/// Reads and adds up, one scrape at a time.
#[derive(Debug)]
pub struct Collector {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// `None` if the dataplane cannot count.
    reader: Option<Box<dyn CountsTraffic>>,
    readings: Readings,
}

#[derive(Debug, Default)]
struct Readings {
    read_at: Option<Instant>,
    failures: u64,
    tally: Tally,
}

impl Collector {
    pub fn new(reader: Option<Box<dyn CountsTraffic>>) -> Collector {
        Collector { inner: Mutex::new(Inner { reader, readings: Readings::default() }) }
    }

    /// Reads the counters and writes the totals. Takes as long as the reading takes: do not call it on the serving thread.
    pub fn write(&self, status: &Status, page: &mut Exposition) {
        // A panic leaves numbers, which are as good as before.
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let Inner { reader, readings } = &mut *inner;
        let (Some(most_series), Some(reader)) = (status.traffic_limit(), reader) else {
            // Switched off: counting starts from zero when it is switched on again.
            *readings = Readings::default();
            return;
        };
        if readings.read_at.is_none_or(|read_at| read_at.elapsed() >= YOUNG) {
            readings.refresh(&mut **reader, status, most_series);
        }
        readings.tally.write(page, reader.limit());
        let help = "Readings of the traffic counters that failed.";
        page.single(Kind::Counter, "ferroxy_traffic_read_failures_total", help, readings.failures);
    }
}

/// The totals so far.
#[derive(Debug)]
pub struct Totals {
    /// When the counters were read.
    pub read_at: Moment,
    pub services: Vec<(ServicePort, Traffic)>,
    pub endpoints: Vec<(ServicePort, SocketAddr, Traffic)>,
}

/// For the page.
impl Collector {
    /// Reads the counters if the last reading is old. Without `of`: all Services, without their endpoints; with it: one Service
    /// with its endpoints. `None` while traffic is not counted. Takes as long as `write`.
    pub fn totals(&self, status: &Status, of: Option<&ServiceName>) -> Option<Totals> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let Inner { reader, readings } = &mut *inner;
        let (most_series, reader) = status.traffic_limit().zip(reader.as_mut())?;
        if readings.read_at.is_none_or(|read_at| read_at.elapsed() >= YOUNG) {
            readings.refresh(&mut **reader, status, most_series);
        }
        let age = readings.read_at.map_or(Duration::ZERO, |read_at| read_at.elapsed());
        let read_at = Moment::ago(age).unwrap_or_else(Moment::now);
        let Tally { services, endpoints, .. } = &readings.tally;
        let is_meant = |port: &ServicePort| of.is_none_or(|name| port.service == *name);
        let services = services.iter().filter(|(port, _)| is_meant(port));
        let endpoints = endpoints.iter().filter(|((port, _), _)| of.is_some() && is_meant(port));
        Some(Totals {
            read_at,
            services: services.map(|(port, traffic)| (port.clone(), *traffic)).collect(),
            endpoints: endpoints.map(|((port, endpoint), it)| (port.clone(), *endpoint, *it)).collect(),
        })
    }
}

impl Readings {
    fn refresh(&mut self, reader: &mut dyn CountsTraffic, status: &Status, most_series: usize) {
        match reader.read() {
            Ok(flows) => {
                let owned = owned(status, flows);
                let exists = |port: &ServicePort| status.has_frontends(&port.service);
                status.idle.read(self.tally.busy(&owned), Instant::now());
                self.tally.take(owned, exists, most_series / SERIES_OF_ONE);
            }
            Err(error) => {
                self.failures += 1;
                warn!("cannot read the traffic counters of Services: {error}");
            }
        }
        self.read_at = Some(Instant::now());
    }
}

/// A counted flow, and the Service port that it belongs to, if it is one of ours.
type Owned = (Flow, Option<ServicePort>, Traffic);

fn owned(status: &Status, flows: HashMap<Flow, Traffic>) -> Vec<Owned> {
    let mut owned: Vec<Owned> = flows.into_iter().map(|(flow, traffic)| (flow, None, traffic)).collect();
    for chunk in owned.chunks_mut(CHUNK) {
        let now = status.now();
        for (flow, owner, _) in chunk {
            *owner = now.frontends.as_ref().and_then(|frontends| frontends.owner(flow)).cloned();
        }
    }
    owned
}

/// The totals. Pure.
#[derive(Debug, Default)]
struct Tally {
    /// The counters of the last reading.
    flows: HashMap<Flow, Traffic>,
    services: BTreeMap<ServicePort, Traffic>,
    endpoints: BTreeMap<(ServicePort, SocketAddr), Traffic>,
    /// How many Service ports and endpoints are beyond the limit.
    left_out: usize,
}

impl Tally {
    /// Adds the difference to the last reading. Service ports and endpoints are limited, Services come first; an
    /// endpoint is reported for as long as the kernel knows it.
    fn take(&mut self, flows: Vec<Owned>, exists: impl Fn(&ServicePort) -> bool, most: usize) {
        let endpoint = |(flow, owner, _): &Owned| owner.clone().map(|owner| (owner, flow.endpoint));
        let used: BTreeSet<_> = flows.iter().filter_map(endpoint).collect();
        self.services.retain(|port, _| exists(port));
        self.endpoints.retain(|key, _| used.contains(key));
        let mut left_out = BTreeSet::new();
        for (port, _) in &used {
            let full = self.services.len() + self.endpoints.len() >= most;
            if !self.services.contains_key(port) {
                if full {
                    left_out.insert((port, None));
                } else {
                    self.services.insert(port.clone(), Traffic::default());
                }
            }
        }
        for key in &used {
            let full = self.services.len() + self.endpoints.len() >= most;
            if !self.endpoints.contains_key(key) {
                if full {
                    left_out.insert((&key.0, Some(key.1)));
                } else {
                    self.endpoints.insert(key.clone(), Traffic::default());
                }
            }
        }
        self.left_out = left_out.len();
        self.add(flows);
    }

    /// The Services with traffic since the last reading.
    fn busy(&self, flows: &[Owned]) -> BTreeSet<ServiceName> {
        let is_busy = |(flow, _, traffic): &&Owned| self.flows.get(flow) != Some(traffic);
        flows
            .iter()
            .filter(is_busy)
            .filter_map(|(_, owner, _)| Some(owner.as_ref()?.service.clone()))
            .collect()
    }

    fn add(&mut self, flows: Vec<Owned>) {
        let before = std::mem::take(&mut self.flows);
        for (flow, owner, traffic) in flows {
            if let Some(owner) = owner {
                let news = since(before.get(&flow), traffic);
                if let Some(total) = self.services.get_mut(&owner) {
                    add(total, news);
                }
                if let Some(total) = self.endpoints.get_mut(&(owner, flow.endpoint)) {
                    add(total, news);
                }
            }
            self.flows.insert(flow, traffic);
        }
    }

    fn write(&self, page: &mut Exposition, limit: u64) {
        let services: Vec<Row<'_>> =
            self.services.iter().map(|(port, traffic)| Row { port, endpoint: None, traffic }).collect();
        write_rows(page, "ferroxy_service", "of a Service port", &services);
        let endpoints: Vec<Row<'_>> = self
            .endpoints
            .iter()
            .map(|((port, endpoint), traffic)| Row { port, endpoint: Some(endpoint.to_string()), traffic })
            .collect();
        write_rows(page, "ferroxy_endpoint", "of an endpoint of a Service port", &endpoints);
        let name = "ferroxy_traffic_left_out_series";
        let help =
            "Series of Services and endpoints that are not exported because of --traffic-metrics-max-series.";
        page.single(Kind::Gauge, name, help, self.left_out * SERIES_OF_ONE);
        let name = "ferroxy_traffic_flows";
        page.begin(Kind::Gauge, name, "Pairs of frontend and endpoint that are counted.");
        for family in Family::ALL {
            let number = self.flows.keys().filter(|flow| Family::of(flow.endpoint.ip()) == family).count();
            page.sample(name, &[("ip_family", &family.to_string())], number);
        }
        let help = "Pairs of frontend and endpoint that can be counted, in each family.";
        page.single(Kind::Gauge, "ferroxy_traffic_flows_limit", help, limit);
    }
}

struct Row<'a> {
    port: &'a ServicePort,
    endpoint: Option<String>,
    traffic: &'a Traffic,
}

impl Row<'_> {
    fn sample(&self, page: &mut Exposition, name: &str, direction: Option<&str>, value: u64) {
        let mut labels = vec![
            ("namespace", self.port.service.namespace()),
            ("service", self.port.service.name()),
            ("port", &*self.port.port),
        ];
        labels.extend(self.endpoint.as_deref().map(|endpoint| ("endpoint", endpoint)));
        labels.extend(direction.map(|direction| ("direction", direction)));
        page.sample(name, &labels, value);
    }
}

fn write_rows(page: &mut Exposition, prefix: &str, whose: &str, rows: &[Row<'_>]) {
    let name = format!("{prefix}_connections_total");
    page.begin(Kind::Counter, &name, &format!("Connections {whose}."));
    for row in rows {
        row.sample(page, &name, None, row.traffic.connections + row.traffic.at_sockets);
    }
    let help = format!("Packets {whose}: received from clients, and sent to them.");
    write_both_ways(page, &format!("{prefix}_packets_total"), &help, rows, |counter| counter.packets);
    let help = format!("Bytes {whose}, IP headers included: received from clients, and sent to them.");
    write_both_ways(page, &format!("{prefix}_bytes_total"), &help, rows, |counter| counter.bytes);
}

fn write_both_ways(
    page: &mut Exposition,
    name: &str,
    help: &str,
    rows: &[Row<'_>],
    of: impl Fn(&Volume) -> u64,
) {
    page.begin(Kind::Counter, name, help);
    for row in rows {
        row.sample(page, name, Some("received"), of(&row.traffic.received));
        row.sample(page, name, Some("sent"), of(&row.traffic.sent));
    }
}

/// The difference between two readings. A counter that is smaller than before was forgotten and counts from zero again.
fn since(before: Option<&Traffic>, now: Traffic) -> Traffic {
    let Some(before) = before else { return now };
    let number = |before: u64, now: u64| now.checked_sub(before).unwrap_or(now);
    let counter = |before: Volume, now: Volume| Volume {
        packets: number(before.packets, now.packets),
        bytes: number(before.bytes, now.bytes),
    };
    Traffic {
        connections: number(before.connections, now.connections),
        at_sockets: number(before.at_sockets, now.at_sockets),
        received: counter(before.received, now.received),
        sent: counter(before.sent, now.sent),
    }
}

fn add(total: &mut Traffic, news: Traffic) {
    let add = |total: &mut Volume, news: Volume| {
        total.packets += news.packets;
        total.bytes += news.bytes;
    };
    total.connections += news.connections;
    total.at_sockets += news.at_sockets;
    add(&mut total.received, news.received);
    add(&mut total.sent, news.sent);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::frontends::tests::flow;
    use ferroxy_core::ServiceName;

    fn port(name: &str) -> ServicePort {
        ServicePort { service: ServiceName::new("default", name), port: "http".into() }
    }

    fn traffic(connections: u64) -> Traffic {
        let counter = |packets| Volume { packets, bytes: packets * 100 };
        let (received, sent) = (counter(connections * 3), counter(connections * 2));
        Traffic { connections, at_sockets: 0, received, sent }
    }

    /// A flow of a Service to one of its endpoints.
    fn counted(name: &str, frontend: u8, endpoint: u8, connections: u64) -> Owned {
        let flow = flow(&format!("10.96.0.{frontend}:80"), &format!("10.244.1.{endpoint}:8080"));
        (flow, Some(port(name)), traffic(connections))
    }

    fn service(tally: &Tally, name: &str) -> Option<u64> {
        tally.services.get(&port(name)).map(|traffic| traffic.connections)
    }

    #[test]
    fn totals_never_go_back() {
        let mut tally = Tally::default();
        let all = |_: &ServicePort| true;
        tally.take(vec![counted("web", 1, 5, 10), counted("web", 1, 6, 4)], all, 100);
        assert_eq!((service(&tally, "web"), tally.endpoints.len()), (Some(14), 2));
        tally.take(vec![counted("web", 1, 5, 12), counted("web", 1, 6, 4)], all, 100);
        assert_eq!(service(&tally, "web"), Some(16));
        // The second flow was not used for an hour; the first was forgotten and used again.
        tally.take(vec![counted("web", 1, 5, 1)], all, 100);
        assert_eq!((service(&tally, "web"), tally.endpoints.len()), (Some(17), 1));
        let total = tally.services[&port("web")];
        assert_eq!((total.received.packets, total.sent.bytes), (51, 3400));
        tally.take(Vec::new(), all, 100);
        assert_eq!((service(&tally, "web"), tally.endpoints.len()), (Some(17), 0));
        tally.take(Vec::new(), |_| false, 100);
        assert_eq!(service(&tally, "web"), None, "the Service is gone");
    }

    /// Each of the two counters may be reset on its own.
    #[test]
    fn connections_at_sockets_are_added() {
        let mut tally = Tally::default();
        let both = |packets, at_sockets| {
            let (flow, owner, traffic) = counted("web", 1, 5, packets);
            vec![(flow, owner, Traffic { at_sockets, ..traffic })]
        };
        for (packets, at_sockets, expected) in [(10, 5, 15), (12, 6, 18), (0, 7, 19), (1, 1, 21)] {
            tally.take(both(packets, at_sockets), |_| true, 100);
            let mut page = Exposition::default();
            tally.write(&mut page, 65_536);
            let line = format!(
                "ferroxy_service_connections_total{{namespace=\"default\",service=\"web\",port=\"http\"}} {expected}\n"
            );
            let text = page.finish();
            assert!(text.contains(&line), "{text}");
        }
    }

    #[test]
    fn frontends_of_one_service_are_added_up() {
        let mut tally = Tally::default();
        tally.take(vec![counted("web", 1, 5, 10), counted("web", 2, 5, 3)], |_| true, 100);
        assert_eq!((service(&tally, "web"), tally.endpoints.len()), (Some(13), 1));
    }

    #[test]
    fn flows_of_others_are_left_out() {
        let mut tally = Tally::default();
        let (flow, _, traffic) = counted("web", 1, 5, 10);
        tally.take(vec![(flow, None, traffic)], |_| true, 100);
        assert!(tally.services.is_empty() && tally.endpoints.is_empty() && tally.left_out == 0);
        // Traffic that was counted before the flow became ours belongs to another program.
        tally.take(vec![counted("web", 1, 5, 11)], |_| true, 100);
        assert_eq!(service(&tally, "web"), Some(1));
    }

    #[test]
    fn the_number_of_series_is_bounded_and_services_come_first() {
        let mut tally = Tally::default();
        let flows = || vec![counted("a", 1, 5, 1), counted("a", 1, 6, 1), counted("b", 2, 7, 1)];
        tally.take(flows(), |_| true, 3);
        assert_eq!((tally.services.len(), tally.endpoints.len(), tally.left_out), (2, 1, 2));
        assert_eq!((service(&tally, "a"), service(&tally, "b")), (Some(2), Some(1)));
        let mut page = Exposition::default();
        tally.write(&mut page, 65_536);
        let text = page.finish();
        let shown =
            |line: &&str| line.starts_with("ferroxy_service_") || line.starts_with("ferroxy_endpoint_");
        assert_eq!(text.lines().filter(shown).count(), 3 * SERIES_OF_ONE);
        assert!(text.contains("\nferroxy_traffic_left_out_series 10\n"), "{text}");
        tally.take(vec![counted("b", 2, 7, 1)], |port| port.service.name() == "b", 3);
        assert_eq!((tally.services.len(), tally.endpoints.len(), tally.left_out), (1, 1, 0));
    }
}
