//! Collects events into batches. A batch never waits for data that has not arrived yet.

use ferroxy_core::Event;

/// A batch is sent when it has this many events,
const EVENTS: usize = 1_000;
/// or this many endpoints: decoded they take about 400 bytes each.
const ENDPOINTS: usize = 10_000;

pub(super) struct Outlet {
    events: Vec<Event>,
    endpoints: usize,
    send: Box<dyn FnMut(Vec<Event>)>,
}

impl Outlet {
    pub(super) fn new(send: impl FnMut(Vec<Event>) + 'static) -> Outlet {
        Outlet { events: Vec::new(), endpoints: 0, send: Box::new(send) }
    }

    pub(super) fn tell(&mut self, event: Event) {
        if let Event::Slice(slice) = &event {
            self.endpoints += slice.endpoints.len();
        }
        self.events.push(event);
        if self.events.len() >= EVENTS || self.endpoints >= ENDPOINTS {
            self.flush();
        }
    }

    pub(super) fn flush(&mut self) {
        self.endpoints = 0;
        if !self.events.is_empty() {
            (self.send)(std::mem::take(&mut self.events));
        }
    }
}
