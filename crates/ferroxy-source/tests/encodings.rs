//! The API as a source in protobuf and in JSON, against the test API server: what is requested, what is reported, and
//! what happens when the server has no protobuf, or sends neither encoding.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on says so")]

use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ferroxy_core::Event;
use ferroxy_lab::PATIENCE;
use ferroxy_lab::api::{self, Fault, Injection, On, Server, Verb, protobuf};
use ferroxy_source::Kind;
use ferroxy_source::kube::{KubeSource, KubeWatch, Options, ResourceLiveness, Update};
use serde_json::{Value, json};

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const BOTH: &str = "application/vnd.kubernetes.protobuf, application/json";
const JSON: &str = "application/json";

fn server() -> Server {
    Server::start(api::Options { bookmark_interval: Duration::from_millis(20), ..Default::default() })
        .unwrap()
}

fn options(server: &Server) -> Options {
    Options { master: Some(server.url()), qps: -1.0, ..Options::for_node("ka") }
}

fn service(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": "shop", "creationTimestamp": "2024-02-29T12:00:00Z"},
        "spec": {"type": "NodePort", "clusterIP": "10.96.0.80", "ports": [{"port": 80, "nodePort": 30080, "targetPort": "web"}]},
    })
}

fn slice(name: &str, endpoints: usize) -> Value {
    let endpoint =
        |i| json!({"addresses": [format!("10.244.1.{i}")], "conditions": {"ready": true}, "nodeName": "ka"});
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": name, "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}},
        "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
        "endpoints": (0..endpoints).map(endpoint).collect::<Vec<_>>(),
    })
}

fn fill(server: &Server) {
    for object in [
        service("web"),
        service("api"),
        slice("web-1", 3),
        json!({"kind": "Node", "metadata": {"name": "ka", "labels": {"topology.kubernetes.io/zone": "z1"}}, "spec": {"podCIDRs": ["10.244.1.0/24"]}}),
        json!({"kind": "ServiceCIDR", "metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/16"]}}),
    ] {
        server.put(&object).unwrap();
    }
}

/// The events of reading everything once, in a stable order.
fn read(options: Options) -> Vec<String> {
    let (events, troubles) = KubeSource::open(options).unwrap().read_once(PATIENCE).unwrap();
    assert_eq!(troubles, []);
    let mut events: Vec<String> = events.iter().map(|event| format!("{event:?}")).collect();
    events.sort();
    events
}

/// The values of `Accept` that were sent for Services, in order.
fn accepted(server: &Server) -> Vec<String> {
    let of_services = |request: &api::Request| request.kind == Some(api::Kind::Service);
    server.requests().into_iter().filter(of_services).map(|request| request.accept).collect()
}

#[test]
fn protobuf_and_json_give_the_same_events_in_streams_and_in_pages() {
    let server = server();
    fill(&server);
    let json = Options { content_type: JSON.to_owned(), ..options(&server) };
    let expected = read(json.clone());
    assert_eq!(expected.len(), 5);
    assert_eq!(accepted(&server), [JSON]);
    server.forget_requests();
    assert_eq!(read(options(&server)), expected);
    assert_eq!(accepted(&server), [BOTH]);

    server.fault(Fault::NoStreamingLists).unwrap();
    server.forget_requests();
    assert_eq!(read(options(&server)), expected);
    assert_eq!(
        accepted(&server)[..2],
        [BOTH, BOTH],
        "a streaming list that is refused with a Status, and a page"
    );
    assert_eq!(read(json), expected);
}

#[test]
fn accept_content_types_come_first() {
    let server = server();
    fill(&server);
    let accept = "application/json, application/vnd.kubernetes.protobuf;q=0.5";
    read(Options { accept_content_types: accept.to_owned(), ..options(&server) });
    assert_eq!(accepted(&server), [accept]);
}

#[test]
fn a_server_without_protobuf_answers_in_json_or_is_asked_again() {
    let server = server();
    fill(&server);
    let expected = read(options(&server));
    server.fault(Fault::NoProtobuf).unwrap();
    server.forget_requests();
    assert_eq!(read(options(&server)), expected);
    assert_eq!(accepted(&server), [BOTH], "JSON is accepted, too");

    server.forget_requests();
    assert_eq!(read(Options { accept_content_types: PROTOBUF.to_owned(), ..options(&server) }), expected);
    assert_eq!(accepted(&server), [PROTOBUF, JSON], "406, then what it has");
}

/// A watch, and what was reported.
struct Watched {
    watch: KubeWatch,
    updates: Receiver<Update>,
    events: Vec<Event>,
    troubles: Vec<String>,
}

fn watch(options: Options) -> Watched {
    let (sender, updates) = mpsc::channel();
    let watch = KubeSource::open(options).unwrap().watch(move |update| drop(sender.send(update))).unwrap();
    Watched { watch, updates, events: Vec::new(), troubles: Vec::new() }
}

impl Watched {
    fn until(&mut self, mut wanted: impl FnMut(&Update) -> bool) -> &mut Watched {
        loop {
            let Ok(update) = self.updates.recv_timeout(PATIENCE) else {
                panic!("nothing more came after {:?}, {:?}", self.events, self.troubles)
            };
            let found = wanted(&update);
            match update {
                Update::Events(events) => self.events.extend(events),
                Update::Troubles(now) => self.troubles.extend(now.iter().map(ToString::to_string)),
                Update::Listed => {}
                Update::Denied(denial) => panic!("a watch waits for its permissions: {denial:?}"),
            }
            if found {
                return self;
            }
        }
    }

