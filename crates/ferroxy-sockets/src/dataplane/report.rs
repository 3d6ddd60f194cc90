//! The report on translated sockets, for `/statusz`, metrics and `explain`. Written by the dataplane, read by other threads.

use std::sync::{Arc, Mutex, MutexGuard};

use ferroxy_bpf::kernel::Map;
use ferroxy_dataplane::{ClientReport, SocketReport, TranslatesSockets};

use super::generation::Written;
use crate::entry::Clients;
use crate::program::{COUNTS_SIZE, count_offset};

/// Shared between the dataplane and its readers.
#[derive(Debug, Clone, Default)]
pub struct Report(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
pub struct Known {
    pub asked: Clients,
    /// Why packet rules translate the connections of these clients.
    pub host: Option<String>,
    pub pods: Option<String>,
    pub frontends: u64,
    pub endpoints: u64,
    pub left_out: Vec<(String, String)>,
    pub counts: Option<Arc<Map>>,
    /// Counts of maps that were replaced.
    pub counted_before: [u64; 2],
    /// Connections of each frontend and endpoint.
    pub flows: Option<Arc<Map>>,
}

impl Report {
    pub fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Known {
    /// The same reason for all clients.
    pub fn inactive(&mut self, reason: &str) {
        (self.host, self.pods) = (Some(reason.to_owned()), Some(reason.to_owned()));
        (self.frontends, self.endpoints) = (0, 0);
    }

    /// The clients whose connections are translated.
    pub fn active(&self) -> Clients {
        let host = if self.host.is_none() { Clients::HOST } else { Clients::NONE };
        let pods = if self.pods.is_none() { Clients::PODS } else { Clients::NONE };
        host.with(pods).and(self.asked)
    }

    /// Switches to other maps. These count from zero, so the counts of the old maps are added up.
    pub fn replace_written(&mut self, written: &Written) {
        self.flows = Some(Arc::clone(&written.flows));
        let number = |map: &Map| map.id().ok();
        // After a repair it may be the same map, opened again.
        if self.counts.as_ref().is_some_and(|counts| number(counts) == number(&written.counts)) {
            return;
        }
        for (before, clients) in self.counted_before.iter_mut().zip([Clients::HOST, Clients::PODS]) {
            *before += self.counts.as_ref().map_or(0, |map| counted(map, clients));
        }
        self.counts = Some(Arc::clone(&written.counts));
    }

    fn connections(&self, clients: Clients) -> u64 {
        let now = self.counts.as_ref().map_or(0, |map| counted(map, clients));
        self.counted_before[usize::from(clients != Clients::HOST)] + now
    }
}

/// The sum over all processors; 0 for a map that cannot be read.
fn counted(map: &Map, clients: Clients) -> u64 {
    let values = map.lookup(&[0; 4]).ok().flatten().unwrap_or_default();
    let of_clients =
        values.chunks_exact(COUNTS_SIZE).filter_map(|it| it.get(count_offset(clients) as usize..));
    of_clients.map(|it| sum(&it[..8])).fold(0, u64::wrapping_add)
}

/// The sum of the numbers of all processors.
pub fn sum(values: &[u8]) -> u64 {
    let numbers = values.chunks_exact(8).filter_map(|value| value.try_into().ok()).map(u64::from_ne_bytes);
    numbers.fold(0, u64::wrapping_add)
}

impl TranslatesSockets for Report {
    fn read(&mut self) -> SocketReport {
        let known = self.lock();
        let all = [(Clients::HOST, "host", &known.host), (Clients::PODS, "pods", &known.pods)];
        let asked = all.into_iter().filter(|(clients, ..)| known.asked.contains(*clients));
        let clients = asked.map(|(clients, name, inactive)| ClientReport {
            clients: name,
            inactive: inactive.clone(),
            connections: known.connections(clients),
        });
        SocketReport {
            clients: clients.collect(),
            frontends: known.frontends,
            endpoints: known.endpoints,
            left_out: known.left_out.clone(),
        }
    }
}
