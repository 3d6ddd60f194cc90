//! Lists, watches, streaming lists and selectors, as a client sees them.

use std::fs;
use std::time::Duration;

use ferroxy_lab::api::cluster::Cluster;
use ferroxy_lab::api::{Fault, Kind, Options, Server, Verb};
use ferroxy_lab::{Capability, Namespace, conformance, require};
use serde_json::{Value, json};

use crate::client::{Client, Next};
use crate::{SERVICES, STREAM, four_services, service};

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

#[test]
fn objects_are_listed_and_got() {
    let (server, client) = four_services();
    let mut elsewhere = service("e");
    elsewhere["metadata"]["namespace"] = "shop".into();
    let version = server.put(&elsewhere).unwrap();

    let list = client.json(SERVICES);
    assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("ServiceList"), &json!("v1")));
    assert_eq!(list["metadata"], json!({"resourceVersion": version.to_string()}));
    assert_eq!(names(&list), ["a", "b", "c", "d", "e"]);
    assert_eq!(list["items"][0].get("kind"), None, "items have no kind, as in the original");
    assert_eq!(names(&client.json("/api/v1/namespaces/shop/services")), ["e"]);
    assert_eq!(names(&client.json("/apis/discovery.k8s.io/v1/endpointslices")), Vec::<&str>::new());

    let one = client.json("/api/v1/namespaces/shop/services/e");
    elsewhere["metadata"]["resourceVersion"] = version.to_string().into();
    assert_eq!(one, elsewhere);
    let none = client.get("/api/v1/namespaces/shop/services/x");
    assert_eq!(none.code, 404);
    let none = none.json();
    assert_eq!((&none["kind"], &none["reason"]), (&json!("Status"), &json!("NotFound")));
    assert_eq!(none["message"], "services \"x\" not found");
    assert_eq!(client.get("/api/v1/configmaps").code, 404);
    assert_eq!(client.get("/api/v1/services?labelSelector=a+notin+(b)").code, 400);
}

#[test]
fn what_is_no_resource() {
    let server = Server::start(Options::default()).unwrap();
    let client = Client::of(&server);
    for path in ["/livez", "/readyz", "/healthz"] {
        assert_eq!(client.get(path).bytes().unwrap(), b"ok");
    }
    assert_eq!(client.json("/version")["major"], "1");
}

#[test]
fn pages_show_one_moment_and_expire() {
    let (server, client) = four_services();
    let first = client.json("/api/v1/services?limit=2");
    assert_eq!(names(&first), ["a", "b"]);
    server.delete(Kind::Service, "default", "c").unwrap();
    server.put(&service("bb")).unwrap();
    let next =
        format!("/api/v1/services?limit=2&continue={}", first["metadata"]["continue"].as_str().unwrap());
    let second = client.json(&next);
    assert_eq!(names(&second), ["c", "d"], "as it was when the first page was read");
    assert_eq!(second["metadata"], json!({"resourceVersion": first["metadata"]["resourceVersion"]}));
    assert_eq!(names(&client.json(SERVICES)), ["a", "b", "bb", "d"]);

    server.compact();
    let expired = client.get(&next);
    assert_eq!(expired.code, 410);
    assert_eq!(expired.json()["reason"], "Expired");
    assert_eq!(client.get("/api/v1/services?limit=2&continue=nonsense").code, 400);
    assert_eq!(server.count(Kind::Service, Verb::List), 5);
}

#[test]
fn lists_of_a_version() {
    let (server, client) = four_services();
    let then = server.version();
    server.delete(Kind::Service, "default", "a").unwrap();
    let path = |query: &str| format!("/api/v1/services?{query}");
    let exact = client.json(&path(&format!("resourceVersion={then}&resourceVersionMatch=Exact")));
    assert_eq!(names(&exact), ["a", "b", "c", "d"]);
    let newer = client.json(&path(&format!("resourceVersion={then}&resourceVersionMatch=NotOlderThan")));
    assert_eq!(names(&newer), ["b", "c", "d"]);
    let any = client.json(&path("resourceVersion=0&limit=1"));
    assert_eq!(names(&any), ["b", "c", "d"], "from the cache, which knows no pages");
    assert_eq!(client.get(&path("resourceVersion=999")).code, 504);
    assert_eq!(client.get(&path("resourceVersion=x")).code, 400);
    assert_eq!(client.get(&path("resourceVersionMatch=Exact")).code, 422);
    assert_eq!(client.get(&path("sendInitialEvents=true")).code, 422);
    server.compact();
    assert_eq!(client.get(&path(&format!("resourceVersion={then}&resourceVersionMatch=Exact"))).code, 410);
}

