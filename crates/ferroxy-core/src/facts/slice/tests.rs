//! Tests of reading, keeping and finding EndpointSlices.

use super::read::MOST_HINTS;
use super::*;
use crate::event;

fn web() -> ServiceName {
    ServiceName::new("default", "web")
}

fn put(slices: &mut Slices, name: &str, object: event::EndpointSlice) -> Vec<String> {
    let new = slices.read(name, object);
    slices.replace(name, Some(new)).iter().map(ToString::to_string).collect()
}

/// A slice of the Service `web`, alone.
fn read(object: event::EndpointSlice) -> Slices {
    let mut slices = Slices::default();
    put(&mut slices, "default/web-1", object);
    slices
}

fn only(slices: &Slices) -> Slice<'_> {
    slices.of(&web()).next().unwrap()
}

fn endpoint(address: &str) -> event::SliceEndpoint {
    event::SliceEndpoint {
        addresses: vec![address.into()],
        target: Some(format!("pod-{address}")),
        ..Default::default()
    }
}

fn slice(address_type: &str, endpoints: &[&str]) -> event::EndpointSlice {
    event::EndpointSlice {
        namespace: "default".into(),
        service: Some("web".into()),
        address_type: address_type.into(),
        ports: vec![event::SlicePort { name: Some(String::new()), port: Some(80), ..Default::default() }],
        endpoints: endpoints.iter().map(|address| endpoint(address)).collect(),
        ..Default::default()
    }
}

fn of_service(service: &str, endpoints: &[&str]) -> event::EndpointSlice {
    event::EndpointSlice { service: Some(service.into()), ..slice("IPv4", endpoints) }
}

fn fields(slices: &Slices) -> Vec<&str> {
    slices.faults_of("default/web-1").iter().map(|d| d.field.as_str()).collect()
}

#[test]
fn bad_endpoints_are_skipped_and_the_others_keep_their_names() {
    let slices = read(slice("IPv4", &["10.244.1.5", "10.244.01.6", "fd00::7", "127.0.0.1", "10.244.1.8"]));
    let slice = only(&slices);
    let kept: Vec<_> =
        (0..slice.len()).map(|i| (slice.address(i).unwrap().to_string(), slice.target(i))).collect();
    let expected = ["10.244.1.5", "10.244.1.8"].map(|it| (it.to_owned(), format!("pod-{it}")));
    assert_eq!(kept, expected);
    assert_eq!(
        fields(&slices),
        ["endpoints[1].addresses[0]", "endpoints[2].addresses[0]", "endpoints[3].addresses[0]"]
    );
    assert_eq!(slice.diagnostics().len(), 3);
    assert_eq!((slice.target(2), slice.address(2), slice.conditions(2)), (String::new(), None, None));
}

#[test]
fn names_of_pods_need_not_be_alike() {
    let targets =
        [Some("web-5d9c-x"), None, Some("web-5d9c-y"), Some("b\u{e4}r"), Some("b\u{eb}r"), Some("w")];
    let mut object = slice("IPv6", &["2001:db8::1"; 6]);
    for (endpoint, target) in object.endpoints.iter_mut().zip(targets) {
        endpoint.target = target.map(Into::into);
    }
    let slices = read(object);
    let expected = targets.map(|it| crate::foreign::kept(it.unwrap_or("")).into_string());
    assert_eq!(only(&slices).targets().collect::<Vec<_>>(), expected);
    assert_eq!(only(&slices).address(5), Some("2001:db8::1".parse().unwrap()));
}

#[test]
fn slices_that_cannot_be_used_keep_nothing() {
    let fqdn = read(slice("FQDN", &["example.org"]));
    assert!(only(&fqdn).is_empty() && only(&fqdn).ports().is_empty());
    assert_eq!(fields(&fqdn), ["addressType"]);
    let unlabelled = read(event::EndpointSlice { service: None, ..slice("IPv4", &["10.244.1.5"]) });
    assert_eq!((unlabelled.all().count(), unlabelled.count(), unlabelled.places()), (0, 1, 0));
    assert_eq!(fields(&unlabelled), ["metadata.labels[kubernetes.io/service-name]"]);
    assert_eq!(unlabelled.names().collect::<Vec<_>>(), ["default/web-1"]);
}

#[test]
fn bad_ports_are_skipped() {
    let port = |name: Option<&str>, protocol: &str, port| event::SlicePort {
        name: name.map(Into::into),
        protocol: protocol.into(),
        port,
    };
    let mut object = slice("IPv6", &["fd00::5"]);
    object.ports = vec![
        port(Some("a"), "TCP", Some(80)),
        port(None, "TCP", Some(81)),
        port(Some("b"), "TCP", None),
        port(Some("c"), "QUIC", Some(83)),
        port(Some("a"), "TCP", Some(84)),
        port(Some("a"), "UDP", Some(0)),
        port(Some("a"), "UDP", Some(85)),
    ];
    let slices = read(object);
    let slice = only(&slices);
    let kept: Vec<_> = slice.ports().iter().map(|p| p.port).collect();
    assert_eq!(kept, [80, 85]);
    assert_eq!((slice.port("a", Protocol::Udp), slice.port("b", Protocol::Tcp)), (Some(85), None));
    assert_eq!(slice.diagnostics().len(), 5);
    assert_eq!(slice.family(), Family::V6);
}

