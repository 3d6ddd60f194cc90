//! Ring 0: what `--udp-timeout` and `--proxy-port-range` change, and what happens when the range is too small.

#![allow(clippy::unwrap_used, reason = "the functions that tests share are tests too; clippy does not know")]

use std::collections::BTreeSet;
use std::time::Duration;

use ferroxy_core::testing::service_over;
use ferroxy_core::{Family, Intent, NodeIntent, Protocol, ServiceName};
use ferroxy_dataplane::{Change, Settings as Values, Value};
use ferroxy_proxy::Arrival;
use ferroxy_userspace::ledger::Ledger;
use ferroxy_userspace::settings::{PORT_RANGE, UDP_IDLE_TIMEOUT};
use ferroxy_userspace::{Settings, State, render};

fn rendered(values: &Values) -> State {
    let service = service_over(Protocol::Udp, 1, 0..2);
    let intent = Intent { services: [service].into(), ..Intent::default() };
    render(&intent, &Settings::read(values), &[Family::V4])
}

#[test]
fn sessions_end_after_the_time_of_the_flag_and_by_default_after_the_engines() {
    let mut values = Values::default();
    let usual = ferroxy_proxy::Pool::default().timeouts;
    let timeouts =
        |values: &Values| rendered(values).pools.into_values().map(|it| it.timeouts).collect::<Vec<_>>();
    assert_eq!(timeouts(&values), [usual]);
    let asked = Duration::from_secs(7);
    values.set(&UDP_IDLE_TIMEOUT, Value::Duration(asked));
    let [changed] = timeouts(&values).try_into().unwrap();
    assert_eq!((changed.udp_unanswered, changed.udp_answered), (asked, asked));
    assert_eq!(changed.idle, usual.idle, "of TCP");
}

#[test]
fn listeners_have_ports_of_the_range() {
    let mut values = Values::default();
    values.set(&PORT_RANGE, Value::Text("4000-4010".into()));
    let state = rendered(&values);
    let sockets = state.frontends.values().filter_map(|it| match &it.arrival {
        Arrival::Socket { address, .. } => Some(address.port()),
        Arrival::OriginalDestination(_) => None,
    });
    let ports: BTreeSet<u16> = sockets.chain(state.redirects.values().map(|it| it.address.port())).collect();
    assert_eq!(ports.len(), 3, "two of TCP and one of the Service: {ports:?}");
    assert!(ports.iter().all(|port| (4000..=4010).contains(port)), "{ports:?}");
}

fn udp(number: u16) -> Change {
    let (name, service) = service_over(Protocol::Udp, number, 0..2);
    (name, Some(service))
}

/// The names of the Services that get no port. The others are in force then.
fn without_port(ledger: &mut Ledger, changes: Vec<Change>) -> BTreeSet<ServiceName> {
    let refused = ledger.plan(&changes).without_port;
    for (name, service) in changes.into_iter().filter(|(name, _)| !refused.contains(name)) {
        ledger.settle(&name, service, BTreeSet::new());
    }
    refused
}

/// The listeners for TCP take four ports, and a UDP Service port takes two.
#[test]
fn services_beyond_the_range_are_refused_and_leave_no_port_taken() {
    let settings = Settings { ports: 4000..=4007, ..Settings::default() };
    let mut ledger = Ledger::new(&Family::ALL, NodeIntent::default(), settings);
    // A Service that needs more ports than are left takes none.
    let (name, large) = udp(9);
    let mut large = ferroxy_core::ServiceIntent::clone(&large.unwrap());
    let first = large.ports[0].clone();
    large.ports.extend((1..3).map(|number| {
        let mut port = first.clone();
        port.name = format!("more-{number}").into();
        port
    }));
    let large: Change = (name.clone(), Some(large.into()));
    assert_eq!(without_port(&mut ledger, vec![large.clone()]), [name.clone()].into());
    assert_eq!(without_port(&mut ledger, vec![udp(1), udp(2), udp(3)]), [udp(3).0].into());
    // A place is free as soon as another Service leaves, also for one that was refused before.
    assert_eq!(without_port(&mut ledger, vec![(udp(1).0, None), (name, None)]), BTreeSet::new());
    assert_eq!(without_port(&mut ledger, vec![udp(3)]), BTreeSet::new());
    assert_eq!(without_port(&mut ledger, vec![large.clone()]), [large.0].into());
}

/// A Service that the kernel refuses was assigned ports; when it is deleted, others get them.
#[test]
fn ports_of_a_service_that_was_never_in_force_are_released() {
    let settings = Settings { ports: 4000..=4005, ..Settings::default() };
    let mut ledger = Ledger::new(&Family::ALL, NodeIntent::default(), settings);
    assert_eq!(ledger.plan(&[udp(1)]).without_port, BTreeSet::new());
    assert_eq!(ledger.plan(&[udp(2)]).without_port, [udp(2).0].into());
    assert_eq!(without_port(&mut ledger, vec![(udp(1).0, None)]), BTreeSet::new());
    assert_eq!(without_port(&mut ledger, vec![udp(2)]), BTreeSet::new());
}