#[test]
fn a_watch_tells_what_has_changed_since_and_goes_on() {
    let (server, client) = four_services();
    let from = server.version();
    let put = server.put(&service("a")).unwrap();
    server.put(&json!({"kind": "Node", "metadata": {"name": "ka"}})).unwrap();
    let mut watch = client.get(&format!("/api/v1/services?watch=true&resourceVersion={from}"));
    assert_eq!(watch.code, 200);
    assert_eq!(watch.seen(), format!("MODIFIED a {put}"));
    server.wait_for_watches(Kind::Service, 1).unwrap();

    let put = server.put(&service("e")).unwrap();
    assert_eq!(watch.seen(), format!("ADDED e {put}"));
    let gone = server.delete(Kind::Service, "default", "e").unwrap();
    let event = watch.event();
    assert_eq!(event["type"], "DELETED");
    assert_eq!(event["object"]["kind"], "Service", "events have whole objects");
    assert_eq!(event["object"]["spec"]["clusterIP"], "10.96.0.80", "as it was last");
    assert_eq!(event["object"]["metadata"]["resourceVersion"], gone.to_string());
    assert_eq!(server.count(Kind::Service, Verb::Watch), 1);
    assert_eq!(server.connections_accepted(), 1);
    drop((watch, client));
    server.wait_for_watches(Kind::Service, 0).unwrap();
}

#[test]
fn a_watch_without_a_version_begins_with_everything() {
    for query in ["", "&resourceVersion=0"] {
        let (server, client) = four_services();
        let mut watch = client.get(&format!("/api/v1/services?watch=1{query}"));
        let seen: Vec<String> = (0..4).map(|_| watch.seen()).collect();
        assert_eq!(seen, ["ADDED a 2", "ADDED b 3", "ADDED c 4", "ADDED d 5"]);
        server.put(&service("a")).unwrap();
        assert_eq!(watch.seen(), "MODIFIED a 6");
    }
}

#[test]
fn a_watch_from_before_what_is_remembered_has_expired() {
    let server = Server::start(Options { history: 2, ..Options::default() }).unwrap();
    for name in ["a", "b", "c", "d"] {
        server.put(&service(name)).unwrap();
    }
    let client = Client::of(&server);
    // The error comes in the stream, after the status 200, as from a real API server.
    let mut watch = client.get("/api/v1/services?watch=1&resourceVersion=2");
    assert_eq!(watch.code, 200);
    let error = watch.event();
    assert_eq!(error["type"], "ERROR");
    assert_eq!((&error["object"]["code"], &error["object"]["reason"]), (&json!(410), &json!("Expired")));
    assert_eq!(watch.next(), Next::End(String::new()));

    assert_eq!(client.get("/api/v1/services?watch=1&resourceVersion=3").seen(), "ADDED c 4");
    server.compact();
    assert_eq!(client.get("/api/v1/services?watch=1&resourceVersion=3").event()["type"], "ERROR");
    let mut watch = client.get("/api/v1/services?watch=1&resourceVersion=5");
    server.put(&service("e")).unwrap();
    assert_eq!(watch.seen(), "ADDED e 6", "now is never too old");
}

