//! The queue: what waits, what does not, and that nobody waits for ever. No test judges a time.

use std::thread;

use ferroxy_core::event::{EndpointSlice, SliceEndpoint};

use super::*;
use crate::agent::Periods;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn slice(number: usize, endpoints: usize) -> Event {
    Event::Slice(EndpointSlice {
        name: format!("s{number}"),
        endpoints: vec![SliceEndpoint::default(); endpoints],
        ..EndpointSlice::default()
    })
}

fn take(receiver: &Receiver) -> String {
    match receiver.recv_timeout(PATIENCE).unwrap() {
        Input::Events(events) => match &events[..] {
            [Event::Slice(slice)] => slice.name.clone(),
            [Event::HostAddresses(addresses)] => format!("{addresses:?}"),
            other => panic!("{other:?}"),
        },
        Input::Listed => "listed".into(),
        Input::SourceDiagnostics(found) => format!("{} diagnostics", found.len()),
        Input::Reconfigured(_) => "reconfigured".into(),
        Input::Drift(what) => format!("drift: {what}"),
        Input::Stop(why) => format!("stop: {why}"),
    }
}

fn reconfigured() -> Input {
    Input::Reconfigured(Box::new(Reconfiguration {
        policy: Default::default(),
        settings: Default::default(),
        periods: Periods::default(),
    }))
}

/// A thread that sends events until it has sent so many, or the agent has ended. Returns how many.
fn flood(sender: &Sender, count: usize) -> thread::JoinHandle<usize> {
    let sender = sender.clone();
    let send = move |number: &usize| sender.send(Input::Events(vec![slice(*number, 1000)])).is_ok();
    thread::spawn(move || (0..count).take_while(send).count())
}

fn wait_until_full(gauge: &Gauge) {
    let end = Instant::now() + PATIENCE;
    while !gauge.depth().is_full {
        assert!(Instant::now() < end, "{:?}", gauge.depth());
        thread::yield_now();
    }
}

#[test]
fn events_wait_for_room_and_everything_else_gets_through_at_once() {
    let (sender, receiver) = inbox();
    let flooding = flood(&sender, 200);
    wait_until_full(&sender.gauge());
    let depth = sender.gauge().depth();
    assert!((MOST_BYTES..2 * MOST_BYTES).contains(&depth.bytes) && depth.events < 200, "{depth:?}");
    for input in [
        Input::Drift("first"),
        Input::Drift("second"),
        Input::Events(vec![Event::HostAddresses(vec![[192, 0, 2, 1].into()])]),
        Input::Events(vec![Event::HostAddresses(vec![[192, 0, 2, 2].into()])]),
        reconfigured(),
        reconfigured(),
        Input::SourceDiagnostics(Vec::new()),
        Input::Stop("enough"),
    ] {
        sender.send(input).unwrap();
    }
    for expected in ["stop: enough", "reconfigured", "drift: first", "[192.0.2.2]", "s0", "s1"] {
        assert_eq!(take(&receiver), expected);
    }
    // The rest comes in order, all of it.
    let mut taken: Vec<String> = (2..201).map(|_| take(&receiver)).collect();
    taken.retain(|it| it != "0 diagnostics");
    assert_eq!(taken, (2..200).map(|number| format!("s{number}")).collect::<Vec<_>>());
    assert_eq!((flooding.join().unwrap(), sender.gauge().depth()), (200, Depth::default()));
}

#[test]
fn whoever_waits_is_woken_when_the_agent_ends() {
    for explicit in [true, false] {
        let (sender, receiver) = inbox();
        let flooding = flood(&sender, 200);
        wait_until_full(&sender.gauge());
        let closing = receiver.closing();
        if explicit {
            drop(closing)
        } else {
            drop((receiver, closing))
        }
        assert!(flooding.join().unwrap() < 200);
        assert_eq!(sender.send(Input::Listed), Err(Closed));
    }
}

#[test]
fn what_a_source_says_keeps_its_order() {
    let (sender, receiver) = inbox();
    for input in [
        Input::Events(vec![slice(1, 1)]),
        Input::SourceDiagnostics(Vec::new()),
        Input::SourceDiagnostics(Vec::new()),
        Input::Events(vec![slice(2, 1)]),
        Input::Listed,
    ] {
        sender.send(input).unwrap();
    }
    for expected in ["s1", "0 diagnostics", "s2", "listed"] {
        assert_eq!(take(&receiver), expected);
    }
}

#[test]
fn a_batch_that_is_larger_than_the_bound_gets_through_alone() {
    let (sender, receiver) = inbox();
    let whole = flood(&sender, 1);
    assert_eq!(whole.join().unwrap(), 1);
    sender.send(Input::Events(vec![slice(1, 100_000)])).unwrap();
    let flooding = flood(&sender, 1);
    assert_eq!([take(&receiver), take(&receiver), take(&receiver)], ["s0", "s1", "s0"]);
    assert_eq!(flooding.join().unwrap(), 1);
}

#[test]
fn what_arrives_while_inputs_are_taken_is_for_the_next_time() {
    let (sender, receiver) = inbox();
    sender.send(Input::Events(vec![slice(1, 1)])).unwrap();
    sender.send(Input::Listed).unwrap();
    let taken = receiver.try_iter().inspect(|_| sender.send(Input::Events(vec![slice(2, 1)])).unwrap());
    assert_eq!(taken.count(), 2);
    assert_eq!(receiver.try_iter().count(), 2);
}

#[test]
fn it_ends_when_all_senders_have_ended() {
    let (sender, receiver) = inbox();
    assert_eq!(receiver.recv_timeout(Duration::ZERO).unwrap_err(), RecvTimeoutError::Timeout);
    let other = sender.clone();
    drop(sender);
    other.send(Input::Listed).unwrap();
    drop(other);
    assert_eq!(take(&receiver), "listed");
    assert_eq!(receiver.recv_timeout(PATIENCE).unwrap_err(), RecvTimeoutError::Disconnected);
}