#[test]
fn ports_beyond_the_limit_are_not_read() {
    let ports = |count: usize| {
        let port =
            |n: usize| event::SlicePort { name: Some(format!("p{n}")), port: Some(80), ..Default::default() };
        event::EndpointSlice { ports: (0..count).map(port).collect(), ..slice("IPv4", &["10.0.0.1"]) }
    };
    let full = read(ports(MOST_PORTS));
    assert_eq!(
        (only(&full).ports().len(), only(&full).ports_beyond(), fields(&full).len()),
        (MOST_PORTS, 0, 0)
    );
    let more = read(ports(MOST_PORTS + 3));
    assert_eq!((only(&more).ports().len(), only(&more).ports_beyond()), (MOST_PORTS, 3));
    assert_eq!(fields(&more), ["ports"]);
    assert_eq!(only(&more).diagnostics()[0].reason, "there are 20003 ports, more than 20000");
}

#[test]
fn hints_beyond_the_limit_are_ignored_and_noted() {
    let mut object = slice("IPv4", &["10.0.0.1", "10.0.0.2"]);
    let zones = |count: usize| (0..count).map(|n| format!("zone-{n}")).collect();
    object.endpoints[0].hint_zones = zones(MOST_HINTS);
    object.endpoints[1].hint_zones = zones(MOST_HINTS + 1);
    object.endpoints[1].hint_nodes = zones(40);
    let slices = read(object);
    assert_eq!(fields(&slices), ["endpoints[1].hints.forZones", "endpoints[1].hints.forNodes"]);
    assert_eq!(only(&slices).diagnostics()[0].reason, "there are 17 hints, more than 16");
}

#[test]
fn absent_conditions_mean_ready() {
    let absent = Conditions::new(None, None, None);
    assert!(absent.ready() && absent.serving() && !absent.terminating());
    let leaving = Conditions::new(Some(false), Some(true), Some(true));
    assert!(!leaving.ready() && leaving.serving() && leaving.terminating());
}

/// The first three slices are named after a Service, but not always after their own, and not always after one that
/// exists.
#[test]
fn a_slice_is_found_by_its_name_whatever_it_is_called() {
    let names =
        ["web-1", "web-1-2", "web-other-1", "web", "x", "web.1", "a-b-c"].map(|it| format!("default/{it}"));
    for service in ["web", "web-1", "a"] {
        let mut slices = Slices::default();
        put(&mut slices, "default/web-1-0", of_service("web-1", &["10.0.0.9"]));
        for name in &names {
            assert_eq!(put(&mut slices, name, of_service("web", &["10.0.0.1"])), ["default/web"]);
            assert!(
                put(&mut slices, name, of_service("web", &["10.0.0.1"])).is_empty(),
                "{name} is the same"
            );
        }
        assert_eq!((slices.count_of(&web()), slices.count()), (7, 8));
        let of_web: Vec<String> = slices.of(&web()).map(|slice| slice.name()).collect();
        assert!(of_web.is_sorted(), "{of_web:?}");
        // Moves each slice to another Service, then removes it.
        for name in &names {
            let concerned = put(&mut slices, name, of_service(service, &["10.0.0.2"]));
            assert!(concerned.contains(&"default/web".to_owned()), "{name}");
            assert!(concerned.contains(&format!("default/{service}")), "{name}");
        }
        assert_eq!((slices.count(), slices.names().count()), (8, 8));
        for name in &names {
            assert_eq!(slices.replace(name, None).len(), 1, "{name}");
            assert!(slices.replace(name, None).is_empty(), "{name} is gone");
        }
        slices.replace("default/web-1-0", None);
        assert!(slices.is_empty(), "{slices:?}");
    }
}

#[test]
fn what_is_wrong_with_a_slice_goes_with_it() {
    let broken = || event::EndpointSlice { service: None, ..slice("IPv4", &[]) };
    let mut slices = read(of_service("web", &["nonsense"]));
    put(&mut slices, "default/none", broken());
    let others = |slices: &Slices, known: &str| slices.other_faults(|it| it.name() == known).count();
    assert_eq!((others(&slices, "web"), others(&slices, "api")), (1, 2));
    assert!(put(&mut slices, "default/none", broken()).is_empty());
    // A changed fault alone counts as a change, too.
    assert_eq!(put(&mut slices, "default/web-1", of_service("web", &[])), ["default/web"]);
    assert_eq!((others(&slices, "api"), only(&slices).diagnostics().len()), (1, 0));
    slices.replace("default/none", None);
    slices.replace("default/web-1", None);
    assert!(slices.is_empty(), "{slices:?}");
}

#[test]
fn slices_with_the_same_ports_share_them() {
    let mut slices = Slices::default();
    for number in 0..100 {
        put(&mut slices, &format!("default/web-{number}"), slice("IPv4", &["10.0.0.1"]));
    }
    let lists: Vec<_> = slices.of(&web()).map(|slice| slice.ports().as_ptr()).collect();
    assert!(lists.len() == 100 && lists.iter().all(|list| *list == lists[0]));
}
