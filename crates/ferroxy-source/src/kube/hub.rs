//! Merges the updates of all resources into one stream.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ferroxy_core::{Diagnostic, Event};
use tokio::time::sleep;

use super::source::HeldBack;
use super::{Denial, Update};
use crate::object::Kind;

/// How often to check whether there is room again.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

pub(super) struct Hub {
    state: RefCell<State>,
    held_back: HeldBack,
}

struct State {
    on_update: Box<dyn FnMut(Update)>,
    /// The kinds that have to be complete before [`Update::Listed`].
    missing: BTreeSet<Kind>,
    listed: bool,
    /// By kind; `None` for the credentials.
    troubles: BTreeMap<Option<Kind>, Vec<Diagnostic>>,
}

impl Hub {
    pub(super) fn new(
        needed: impl IntoIterator<Item = Kind>,
        on_update: impl FnMut(Update) + 'static,
        held_back: HeldBack,
    ) -> Hub {
        Hub {
            held_back,
            state: RefCell::new(State {
                on_update: Box::new(on_update),
                missing: needed.into_iter().collect(),
                listed: false,
                troubles: BTreeMap::new(),
            }),
        }
    }

    /// Waits until the receiver of the updates has room for more. Other tasks of this thread go on: connections are
    /// kept alive, and the server is probed.
    pub(super) async fn room(&self) {
        while self.held_back.is_full() {
            sleep(LOOK_AGAIN).await;
        }
    }

    pub(super) fn events(&self, events: Vec<Event>) {
        (self.state.borrow_mut().on_update)(Update::Events(events));
    }

    /// This kind is complete. Its events must have been sent before.
    pub(super) fn complete(&self, kind: Kind) {
        let state = &mut *self.state.borrow_mut();
        state.missing.remove(&kind);
        if state.missing.is_empty() && !state.listed {
            state.listed = true;
            (state.on_update)(Update::Listed);
        }
    }

    pub(super) fn denied(&self, denial: Denial) {
        (self.state.borrow_mut().on_update)(Update::Denied(denial));
    }

    /// Everything that is wrong with one kind, or with the credentials.
    pub(super) fn troubles(&self, about: Option<Kind>, troubles: Vec<Diagnostic>) {
        let state = &mut *self.state.borrow_mut();
        let before = state.troubles.get(&about).map_or(&[][..], Vec::as_slice);
        if before != troubles {
            state.troubles.insert(about, troubles);
            let all = state.troubles.values().flatten().cloned().collect();
            (state.on_update)(Update::Troubles(all));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use ferroxy_core::{Cause, Object};

    use super::*;

    #[test]
    fn listed_is_sent_once_and_troubles_when_they_change() {
        let updates = Rc::new(RefCell::new(Vec::new()));
        let sink = Rc::clone(&updates);
        let hub = Hub::new(
            [Kind::Service, Kind::Slice],
            move |update| sink.borrow_mut().push(update),
            HeldBack::default(),
        );
        let trouble = |reason: &str| Diagnostic {
            object: Object::service("n/a"),
            field: "spec".into(),
            reason: reason.into(),
            effect: String::new(),
            cause: Cause::Field,
        };
        hub.complete(Kind::Service);
        hub.complete(Kind::ServiceCidr);
        hub.troubles(Some(Kind::Slice), vec![]);
        assert_eq!(*updates.borrow(), []);
        hub.complete(Kind::Slice);
        hub.complete(Kind::Slice);
        hub.troubles(Some(Kind::Slice), vec![trouble("a")]);
        hub.troubles(Some(Kind::Slice), vec![trouble("a")]);
        hub.troubles(None, vec![trouble("b")]);
        hub.troubles(Some(Kind::Slice), vec![]);
        let expected = [
            Update::Listed,
            Update::Troubles(vec![trouble("a")]),
            Update::Troubles(vec![trouble("b"), trouble("a")]),
            Update::Troubles(vec![trouble("b")]),
        ];
        assert_eq!(*updates.borrow(), expected);
    }
}
