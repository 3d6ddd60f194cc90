//! Changes of Services and EndpointSlices: how many the source reported, and how many wait to be programmed. A change
//! waits for each Service that it touches, until that Service is programmed; no other success clears it.

use std::collections::{BTreeSet, HashMap};

use ferroxy_core::{Event, ObjectKind, ServiceName};

#[derive(Debug, Default)]
pub struct Changes {
    pub services: Tally,
    pub slices: Tally,
    /// How many changes of each kind wait for a Service. Bounded by the number of Services.
    waiting: HashMap<ServiceName, [u64; 2]>,
    /// Until the first sync, changes are only counted: it programs all of them.
    started: bool,
}

/// Changes of one kind of object.
#[derive(Debug, Default)]
pub struct Tally {
    pub total: u64,
    pub pending: u64,
}

/// The kind of object that an event changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    Service,
    Slice,
    Other,
}

impl ChangeKind {
    pub fn of(event: &Event) -> ChangeKind {
        match event {
            Event::Service(_) | Event::ServiceGone { .. } => ChangeKind::Service,
            Event::Slice(_) | Event::SliceGone { .. } => ChangeKind::Slice,
            Event::Listed { kind: ObjectKind::Service, .. } => ChangeKind::Service,
            Event::Listed { kind: ObjectKind::EndpointSlice, .. } => ChangeKind::Slice,
            Event::Node(_) | Event::NodeGone { .. } | Event::Verdict(_) | Event::Listed { .. } => {
                ChangeKind::Other
            }
            Event::ServiceCidr(_) | Event::ServiceCidrGone { .. } | Event::HostAddresses(_) => {
                ChangeKind::Other
            }
        }
    }
}

/// The changes in one batch of events.
#[derive(Debug, Default)]
pub struct Reported {
    services: u64,
    slices: u64,
    touched: Vec<(ServiceName, ChangeKind)>,
}

impl Reported {
    /// One event, and the Services that have to be programmed because of it.
    pub fn add(&mut self, kind: ChangeKind, touched: &BTreeSet<ServiceName>) {
        match kind {
            ChangeKind::Service => self.services += 1,
            ChangeKind::Slice => self.slices += 1,
            ChangeKind::Other => return,
        }
        self.touched.extend(touched.iter().map(|name| (name.clone(), kind)));
    }
}

impl Changes {
    pub fn reported(&mut self, reported: Reported) {
        self.services.total += reported.services;
        self.slices.total += reported.slices;
        if !self.started {
            self.services.pending += reported.services;
            self.slices.pending += reported.slices;
            return;
        }
        for (name, kind) in reported.touched {
            self.wait(name, kind);
        }
    }

    /// The numbers of objects that are known before the first sync. They include the ones that `reported` counted.
    pub fn known(&mut self, services: u64, slices: u64) {
        self.services.total = self.services.total.max(services);
        self.slices.total = self.slices.total.max(slices);
        self.services.pending = self.services.pending.max(services);
        self.slices.pending = self.slices.pending.max(slices);
    }

    /// The present version of this Service is in the kernel.
    pub fn programmed(&mut self, name: &ServiceName) {
        if let Some([services, slices]) = self.waiting.remove(name) {
            self.services.pending -= services;
            self.slices.pending -= slices;
        }
    }

    /// The first sync is done. It covers everything but the Services that the kernel refused.
    pub fn first_sync<'a>(&mut self, refused: impl IntoIterator<Item = &'a ServiceName>) {
        self.started = true;
        self.waiting = HashMap::new();
        (self.services.pending, self.slices.pending) = (0, 0);
        for name in refused {
            self.wait(name.clone(), ChangeKind::Service);
        }
    }

    fn wait(&mut self, name: ServiceName, kind: ChangeKind) {
        let [services, slices] = self.waiting.entry(name).or_default();
        let (tally, count) = match kind {
            ChangeKind::Service => (&mut self.services, services),
            ChangeKind::Slice => (&mut self.slices, slices),
            ChangeKind::Other => return,
        };
        *count += 1;
        tally.pending += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> ServiceName {
        ServiceName::new("default", name)
    }

    fn reported(changes: &[(ChangeKind, &[&str])]) -> Reported {
        let mut reported = Reported::default();
        for (kind, names) in changes {
            reported.add(*kind, &names.iter().map(|it| name(it)).collect());
        }
        reported
    }

    fn pending(changes: &Changes) -> (u64, u64) {
        (changes.services.pending, changes.slices.pending)
    }

    #[test]
    fn a_change_waits_for_the_services_that_it_touches() {
        let mut changes = Changes::default();
        changes.first_sync([]);
        changes.reported(reported(&[
            (ChangeKind::Service, &["web"]),
            (ChangeKind::Slice, &["web"]),
            (ChangeKind::Slice, &["web"]),
            (ChangeKind::Slice, &["api"]),
            (ChangeKind::Other, &["dns"]),
            (ChangeKind::Slice, &[]),
        ]));
        assert_eq!((changes.services.total, changes.slices.total), (1, 4));
        assert_eq!(pending(&changes), (1, 3), "nothing has to be programmed for the last two");
        changes.programmed(&name("dns"));
        assert_eq!(pending(&changes), (1, 3));
        changes.programmed(&name("web"));
        assert_eq!(pending(&changes), (0, 1));
        changes.programmed(&name("api"));
        assert_eq!(pending(&changes), (0, 0));
    }

    #[test]
    fn the_first_sync_covers_everything_but_what_the_kernel_refuses() {
        let mut changes = Changes::default();
        changes.reported(reported(&[(ChangeKind::Service, &["web"]), (ChangeKind::Slice, &["web"])]));
        assert_eq!(pending(&changes), (1, 1));
        // The same objects, counted in the facts instead of in the events.
        changes.known(1, 2);
        assert_eq!((changes.services.total, changes.slices.total), (1, 2));
        changes.first_sync([&name("web")]);
        assert_eq!(pending(&changes), (1, 0));
        changes.programmed(&name("web"));
        assert_eq!(pending(&changes), (0, 0));
    }
}