#[test]
fn objects_enter_and_leave_a_selection() {
    let server = Server::start(Options::default()).unwrap();
    let client = Client::of(&server);
    let query =
        "labelSelector=%21service.kubernetes.io%2Fservice-proxy-name&fieldSelector=spec.clusterIP%21%3DNone";
    let other = |name: &str| {
        let mut service = service(name);
        service["metadata"]["labels"] = json!({"service.kubernetes.io/service-proxy-name": "other"});
        service
    };
    let headless =
        json!({"kind": "Service", "metadata": {"name": "headless"}, "spec": {"clusterIP": "None"}});
    server.put_all([service("a"), other("b"), headless].map(|object| object.to_string())).unwrap();
    assert_eq!(names(&client.json(&format!("/api/v1/services?{query}"))), ["a"]);

    let mut watch = client.get(&format!("/api/v1/services?watch=1&resourceVersion=4&{query}"));
    server.put(&other("a")).unwrap();
    assert_eq!(watch.seen(), "DELETED a 5");
    server.put(&other("a")).unwrap();
    server.put(&service("b")).unwrap();
    assert_eq!(watch.seen(), "ADDED b 7", "what happens outside of the selection is not reported");
    server.put(&service("b")).unwrap();
    assert_eq!(watch.seen(), "MODIFIED b 8");

    server.put(&json!({"kind": "Node", "metadata": {"name": "ka"}})).unwrap();
    server.put(&json!({"kind": "Node", "metadata": {"name": "kb"}})).unwrap();
    assert_eq!(names(&client.json("/api/v1/nodes?fieldSelector=metadata.name%3Dkb")), ["kb"]);
}

#[test]
fn a_streaming_list_says_where_its_initial_events_end() {
    let (server, client) = four_services();
    let mut watch = client.get(STREAM);
    for _ in 0..4 {
        assert!(watch.seen().starts_with("ADDED "));
    }
    let end = watch.event();
    assert_eq!(end["type"], "BOOKMARK");
    assert_eq!(end["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    assert_eq!(end["object"]["metadata"]["resourceVersion"], server.version().to_string());
    assert_eq!(end["object"]["kind"], "Service");
    server.put(&service("e")).unwrap();
    assert_eq!(watch.seen(), "ADDED e 6");
    assert_eq!(server.count(Kind::Service, Verb::StreamList), 1);
    assert_eq!(server.count(Kind::Service, Verb::Watch), 0);
    assert_eq!(server.count(Kind::Service, Verb::List), 0);
}

#[test]
fn a_streaming_list_must_be_asked_for_in_the_right_words() {
    let (_server, client) = four_services();
    for query in ["watch=1&sendInitialEvents=true", "watch=1&resourceVersionMatch=NotOlderThan"] {
        let refused = client.get(&format!("/api/v1/services?{query}"));
        assert_eq!(refused.code, 422, "{query}");
        assert_eq!(refused.json()["details"]["causes"][0]["field"], "resourceVersionMatch");
    }
    assert_eq!(client.get(&format!("{STREAM}&resourceVersion=99")).code, 504);
    let none = "/api/v1/services?watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan";
    assert!(client.get(none).silent(), "from now on, and nothing happens");
}

#[test]
fn bookmarks_come_to_those_who_want_them() {
    let options = Options { bookmark_interval: Duration::from_millis(20), ..Options::default() };
    let server = Server::start(options).unwrap();
    server.put(&json!({"kind": "Node", "metadata": {"name": "ka"}})).unwrap();
    let client = Client::of(&server);
    for kind in [Kind::Service, Kind::EndpointSlice, Kind::ServiceCidr] {
        let mut watch =
            client.get(&format!("{}?watch=1&resourceVersion=1&allowWatchBookmarks=true", kind.path(None)));
        let bookmark = watch.event();
        assert_eq!(
            (&bookmark["type"], &bookmark["object"]["kind"]),
            (&json!("BOOKMARK"), &json!(kind.name()))
        );
        assert_eq!(bookmark["object"]["metadata"]["resourceVersion"], "2", "of other kinds' changes, too");
        assert_eq!(bookmark["object"]["metadata"].get("annotations"), None);
        assert_eq!(watch.event()["type"], "BOOKMARK");
    }
    assert!(client.get("/api/v1/services?watch=1&resourceVersion=2").silent());
}

#[test]
fn a_watch_ends_when_its_time_is_up() {
    let (_server, client) = four_services();
    let mut watch = client.get("/api/v1/services?watch=1&resourceVersion=5&timeoutSeconds=1");
    assert_eq!(watch.next(), Next::End(String::new()));
}

#[test]
fn events_are_kept() {
    let server = Server::start(Options::default()).unwrap();
    let client = Client::of(&server);
    let path = "/apis/events.k8s.io/v1/namespaces/default/events";
    let event = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"generateName": "ka-"},
        "eventTime": "2026-01-01T00:00:00.000000Z", "type": "Normal", "reason": "Starting", "action": "StartKubeProxy",
        "reportingController": "kube-proxy", "reportingInstance": "kube-proxy-ka",
        "regarding": {"kind": "Node", "name": "ka"},
    });
    let created = client.post(path, "application/json", &event.to_string()).expect(201);
    assert_eq!(created["metadata"]["name"], "ka-00001");
    let kept = server.events().unwrap();
    assert_eq!(kept.len(), 1);
    assert_eq!(
        (&kept[0]["reason"], &kept[0]["metadata"]["namespace"]),
        (&json!("Starting"), &json!("default"))
    );
    assert_eq!(client.post(path, "application/vnd.kubernetes.protobuf", "k8s").code, 415);
    assert_eq!(client.post(path, "application/json", "{").code, 400);
    assert_eq!(client.post(SERVICES, "application/json", "{}").code, 405);
    assert_eq!(server.count(Kind::Event, Verb::Create), 3);
}

