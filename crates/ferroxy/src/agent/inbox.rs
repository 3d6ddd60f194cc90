//! The queue in front of the agent. It is bounded; inputs that must not wait bypass the bound.
//!
//! Events have a size. Beyond [`MOST_BYTES`] a sender of events blocks until the agent has taken some, or stops reading; so a
//! source is no faster than the agent. All other inputs get through at once: a request to stop, a new configuration, drift and
//! the host's addresses have one slot each, which keeps one input and is taken before events. Questions come before events,
//! too; only a few of them may wait. Of the events of one object, only the newest waits: `inbox/waiting.rs`.

mod waiting;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ferroxy_core::Event;

use super::{Input, Question, Reconfiguration};
use waiting::Waiting;

/// Once events take so much memory, no more are accepted. The source sends batches of up to the same size.
const MOST_BYTES: usize = 4 << 20;

/// The most questions that wait. A client that asks waits for the answer before its next question.
const MOST_QUESTIONS: usize = 8;

pub fn inbox() -> (Sender, Receiver) {
    let shared = Arc::new(Shared::default());
    shared.state().senders = 1;
    (Sender { shared: Arc::clone(&shared) }, Receiver { shared })
}

#[derive(Debug)]
pub struct Sender {
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub struct Receiver {
    shared: Arc<Shared>,
}

/// Shows how full the queue is.
#[derive(Debug, Clone)]
pub struct Gauge {
    shared: Arc<Shared>,
}

/// When it is dropped, no sender waits for room any more.
#[derive(Debug)]
pub struct Closing {
    shared: Arc<Shared>,
}

/// The agent has ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Closed;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Depth {
    pub events: usize,
    pub bytes: usize,
    /// The bound is reached: no more events should be sent for now.
    pub is_full: bool,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    more: Condvar,
    room: Condvar,
}

#[derive(Debug, Default)]
struct State {
    stop: Option<&'static str>,
    reconfigured: Option<Box<Reconfiguration>>,
    drift: Option<&'static str>,
    addresses: Option<Vec<IpAddr>>,
    /// Questions beyond [`MOST_QUESTIONS`] are dropped without an answer.
    questions: VecDeque<Question>,
    /// All other inputs, in the order in which they came.
    ordered: Waiting,
    senders: usize,
    is_closed: bool,
}

impl Sender {
    /// Events may have to wait for room; nothing else does.
    pub fn send(&self, input: Input) -> Result<(), Closed> {
        let mut state = self.shared.state();
        if matches!(&input, Input::Events(events) if host_addresses(events).is_none()) {
            state = self.shared.wait_for_room(state);
        }
        self.shared.put(state, input)
    }

    /// For senders that stop by themselves while the queue [is full](Depth::is_full), because they must not be blocked.
    pub fn send_now(&self, input: Input) -> Result<(), Closed> {
        self.shared.put(self.shared.state(), input)
    }

    pub fn gauge(&self) -> Gauge {
        Gauge { shared: Arc::clone(&self.shared) }
    }
}

impl Clone for Sender {
    fn clone(&self) -> Sender {
        self.shared.state().senders += 1;
        Sender { shared: Arc::clone(&self.shared) }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.shared.state().senders -= 1;
        self.shared.more.notify_one();
    }
}

impl Receiver {
    pub fn recv_timeout(&self, wait: Duration) -> Result<Input, RecvTimeoutError> {
        let until = Instant::now() + wait;
        let mut state = self.shared.state();
        loop {
            if let Some(input) = self.shared.take(&mut state) {
                return Ok(input);
            }
            if state.senders == 0 {
                return Err(RecvTimeoutError::Disconnected);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(RecvTimeoutError::Timeout);
            }
            state = self.shared.more.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The inputs that wait now. Inputs that arrive meanwhile stay in the queue, so that the agent does its work in between.
    pub fn try_iter(&self) -> impl Iterator<Item = Input> {
        let waiting = self.shared.state().len();
        (0..waiting).map_while(|_| self.shared.take(&mut self.shared.state()))
    }

    /// Drop it before joining the threads of senders: one of them may wait for room.
    pub fn closing(&self) -> Closing {
        Closing { shared: Arc::clone(&self.shared) }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl Gauge {
    pub fn depth(&self) -> Depth {
        let waiting = &self.shared.state().ordered;
        let bytes = waiting.bytes();
        Depth { events: waiting.events(), bytes, is_full: bytes >= MOST_BYTES }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for_room<'s>(&'s self, mut state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        while state.ordered.bytes() >= MOST_BYTES && !state.is_closed {
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    fn put(&self, mut state: MutexGuard<'_, State>, input: Input) -> Result<(), Closed> {
        if state.is_closed {
            return Err(Closed);
        }
        state.put(input);
        self.more.notify_one();
        Ok(())
    }

    fn take(&self, state: &mut State) -> Option<Input> {
        let input = state.take()?;
        if state.ordered.bytes() < MOST_BYTES {
            self.room.notify_all();
        }
        Some(input)
    }

    fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        state.ordered = Waiting::default();
        state.questions.clear();
        self.room.notify_all();
    }
}

impl State {
    fn len(&self) -> usize {
        let slots = [
            self.stop.is_some(),
            self.reconfigured.is_some(),
            self.drift.is_some(),
            self.addresses.is_some(),
        ];
        slots.iter().filter(|is_used| **is_used).count() + self.questions.len() + self.ordered.len()
    }

    fn put(&mut self, input: Input) {
        match input {
            Input::Stop(why) => self.stop = self.stop.or(Some(why)),
            Input::Reconfigured(new) => self.reconfigured = Some(new),
            Input::Drift(what) => self.drift = self.drift.or(Some(what)),
            Input::Ask(question) if self.questions.len() < MOST_QUESTIONS => {
                self.questions.push_back(question)
            }
            Input::Ask(_) => {}
            Input::Events(mut events) if host_addresses(&events).is_some() => {
                if let Some(Event::HostAddresses(addresses)) = events.pop() {
                    self.addresses = Some(addresses);
                }
            }
            Input::Events(_) | Input::Listed | Input::SourceDiagnostics(_) => self.ordered.put(input),
        }
    }

    fn take(&mut self) -> Option<Input> {
        let first = self.stop.take().map(Input::Stop);
        let first = first.or_else(|| self.reconfigured.take().map(Input::Reconfigured));
        let first = first.or_else(|| self.drift.take().map(Input::Drift));
        let addresses = |addresses| Input::Events(vec![Event::HostAddresses(addresses)]);
        let first = first.or_else(|| self.addresses.take().map(addresses));
        first.or_else(|| self.questions.pop_front().map(Input::Ask)).or_else(|| self.ordered.take())
    }
}

fn host_addresses(events: &[Event]) -> Option<&[IpAddr]> {
    match events {
        [Event::HostAddresses(addresses)] => Some(addresses),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
