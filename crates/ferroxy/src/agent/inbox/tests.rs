//! The queue: which inputs wait, which do not, and that no sender waits for ever. No test judges a time.

use std::thread;

use ferroxy_core::ObjectKind;
use ferroxy_core::event::{EndpointSlice, SliceEndpoint};
use ferroxy_core::{Cause, Diagnostic, Object};

use super::*;
use crate::agent::Periods;

/// Longer than any wait in these tests.
const PATIENCE: Duration = Duration::from_secs(1800);

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
        Input::Ask(_) => "question".into(),
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

/// A thread that sends `count` events, or fewer if the agent ends before. Returns how many it sent.
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
    // All the rest comes, in order.
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
    let mut number = 2..;
    let arrives = |_: &Input| sender.send(Input::Events(vec![slice(number.next().unwrap(), 1)])).unwrap();
    let taken = receiver.try_iter().inspect(arrives);
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

fn gone(number: usize) -> Event {
    Event::SliceGone { namespace: String::new(), name: format!("s{number}") }
}

/// The waiting events, batch by batch: `s1:3` is slice 1 with three endpoints.
fn batches(receiver: &Receiver) -> Vec<String> {
    let show = |event: &Event| match event {
        Event::Slice(slice) => format!("{}:{}", slice.name, slice.endpoints.len()),
        Event::SliceGone { name, .. } => format!("{name} gone"),
        Event::Listed { names, .. } => format!("only {}", names.iter().map(|it| &**it).collect::<String>()),
        other => panic!("{other:?}"),
    };
    let inputs = receiver.try_iter().map(|input| match input {
        Input::Events(events) => events.iter().map(show).collect::<Vec<_>>().join(" "),
        Input::Listed => "listed".to_owned(),
        other => panic!("{other:?}"),
    });
    inputs.collect()
}

/// Each object changes a thousand times while the agent takes nothing: the queue is as large as its last states.
#[test]
fn of_an_object_only_the_last_state_waits() {
    const OBJECTS: usize = 10;
    let (sender, receiver) = inbox();
    for round in 1..=1_000 {
        for number in 0..OBJECTS {
            sender.send_now(Input::Events(vec![slice(number, round)])).unwrap();
        }
        assert_eq!(sender.gauge().depth().events, OBJECTS);
    }
    let one = {
        let (sender, _receiver) = inbox();
        sender.send_now(Input::Events((0..OBJECTS).map(|number| slice(number, 1_000)).collect())).unwrap();
        sender.gauge().depth().bytes
    };
    assert_eq!(sender.gauge().depth().bytes, one);
    let expected: Vec<String> = (0..OBJECTS).map(|number| format!("s{number}:1000")).collect();
    assert_eq!(batches(&receiver), expected);
    assert_eq!(sender.gauge().depth(), Depth::default());
}

/// An object of the first list that changes or goes before the agent looks is still part of that list.
#[test]
fn the_last_state_is_where_the_first_one_waited() {
    let (sender, receiver) = inbox();
    for input in [
        Input::Events(vec![slice(1, 1), slice(2, 1), slice(1, 2), slice(3, 1)]),
        Input::Listed,
        Input::Events(vec![gone(2), slice(4, 1), slice(3, 7)]),
        Input::Events(vec![slice(3, 8)]),
    ] {
        sender.send(input).unwrap();
    }
    assert_eq!(batches(&receiver), ["s1:2 s2 gone s3:8", "listed", "s4:1"]);
    // Events that were taken do not wait any more.
    sender.send(Input::Events(vec![slice(1, 3), gone(3)])).unwrap();
    assert_eq!(batches(&receiver), ["s1:3 s3 gone"]);
    assert_eq!(sender.gauge().depth(), Depth::default());
}

/// A complete list implies that objects that were reported before it and that it does not name are gone.
#[test]
fn nothing_that_comes_after_a_list_takes_a_place_before_it() {
    let (sender, receiver) = inbox();
    let names = ["s1".into()].into();
    let listed = Event::Listed { kind: ObjectKind::EndpointSlice, names };
    sender.send(Input::Events(vec![slice(1, 1), slice(2, 1), slice(1, 2), listed, slice(2, 3)])).unwrap();
    sender.send(Input::Events(vec![slice(1, 4), slice(2, 5)])).unwrap();
    assert_eq!(sender.gauge().depth().events, 5);
    assert_eq!(batches(&receiver), ["s1:2 s2:1 only s1 s2:5", "s1:4"]);
    assert_eq!(sender.gauge().depth(), Depth::default());
}

#[test]
fn the_time_of_the_first_change_that_waits_is_kept() {
    let (sender, receiver) = inbox();
    let changed = |last_change| Event::Slice(EndpointSlice { last_change, ..EndpointSlice::default() });
    sender.send(Input::Events(vec![changed(None), changed(Some(5)), changed(Some(7))])).unwrap();
    let Ok(Input::Events(events)) = receiver.recv_timeout(PATIENCE) else { panic!() };
    assert_eq!(events, [changed(Some(5))]);
}

/// While the agent takes nothing, a tenant's objects have a different problem each time.
#[test]
fn of_the_problems_of_the_source_only_the_last_wait() {
    let (sender, receiver) = inbox();
    let problem = |number: usize| Diagnostic {
        object: Object::slice("apps/wrong"),
        field: "metadata".into(),
        reason: number.to_string(),
        effect: "it is ignored".into(),
        cause: Cause::Field,
    };
    for number in 1..=100 {
        sender.send_now(Input::SourceDiagnostics(vec![problem(number); number])).unwrap();
        sender.send_now(Input::Events(vec![slice(number % 10, 1)])).unwrap();
        sender.send_now(Input::SourceDiagnostics(vec![problem(number)])).unwrap();
    }
    sender.send_now(Input::Events(vec![slice(10, 1)])).unwrap();
    let taken: Vec<Input> = receiver.try_iter().collect();
    let problems = taken.iter().filter_map(|input| match input {
        Input::SourceDiagnostics(found) => Some(found.clone()),
        _ => None,
    });
    assert_eq!(problems.collect::<Vec<_>>(), [vec![problem(100)]]);
    assert_eq!(taken.len(), 12, "ten objects, their problems, and one object after these");
    assert!(matches!(&taken[10], Input::SourceDiagnostics(_)), "{taken:?}");
    assert_eq!(sender.gauge().depth(), Depth::default());
}

#[test]
fn questions_come_before_events_and_only_a_few_wait() {
    let (sender, receiver) = inbox();
    sender.send(Input::Events(vec![slice(1, 1)])).unwrap();
    let answers: Vec<_> = (0..MOST_QUESTIONS + 1)
        .map(|_| {
            let (reply, answer) = tokio::sync::oneshot::channel();
            let question = Question::Services { after: None, limit: 1, reply };
            sender.send_now(Input::Ask(question)).unwrap();
            answer
        })
        .collect();
    for mut answer in answers.into_iter().skip(MOST_QUESTIONS) {
        assert!(answer.try_recv().is_err_and(|it| it == tokio::sync::oneshot::error::TryRecvError::Closed));
    }
    sender.send(Input::Stop("stopped")).unwrap();
    assert_eq!(take(&receiver), "stop: stopped");
    for _ in 0..MOST_QUESTIONS {
        assert_eq!(take(&receiver), "question");
    }
    assert_eq!(take(&receiver), "s1");
}
