//! Faults that tests can inject, and the list of those in force. `listen`, `answer`, `body` and `watch` carry them out.

use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;

use super::kind::Kind;
use super::lock;
use super::query::Verb;

/// A fault that lasts until it is cleared, or until it has affected as many requests as [`On`] allows.
///
/// Faults of requests affect later requests, not open ones. Use [`Fault::SilentWatches`], [`Injection`]s and `Server::cut`
/// for open connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Nothing listens. Open connections stay: cut them, too, to simulate a server that is down.
    Refuse,
    /// Connections are accepted; then nothing, not even a TLS handshake.
    HangConnections,
    /// Requests are read, but not answered.
    HangRequests,
    /// This status, with an optional `Retry-After` header.
    Answer { code: u16, retry_after: Option<Duration> },
    /// The connection is cut after this many bytes of the body, possibly in the middle of a line.
    CutAfter { bytes: usize },
    /// Bodies are sent slowly in small pieces.
    Trickle { bytes: usize, every: Duration },
    /// Watches stay open but send nothing: no event, no bookmark, no end. A watch that would have sent something stays silent
    /// for ever, as if a firewall had dropped the connection: after the fault is cleared only new watches work. (Set it on
    /// [`Verb::Watch`], however the watch began.)
    SilentWatches,
    /// No periodic bookmarks.
    NoBookmarks,
    /// Streaming lists are rejected, as by servers that have disabled them.
    NoStreamingLists,
    /// Streaming lists never send the bookmark that ends the initial events.
    EndlessInitialEvents,
    /// The server has only JSON: other encodings are not acceptable (406).
    NoProtobuf,
    /// Every watch begins with this injection.
    WatchesBegin(Injection),
}

impl Fault {
    pub fn answer(code: u16) -> Fault {
        Fault::Answer { code, retry_after: None }
    }

    /// With `Retry-After`.
    pub fn answer_after(code: u16, retry_after: Duration) -> Fault {
        Fault::Answer { code, retry_after: Some(retry_after) }
    }
}

/// A single fault in the stream of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Injection {
    /// An ERROR event with a Status of this code (410: the version has expired), then the end.
    Error(u16),
    /// Bytes that are no event in any encoding. The stream continues.
    Garbage,
    /// A frame length that no frame has. The stream continues.
    AbsurdLength,
    /// Half of an event, then the regular end of the answer.
    Truncated,
    /// Half of an event, then the connection is cut.
    Cut,
    /// Repeats the last changes of the kind.
    Repeated(usize),
    /// Old states with old versions, as MODIFIED events.
    Stale(usize),
    /// These bytes.
    Raw(Bytes),
}

/// Which requests a fault affects, and how many. Default: all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct On {
    pub kind: Option<Kind>,
    pub verb: Option<Verb>,
    /// Cleared after this many requests.
    pub times: Option<usize>,
}

impl On {
    pub fn times(self, times: usize) -> On {
        On { times: Some(times), ..self }
    }

    fn covers(&self, kind: Option<Kind>, verb: Verb) -> bool {
        (self.kind.is_none() || self.kind == kind) && self.verb.is_none_or(|own| own == verb)
    }
}

impl From<Kind> for On {
    fn from(kind: Kind) -> On {
        On { kind: Some(kind), ..On::default() }
    }
}

impl From<Verb> for On {
    fn from(verb: Verb) -> On {
        On { verb: Some(verb), ..On::default() }
    }
}

impl From<(Kind, Verb)> for On {
    fn from((kind, verb): (Kind, Verb)) -> On {
        On { kind: Some(kind), verb: Some(verb), times: None }
    }
}

/// The faults in force.
#[derive(Debug, Default)]
pub(super) struct Faults {
    active: Mutex<Vec<(On, Fault)>>,
}

impl Faults {
    pub fn add(&self, on: On, fault: Fault) {
        lock(&self.active).push((on, fault));
    }

    pub fn clear(&self) {
        lock(&self.active).clear();
    }

    /// The result of `find` for the first fault that covers this request; uses up one of its requests.
    pub fn strike<T>(&self, kind: Option<Kind>, verb: Verb, find: impl Fn(&Fault) -> Option<T>) -> Option<T> {
        let mut active = lock(&self.active);
        let covering = active.iter().enumerate().filter(|(_, (on, _))| on.covers(kind, verb));
        let (index, found) = covering.filter_map(|(index, (_, fault))| Some((index, find(fault)?))).next()?;
        if let Some((On { times: Some(times), .. }, _)) = active.get_mut(index) {
            *times = times.saturating_sub(1);
            if *times == 0 {
                active.remove(index);
            }
        }
        Some(found)
    }

    pub fn strikes(&self, kind: Option<Kind>, verb: Verb, fault: &Fault) -> bool {
        self.strike(kind, verb, |active| (active == fault).then_some(())).is_some()
    }

    /// Whether a fault of connections is in force.
    pub fn has(&self, fault: &Fault) -> bool {
        lock(&self.active).iter().any(|(_, active)| active == fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_strikes_what_it_is_on_as_often_as_it_may() {
        let faults = Faults::default();
        faults.add(On::from((Kind::Service, Verb::List)).times(2), Fault::HangRequests);
        let strikes = |kind, verb| faults.strikes(kind, verb, &Fault::HangRequests);
        assert!(!strikes(Some(Kind::Node), Verb::List));
        assert!(!strikes(Some(Kind::Service), Verb::Watch));
        assert!(!strikes(None, Verb::Other));
        assert!(strikes(Some(Kind::Service), Verb::List));
        assert!(strikes(Some(Kind::Service), Verb::List));
        assert!(!strikes(Some(Kind::Service), Verb::List), "two times only");

        faults.add(On::default(), Fault::HangRequests);
        for _ in 0..3 {
            assert!(strikes(None, Verb::Other));
        }
        faults.clear();
        assert!(!strikes(None, Verb::Other));
    }
}