#[test]
fn requests_are_remembered() {
    let (server, client) = four_services();
    client.get("/api/v1/services?labelSelector=%21a&limit=500");
    client.get("/livez");
    let requests = server.requests();
    assert_eq!((requests[0].kind, requests[0].verb), (Some(Kind::Service), Verb::List));
    assert_eq!((requests[0].parameter("labelSelector"), requests[0].parameter("limit")), ("!a", "500"));
    assert_eq!((requests[1].kind, requests[1].path.as_str()), (None, "/livez"));
    server.forget_requests();
    assert_eq!(server.requests(), []);
}

#[test]
fn the_corpus_can_be_served() {
    for case in conformance::cases().unwrap() {
        let server = Server::start(Options::default()).unwrap();
        server.load(&fs::read_to_string(case.folder.join("objects.yaml")).unwrap()).unwrap();
        let client = Client::of(&server);
        assert!(names(&client.json(SERVICES)).contains(&"kubernetes"), "{}", case.name);
        assert_eq!(names(&client.json("/api/v1/nodes")), ["ka", "kb"], "{}", case.name);
        assert_eq!(names(&client.json("/apis/networking.k8s.io/v1/servicecidrs")), ["kubernetes"]);
    }
}

/// The size of the largest cluster that users have reported.
#[test]
fn a_large_cluster_is_paged_streamed_and_churned() {
    let cluster = Cluster::new(44_000, 1);
    let server = Server::start(Options::default()).unwrap();
    server.put_all(cluster.objects()).unwrap();
    let client = Client::of(&server);
    let (mut path, mut paged) = (format!("{SERVICES}?limit=10000"), 0);
    loop {
        let page = client.json(&path);
        paged += names(&page).len();
        let Some(token) = page["metadata"]["continue"].as_str() else { break };
        path = format!("{SERVICES}?limit=10000&continue={token}");
    }
    assert_eq!((paged, server.count(Kind::Service, Verb::List)), (44_000, 5));

    let mut stream = client.get(&STREAM.replace(SERVICES, &Kind::EndpointSlice.path(None)));
    let added = |next: Next| matches!(next, Next::Line(line) if line.starts_with(r#"{"type":"ADDED""#));
    assert_eq!((0..44_000).filter(|_| added(stream.next())).count(), 44_000);
    assert_eq!(stream.event()["type"], "BOOKMARK");
    for round in 0..1_000 {
        let version = server.put_raw(cluster.moved(round, 0, round).as_bytes()).unwrap();
        assert_eq!(stream.seen(), format!("MODIFIED service-{round:05}-0 {version}"));
    }
}

#[test]
fn a_server_listens_where_it_was_started() {
    if !require(&[Capability::NetworkNamespaces]) {
        return;
    }
    let namespace = Namespace::new("api").unwrap();
    let server = namespace.run(|| Server::start(Options::default())).unwrap().unwrap();
    let client = Client::of(&server);
    assert!(client.try_get("/livez").is_err(), "not out here");
    namespace.run(|| assert_eq!(Client::of(&server).get("/livez").code, 200)).unwrap();
    server.fault(Fault::Refuse).unwrap();
    server.clear_faults().unwrap();
    assert!(client.try_get("/livez").is_err(), "not after listening again, either");
    namespace.run(|| assert_eq!(Client::of(&server).get("/livez").code, 200)).unwrap();
}
