//! What can be made to go wrong, and the list of what goes wrong just now. Carrying it out is the work of the files
//! that answer: `listen`, `answer`, `body`, `watch`.

use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;

use super::kind::Kind;
use super::lock;
use super::query::Verb;

/// A fault that lasts until it is cleared, or has struck as often as [`On`] allows.
///
/// Faults of requests strike requests that come after them, not those under way: what is open is hit by
/// [`Fault::SilentWatches`], [`Injection`]s and `Server::cut`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Nothing listens. Connections that are open stay: cut them too to play a server that is gone.
    Refuse,
    /// Connections are accepted; then nothing, not even a TLS handshake.
    HangConnections,
    /// Requests are read; not even the head of an answer comes.
    HangRequests,
    /// This status, with a `Retry-After` header if there is one to say.
    Answer { code: u16, retry_after: Option<Duration> },
    /// The connection is cut when so much of an answer's body is sent, wherever in a line that is.
    CutAfter { bytes: usize },
    /// Bodies come in drops.
    Trickle { bytes: usize, every: Duration },
    /// Watches stay open and say nothing: no event, no bookmark, no end. One that would have said something stays
    /// silent for ever, as when a firewall has forgotten the connection: only new ones are well when this is
    /// cleared. (To be set on [`Verb::Watch`], however the watch began.)
    SilentWatches,
    /// No periodic bookmarks.
    NoBookmarks,
    /// Streaming lists are refused, as servers do that have them switched off.
    NoStreamingLists,
    /// Streaming lists never send the bookmark that ends the initial events.
    EndlessInitialEvents,
    /// Every watch begins with this.
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

/// Something wrong that is put into the stream of a watch, once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Injection {
    /// An ERROR event with a Status of this code (410: the version has expired), then the end.
    Error(u16),
    /// A line that is no JSON. The stream goes on.
    Garbage,
    /// Half of an event, then the regular end of the answer.
    Truncated,
    /// Half of an event, then the connection is cut.
    Cut,
    /// The last changes of the kind once more, as they were sent.
    Repeated(usize),
    /// What the last changes replaced: old states with old versions, as MODIFIED.
    Stale(usize),
    /// These bytes as they are.
    Raw(Bytes),
}

/// Which requests a fault strikes, and how many of them. The default is: all, always.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct On {
    pub kind: Option<Kind>,
    pub verb: Option<Verb>,
    /// Gone after so many requests.
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

    /// What `find` makes of the first fault that covers this request, and one use less of it.
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

    /// Whether a fault is in force at all: for those that concern connections.
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