    fn until_listed(&mut self) -> &mut Watched {
        self.until(|update| *update == Update::Listed)
    }

    /// Waits until the slice has `count` endpoints.
    fn until_endpoints(&mut self, count: usize) -> &mut Watched {
        let has = |event: &Event| matches!(event, Event::Slice(slice) if slice.endpoints.len() == count);
        self.until(|update| matches!(update, Update::Events(events) if events.iter().any(has)))
    }

    fn wait_until_slices(&self, holds: impl Fn(&ResourceLiveness) -> bool) {
        wait_until("the watch of the slices is so", || {
            let liveness = self.watch.liveness();
            liveness.resources.iter().any(|it| it.kind == Kind::Slice && holds(it))
        });
    }
}

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn inject(server: &Server, injection: Injection) {
    server.wait_for_watches(api::Kind::EndpointSlice, 1).unwrap();
    assert_eq!(server.inject(api::Kind::EndpointSlice, injection), 1);
}

#[test]
fn changes_deletions_and_bookmarks() {
    let server = server();
    fill(&server);
    let mut watched = watch(options(&server));
    watched.until_listed();
    server.put(&slice("web-1", 7)).unwrap();
    watched.until_endpoints(7);
    server.delete(api::Kind::EndpointSlice, "shop", "web-1").unwrap();
    let gone = Event::SliceGone { namespace: "shop".into(), name: "web-1".into() };
    watched.until(|update| matches!(update, Update::Events(events) if events.contains(&gone)));
    // The object is of another kind: only a bookmark moves the version of the slices.
    let version = server.put(&service("later")).unwrap().to_string();
    watched.wait_until_slices(|it| it.version.as_deref() == Some(&version));
    assert!(server.requests().iter().filter(|it| it.verb == Verb::StreamList).all(|it| it.accept == BOTH));
}

#[test]
fn broken_streams_are_continued_without_a_list() {
    let server = server();
    fill(&server);
    let mut watched = watch(options(&server));
    watched.until_listed();
    let broken = [
        Injection::AbsurdLength,
        Injection::Garbage,
        Injection::Truncated,
        Injection::Cut,
        Injection::Error(500),
    ];
    for (index, injection) in broken.into_iter().enumerate() {
        let before = server.count(api::Kind::EndpointSlice, Verb::Watch);
        inject(&server, injection);
        wait_until("the watch is requested again", || {
            server.count(api::Kind::EndpointSlice, Verb::Watch) > before
        });
        let endpoints = 10 + index;
        server.put(&slice("web-1", endpoints)).unwrap();
        watched.until_endpoints(endpoints);
    }
    watched.wait_until_slices(|it| it.relists == 0);
    assert!(
        server
            .requests()
            .iter()
            .filter(|it| it.kind == Some(api::Kind::EndpointSlice))
            .all(|it| it.accept == BOTH)
    );
}

#[test]
fn an_expired_watch_lists_again() {
    let server = server();
    fill(&server);
    let mut watched = watch(options(&server));
    watched.until_listed();
    inject(&server, Injection::Error(410));
    watched.wait_until_slices(|it| it.relists == 1);
    server.put(&slice("web-1", 5)).unwrap();
    watched.until_endpoints(5);
}

/// One object with the wrong four bytes at its beginning is a trouble; the next one is used.
#[test]
fn an_object_without_its_envelope_stops_no_other() {
    let server = server();
    fill(&server);
    let mut watched = watch(options(&server));
    watched.until_listed();
    inject(&server, Injection::Raw(Bytes::from(protobuf::frame("ADDED", b"k9s\0"))));
    watched.until(|update| matches!(update, Update::Troubles(now) if !now.is_empty()));
    server.put(&slice("web-1", 5)).unwrap();
    watched.until_endpoints(5);
    let expected = "EndpointSlices: one object cannot be used: it is not valid protobuf";
    assert!(watched.troubles.iter().any(|it| it.contains(expected)), "{:?}", watched.troubles);
    watched.wait_until_slices(|it| it.errors == 0);
}

/// A connection that dies within an event is not waited for as long as one that is merely idle.
#[test]
fn half_an_event_that_is_not_continued_is_an_error() {
    // No bookmark comes meanwhile.
    let server = Server::start(api::Options::default()).unwrap();
    fill(&server);
    let mut watched = watch(options(&server));
    watched.until_listed();
    inject(&server, Injection::Raw(Bytes::from_static(b"\0\0\x10\0\x0a\x05ADD")));
    watched.wait_until_slices(|it| it.errors == 1);
    server.put(&slice("web-1", 5)).unwrap();
    watched.until_endpoints(5);
}

#[test]
fn errors_in_protobuf_are_reported_with_their_message() {
    let server = server();
    server.fault_on(On::from(api::Kind::Service), Fault::answer(503)).unwrap();
    let mut watched = watch(options(&server));
    watched.until(|update| matches!(update, Update::Troubles(now) if !now.is_empty()));
    let expected = "answered 503: the server is currently unable to handle the request";
    assert!(watched.troubles.iter().any(|it| it.contains(expected)), "{:?}", watched.troubles);
}
