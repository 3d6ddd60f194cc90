//! The endpoints that probes may judge, and the verdicts: which of them are down. Only Services that request probes
//! have any.
//!
//! A verdict belongs to one [`Life`] of an endpoint and ends with it: an endpoint that leaves and returns, turns
//! unready and ready again, or becomes another pod starts without a verdict. A verdict about its former life is
//! ignored.

use std::collections::BTreeMap;

use super::{Facts, Service, Slice};
use crate::event;
use crate::name::ServiceName;
use crate::probe::{Down, Life, Probe, Target};

/// The most endpoints of a Service that are probed. Further endpoints are not probed and stay in use.
pub(crate) const MOST_PROBED: usize = 1_000;

#[derive(Debug, Default)]
pub(super) struct Lives {
    of_services: BTreeMap<ServiceName, Probed>,
    /// The number of the latest life.
    last: u64,
}

/// The probed endpoints of one Service.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Probed {
    endpoints: BTreeMap<Target, Watched>,
    /// The Service has more endpoints to probe than [`MOST_PROBED`].
    pub has_more: bool,
}

#[derive(Debug, Clone, PartialEq)]
struct Watched {
    life: Life,
    pod: Box<str>,
    down: Option<Down>,
}

impl Lives {
    /// Sets the current endpoints of a Service. An endpoint that stays with the same pod keeps its life.
    fn replace(&mut self, service: &ServiceName, found: Found) {
        let mut before = self.of_services.remove(service).unwrap_or_default();
        let mut endpoints = BTreeMap::new();
        for (target, pod) in found.pods {
            let same = before.endpoints.remove(&target).filter(|watched| *watched.pod == *pod);
            let watched = same.unwrap_or_else(|| {
                self.last += 1;
                Watched { life: Life(self.last), pod: pod.into(), down: None }
            });
            endpoints.insert(target, watched);
        }
        self.of_services.insert(service.clone(), Probed { endpoints, has_more: found.has_more });
    }

    /// Stores a verdict about a current life. Returns whether this changes anything.
    pub(super) fn judge(&mut self, verdict: &event::Verdict) -> bool {
        let probed = self.of_services.get_mut(&verdict.service);
        let watched = probed.and_then(|probed| probed.endpoints.get_mut(&verdict.target));
        let is_meant = |watched: &&mut Watched| verdict.life.is_none_or(|life| life == watched.life);
        let Some(watched) = watched.filter(is_meant) else { return false };
        // While the endpoint stays down, the time and the first reason stay as they are.
        let is_change = watched.down.is_some() != verdict.down.is_some();
        if is_change {
            watched.down = verdict.down;
        }
        is_change
    }
}

impl Probed {
    pub fn life(&self, target: &Target) -> Option<Life> {
        self.endpoints.get(target).map(|watched| watched.life)
    }

    pub fn down(&self, target: &Target) -> Option<&Down> {
        self.endpoints.get(target)?.down.as_ref()
    }

    /// The endpoints that are down, each with the name of its pod (empty if unknown).
    pub fn all_down(&self) -> impl Iterator<Item = (&Target, &str, &Down)> {
        self.endpoints
            .iter()
            .filter_map(|(target, watched)| Some((target, &*watched.pod, watched.down.as_ref()?)))
    }

    /// The name of the pod; empty if unknown.
    pub fn pod(&self, target: &Target) -> &str {
        self.endpoints.get(target).map_or("", |watched| &watched.pod)
    }
}

impl Facts {
    /// The endpoints of a Service that probes may judge; `None` if it requests no probes.
    pub fn probed(&self, name: &ServiceName) -> Option<&Probed> {
        self.lives.of_services.get(name)
    }

    /// The Services that request probes.
    pub fn probed_services(&self) -> impl Iterator<Item = &ServiceName> {
        self.lives.of_services.keys()
    }

    /// To be called when a Service has changed. `before` is the probe that it requested until then.
    pub(super) fn follow_probe(&mut self, name: &ServiceName, before: Option<&Probe>) {
        if self.services.get(name).and_then(|service| service.probe()) != before {
            // The verdicts are results of another probe.
            self.lives.of_services.remove(name);
        }
        self.follow_endpoints(name);
    }

    /// To be called when the endpoints of a Service may have changed.
    pub(super) fn follow_endpoints(&mut self, name: &ServiceName) {
        // Moved out, because the call below borrows the slices.
        let mut lives = std::mem::take(&mut self.lives);
        let asking = self.services.get(name).filter(|service| service.probe().is_some());
        let service = asking.map(|service| service.unpack(name));
        match service.as_ref().and_then(|service| Some((service, service.probe.as_deref()?))) {
            Some((service, probe)) => lives.replace(name, Found::of(service, probe, self.slices_of(name))),
            None => drop(lives.of_services.remove(name)),
        }
        self.lives = lives;
    }
}

/// The endpoints to probe, as the slices list them.
#[derive(Debug, Default)]
struct Found {
    pods: BTreeMap<Target, String>,
    has_more: bool,
}

impl Found {
    /// Collects the ready endpoints that are not terminating.
    fn of<'f>(service: &Service, probe: &Probe, slices: impl Iterator<Item = Slice<'f>>) -> Found {
        let mut found = Found::default();
        for slice in slices {
            found.add(service, probe, slice);
            if found.has_more {
                break;
            }
        }
        found
    }

    fn add(&mut self, service: &Service, probe: &Probe, slice: Slice<'_>) {
        let number =
            |port: &super::ServicePort| Some((slice.port(&port.name, port.protocol)?, port.protocol));
        let ports: Vec<_> = service.ports.iter().filter_map(number).collect();
        for (index, pod) in slice.targets().enumerate() {
            let may_be_probed = |it: &super::Conditions| it.ready() && !it.terminating();
            let Some(ip) = slice.conditions(index).filter(may_be_probed).and_then(|_| slice.address(index))
            else {
                continue;
            };
            for target in ports.iter().filter_map(|(port, protocol)| probe.target(ip, *port, *protocol)) {
                if self.pods.len() == MOST_PROBED && !self.pods.contains_key(&target) {
                    self.has_more = true;
                    return;
                }
                self.pods.entry(target).or_insert_with(|| pod.clone());
            }
        }
    }
}
