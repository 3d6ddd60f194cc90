//! Inputs that wait in the order in which they came. Of each object only the last state waits: a new event replaces the
//! waiting event of the same object, in its place. So the first list of a source is always complete, and an object that
//! changes all the time takes no more room than any other. Of the source's reports of its problems, too, only the last
//! waits: each report contains all problems.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};

use ferroxy_core::Event;
use ferroxy_core::probe::Target;

use super::super::Input;

#[derive(Debug, Default)]
pub(super) struct Waiting {
    inputs: VecDeque<Input>,
    /// How many inputs have been taken: the number of the first waiting input.
    taken: usize,
    /// By the hash of an object's name, where its event waits: the number of the input, and the index in that input.
    places: HashMap<u64, (usize, usize)>,
    hasher: RandomState,
    /// The number of the waiting input with the problems of the source, if any.
    problems: Option<usize>,
    events: usize,
    bytes: usize,
}

impl Waiting {
    pub(super) fn len(&self) -> usize {
        self.inputs.len()
    }

    pub(super) fn events(&self) -> usize {
        self.events
    }

    /// About how much memory the events take.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn put(&mut self, input: Input) {
        match input {
            Input::Events(events) => self.put_events(events),
            Input::SourceDiagnostics(_) => {
                self.forget_problems();
                self.problems = Some(self.taken + self.inputs.len());
                self.inputs.push_back(input);
            }
            _ => self.inputs.push_back(input),
        }
    }

    pub(super) fn take(&mut self) -> Option<Input> {
        loop {
            let input = self.inputs.pop_front()?;
            if let Input::Events(events) = &input {
                self.taken_out(events);
            }
            self.taken += 1;
            if !matches!(&input, Input::Events(events) if events.is_empty()) {
                return Some(input);
            }
        }
    }

    fn taken_out(&mut self, events: &[Event]) {
        for (place, event) in events.iter().enumerate() {
            self.events -= 1;
            self.bytes -= bytes(event);
            let key = self.key(event);
            if self.places.get(&key) == Some(&(self.taken, place)) {
                self.places.remove(&key);
            }
        }
    }

    /// Only the last problems count, and they come after all events before them. Inputs behind the earlier report keep their
    /// numbers, so an empty input takes its place.
    fn forget_problems(&mut self) {
        let Some(place) = self.problems.take().and_then(|number| number.checked_sub(self.taken)) else {
            return;
        };
        if place + 1 == self.inputs.len() {
            self.inputs.pop_back();
        } else if let Some(before) = self.inputs.get_mut(place) {
            *before = Input::Events(Vec::new());
        }
    }

    fn put_events(&mut self, events: Vec<Event>) {
        let mut new = Vec::with_capacity(events.len());
        for event in events {
            self.bytes += bytes(&event);
            if matches!(event, Event::Listed { .. }) {
                // A list is about the events before it: later events must not replace earlier ones.
                self.places.clear();
                self.events += 1;
                new.push(event);
                continue;
            }
            let key = self.key(&event);
            let before = match self.places.get(&key) {
                Some(place) => waiting(&mut self.inputs, self.taken, *place, &mut new),
                None => None,
            };
            match before {
                Some(before) if object(before) == object(&event) => {
                    self.bytes -= bytes(before);
                    *before = newer(before, event);
                }
                _ => {
                    self.places.insert(key, (self.taken + self.inputs.len(), new.len()));
                    self.events += 1;
                    new.push(event);
                }
            }
        }
        if !new.is_empty() {
            self.inputs.push_back(Input::Events(new));
        }
    }

    fn key(&self, event: &Event) -> u64 {
        self.hasher.hash_one(object(event))
    }
}

/// The event at a place: in an input that waits, or in the one that is being put.
fn waiting<'e>(
    inputs: &'e mut VecDeque<Input>,
    taken: usize,
    (input, place): (usize, usize),
    new: &'e mut [Event],
) -> Option<&'e mut Event> {
    let input = input.checked_sub(taken)?;
    if input == inputs.len() {
        return new.get_mut(place);
    }
    match inputs.get_mut(input)? {
        Input::Events(events) => events.get_mut(place),
        _ => None,
    }
}

/// The last state of an object, with the time of its oldest change that waits to be programmed.
fn newer(before: &Event, mut event: Event) -> Event {
    if let (Event::Slice(before), Event::Slice(event)) = (before, &mut event) {
        event.last_change = before.last_change.or(event.last_change);
    }
    event
}

/// The object that an event is about: its kind, its namespace and its name, and the endpoint that a verdict is about.
fn object(event: &Event) -> (u8, &str, &str, Option<&Target>) {
    let (kind, namespace, name) = named(event);
    let target = if let Event::Verdict(verdict) = event { Some(&verdict.target) } else { None };
    (kind, namespace, name, target)
}

fn named(event: &Event) -> (u8, &str, &str) {
    match event {
        Event::Service(service) => (0, &service.namespace, &service.name),
        Event::ServiceGone { namespace, name } => (0, namespace, name),
        Event::Slice(slice) => (1, &slice.namespace, &slice.name),
        Event::SliceGone { namespace, name } => (1, namespace, name),
        Event::Node(node) => (2, "", &node.name),
        Event::NodeGone { name } => (2, "", name),
        Event::ServiceCidr(range) => (3, "", &range.name),
        Event::ServiceCidrGone { name } => (3, "", name),
        Event::HostAddresses(_) => (4, "", ""),
        Event::Verdict(verdict) => (5, verdict.service.namespace(), verdict.service.name()),
        Event::Listed { kind, .. } => (6, "", kind.as_str()),
    }
}

/// About how much memory an event takes.
fn bytes(event: &Event) -> usize {
    const TEXT: usize = 40;
    let parts = match event {
        Event::Slice(slice) => {
            let addresses = slice.endpoints.iter().map(|it| it.addresses.len()).sum::<usize>();
            slice.ports.len() * 2 * TEXT + slice.endpoints.len() * 6 * TEXT + addresses * TEXT
        }
        Event::Service(service) => {
            let lists = service.external_ips.len()
                + service.load_balancer_source_ranges.len()
                + service.annotations.len() * 2
                + service.ingress.len() * 2;
            service.ports.len() * 4 * TEXT + lists * TEXT
        }
        Event::Listed { names, .. } => names.len() * 2 * TEXT,
        _ => 0,
    };
    size_of::<Event>() + parts
}
