//! Verdicts of probes are inputs like any other: programmed, shown, and logged within limits.

use std::sync::mpsc;

use ferroxy_core::event::Verdict;
use ferroxy_core::probe::{ANNOTATION, Down, Fault, Target};
use ferroxy_source::Occurrence;

use super::*;

/// The Service `default/web` with endpoints 10.244.1.1 to 10.244.1.3, which asks for probes.
fn web() -> [Event; 2] {
    let [mut object, mut slice] = service("default", "web", 9, 80);
    if let (Event::Service(object), Event::Slice(slice)) = (&mut object, &mut slice) {
        object.annotations = vec![(ANNOTATION.into(), "tcp".into())];
        let endpoint = |last: u8| SliceEndpoint {
            addresses: vec![format!("10.244.1.{last}")],
            target: Some(format!("web-{last}")),
            ..SliceEndpoint::default()
        };
        slice.endpoints = (1..=3).map(endpoint).collect();
    }
    [object, slice]
}

fn verdict(last: u8, is_down: bool) -> Event {
    Event::Verdict(Verdict {
        service: name("default", "web"),
        target: Target::parse(&format!("10.244.1.{last}:8080/tcp")).unwrap(),
        life: None,
        down: is_down.then_some(Down { since: 1_700_000_000, fault: Fault::Refused }),
    })
}

/// An agent in sync, and the Events that it sends.
fn started(kernel: &Kernel) -> (Agent, mpsc::Receiver<Occurrence>) {
    let mut agent = agent(kernel);
    let (sender, told) = mpsc::channel();
    let sender = std::sync::Mutex::new(sender);
    agent.status.record_events_with(move |occurrence| sender.lock().unwrap().send(occurrence).unwrap());
    drop(agent.apply(web().into()));
    assert_eq!(agent.start(&inbox().1), None);
    kernel.take_journal();
    (agent, told)
}

fn in_force(agent: &Agent) -> usize {
    agent.dataplane.acknowledged().service(&name("default", "web")).unwrap().ports[0].cluster.len()
}

#[test]
fn a_verdict_is_programmed_shown_and_told_once() {
    let kernel = Kernel::warm();
    let (mut agent, told) = started(&kernel);
    assert_eq!(agent.status.probes.value()["endpoints"], 3, "from the start");
    agent.handle([Input::Events(vec![verdict(2, true)])]);
    assert_eq!(kernel.take_journal(), ["change default/web"]);
    assert_eq!(in_force(&agent), 2);
    let shown = agent.status.probes.value();
    assert_eq!((&shown["downCount"], &shown["down"][0]["pod"]), (&1.into(), &"web-2".into()));
    let down = told.try_recv().unwrap();
    assert_eq!((&*down.reason, &*down.about, down.warning), ("EndpointDown", "10.244.1.2:8080/tcp", true));
    let note = "on node ka: endpoint 10.244.1.2:8080/tcp (web-2) fails its probe: connection refused";
    assert_eq!(down.note, note);

    agent.handle([Input::Events(vec![verdict(2, true), verdict(9, true)])]);
    assert!(kernel.take_journal().is_empty() && told.try_recv().is_err(), "nothing new");
    agent.handle([Input::Events(vec![verdict(2, false)])]);
    assert_eq!((in_force(&agent), told.try_recv().unwrap().reason.as_str()), (3, "EndpointUp"));

    agent.handle([Input::Events(vec![Event::ServiceGone {
        namespace: "default".into(),
        name: "web".into(),
    }])]);
    assert_eq!(agent.status.probes.value()["endpoints"], 0);
}

#[test]
fn a_service_that_turns_all_the_time_is_logged_in_moderation() {
    let kernel = Kernel::warm();
    let (mut agent, told) = started(&kernel);
    for turn in 0..100 {
        agent.handle([Input::Events(vec![verdict(1, turn % 2 == 0)])]);
    }
    assert_eq!(told.try_iter().count(), 10);
}

#[test]
fn of_each_endpoint_only_the_newest_verdict_waits() {
    let (sender, inputs) = inbox();
    for turn in 0..100 {
        for last in 1..=3 {
            sender.send_now(Input::Events(vec![verdict(last, turn % 2 == 0)])).unwrap();
        }
    }
    assert_eq!(sender.gauge().depth().events, 3);
    let waiting: Vec<Event> = inputs
        .try_iter()
        .flat_map(|input| if let Input::Events(events) = input { events } else { Vec::new() })
        .collect();
    assert_eq!(waiting, [1, 2, 3].map(|last| verdict(last, false)));
}
