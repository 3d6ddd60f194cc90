//! Faults of the server on demand, and that it works again afterwards.

use std::time::Duration;

use bytes::Bytes;
use ferroxy_lab::api::{Fault, Injection, Kind, On, Options, Server, Verb};
use serde_json::json;

use crate::client::{Answer, Client, Next};
use crate::{SERVICES, STREAM, four_services, service};

const WATCH: &str = "/api/v1/services?watch=1&resourceVersion=5";

/// A watch that is known to be open and has no event to send.
fn open_watch(server: &Server, client: &Client) -> Answer {
    let watch = client.get(WATCH);
    server.wait_for_watches(Kind::Service, 1).unwrap();
    watch
}

#[test]
fn refused_connections() {
    let (server, client) = four_services();
    let mut watch = open_watch(&server, &client);
    server.fault(Fault::Refuse).unwrap();
    let error = client.try_get("/livez").err().unwrap();
    assert!(error.contains("refused"), "{error}");
    server.put(&service("a")).unwrap();
    assert_eq!(watch.seen(), "MODIFIED a 6", "what is open stays");
    server.cut();
    assert_eq!(watch.next(), Next::Broken(String::new()));
    server.clear_faults().unwrap();
    assert_eq!(client.get("/livez").code, 200);
}

#[test]
fn connections_and_requests_that_hang() {
    let (server, client) = four_services();
    server.fault(Fault::HangConnections).unwrap();
    assert!(client.hangs("/livez"));
    assert_eq!(server.requests(), [], "nothing was even read");
    server.clear_faults().unwrap();
    assert_eq!(client.get("/livez").code, 200);

    server.fault_on(Kind::Service, Fault::HangRequests).unwrap();
    assert!(client.hangs(SERVICES));
    assert_eq!(server.count(Kind::Service, Verb::List), 1);
    assert_eq!(client.get("/api/v1/nodes").code, 200, "other kinds are well");
    server.clear_faults().unwrap();
    assert_eq!(client.get(SERVICES).code, 200);
}

#[test]
fn every_connection_is_cut() {
    let (server, client) = four_services();
    let mut watches = [open_watch(&server, &client), client.get(WATCH)];
    assert_eq!(server.connections_open(), 2);
    server.cut();
    for watch in &mut watches {
        assert_eq!(watch.next(), Next::Broken(String::new()));
    }
    server.wait_for_watches(Kind::Service, 0).unwrap();
    assert_eq!(client.get("/livez").code, 200, "new ones are well");
}

#[test]
fn answers_by_number() {
    let (server, client) = four_services();
    for (code, reason) in
        [(401, "Unauthorized"), (403, "Forbidden"), (500, "InternalError"), (503, "ServiceUnavailable")]
    {
        server.fault(Fault::answer(code)).unwrap();
        let answer = client.get(SERVICES);
        assert_eq!((answer.code, &answer.retry_after), (code, &None));
        assert_eq!(answer.json()["reason"], reason);
        assert_eq!(client.get("/livez").code, code);
        server.clear_faults().unwrap();
        assert_eq!(client.get(SERVICES).code, 200);
    }
    server.fault(Fault::answer_after(429, Duration::from_secs(7))).unwrap();
    let answer = client.get(SERVICES);
    assert_eq!((answer.code, answer.retry_after.as_deref()), (429, Some("7")));
    assert_eq!(answer.json()["details"]["retryAfterSeconds"], 7);
}

#[test]
fn a_fault_on_one_verb_for_a_time() {
    let (server, client) = four_services();
    server.fault_on(On::from((Kind::Service, Verb::Watch)).times(2), Fault::answer(410)).unwrap();
    assert_eq!(client.get(SERVICES).code, 200);
    assert_eq!(client.get(STREAM).code, 200);
    for code in [410, 410, 200] {
        assert_eq!(client.get(WATCH).code, code);
    }
}

#[test]
fn a_body_is_cut_in_the_middle() {
    let (server, client) = four_services();
    server.fault_on(On::default().times(2), Fault::CutAfter { bytes: 100 }).unwrap();
    assert_eq!(client.get(SERVICES).bytes(), Err(100));
    let mut watch = client.get("/api/v1/services?watch=1");
    let Next::Broken(half) = watch.next() else { panic!("not cut in the first line") };
    assert_eq!(half.len(), 100);
    assert!(client.get(SERVICES).bytes().is_ok());
}

#[test]
fn a_body_comes_in_drops() {
    let (server, client) = four_services();
    let whole = client.get(SERVICES).bytes().unwrap();
    server.fault(Fault::Trickle { bytes: 10, every: Duration::from_millis(1) }).unwrap();
    assert_eq!(client.get(SERVICES).bytes().unwrap(), whole);
    assert_eq!(client.get("/api/v1/services?watch=1").seen(), "ADDED a 2");
    server.clear_faults().unwrap();
    server.fault(Fault::Trickle { bytes: 1, every: Duration::from_secs(3600) }).unwrap();
    assert!(client.get(WATCH).silent());
    let mut slow = client.get("/api/v1/services?watch=1");
    assert!(!slow.silent(), "the first byte has come");
    assert!(slow.silent(), "and that is all");
}

#[test]
fn a_watch_that_falls_silent_stays_silent() {
    let options = Options { bookmark_interval: Duration::from_millis(20), ..Options::default() };
    let server = Server::start(options).unwrap();
    let client = Client::of(&server);
    let mut watch =
        client.get("/api/v1/services?watch=1&resourceVersion=1&allowWatchBookmarks=1&timeoutSeconds=1");
    watch.event();
    server.fault_on(Kind::Service, Fault::SilentWatches).unwrap();
    while !watch.silent() {}
    server.put(&service("a")).unwrap();
    server.inject(Kind::Service, Injection::Garbage);
    let mut new = client.get(STREAM);
    assert_eq!(new.code, 200, "new watches begin well");
    assert!(new.silent() && watch.silent());
    let bookmark = client.get("/api/v1/nodes?watch=1&resourceVersion=1&allowWatchBookmarks=1").event();
    assert_eq!(bookmark["type"], "BOOKMARK", "other kinds are well");

    server.clear_faults().unwrap();
    server.put(&service("b")).unwrap();
    assert!(new.silent() && watch.silent(), "for ever");
    assert_eq!(client.get(STREAM).seen(), "ADDED a 2");
}

#[test]
fn no_bookmarks() {
    let options = Options { bookmark_interval: Duration::from_millis(20), ..Options::default() };
    let server = Server::start(options).unwrap();
    let client = Client::of(&server);
    server.fault(Fault::NoBookmarks).unwrap();
    let mut stream = client.get(STREAM);
    assert_eq!(stream.seen(), "BOOKMARK - 1", "the end of the initial events is no periodic one");
    assert!(stream.silent());
    server.clear_faults().unwrap();
    assert_eq!(client.get("/api/v1/services?watch=1&allowWatchBookmarks=1").seen(), "BOOKMARK - 1");
}

#[test]
fn streaming_lists_that_are_refused_or_never_end() {
    let (server, client) = four_services();
    server.fault(Fault::NoStreamingLists).unwrap();
    let refused = client.get(STREAM);
    assert_eq!(refused.code, 422);
    let refused = refused.json();
    assert_eq!(refused["reason"], "Invalid");
    assert_eq!(refused["details"]["causes"][0]["field"], "sendInitialEvents");
    assert!(refused["message"].as_str().unwrap().starts_with("ListOptions.meta.k8s.io \"\" is invalid: "));
    assert_eq!(client.get(WATCH).code, 200);
    server.clear_faults().unwrap();

    server.fault_on(Verb::StreamList, Fault::EndlessInitialEvents).unwrap();
    let mut stream = client.get(STREAM);
    for _ in 0..4 {
        assert!(stream.seen().starts_with("ADDED"));
    }
    assert!(stream.silent(), "no bookmark");
    server.put(&service("a")).unwrap();
    assert_eq!(stream.seen(), "MODIFIED a 6");
}

#[test]
fn an_error_in_the_stream() {
    let (server, client) = four_services();
    for (code, reason) in [(410, "Expired"), (500, "InternalError")] {
        let mut watch = open_watch(&server, &client);
        assert_eq!(server.inject(Kind::Service, Injection::Error(code)), 1);
        let error = watch.event();
        assert_eq!(error["type"], "ERROR");
        assert_eq!((&error["object"]["code"], &error["object"]["reason"]), (&json!(code), &json!(reason)));
        assert_eq!(watch.next(), Next::End(String::new()));
        server.wait_for_watches(Kind::Service, 0).unwrap();
    }
    assert_eq!(server.inject(Kind::Service, Injection::Error(410)), 0, "there was none to put it in");
}

#[test]
fn garbage_in_the_stream() {
    let (server, client) = four_services();
    let mut watch = open_watch(&server, &client);
    server.inject(Kind::Service, Injection::Garbage);
    let Next::Line(garbage) = watch.next() else { panic!("no line") };
    serde_json::from_str::<serde_json::Value>(&garbage).unwrap_err();
    server.inject(Kind::Service, Injection::Raw(Bytes::from_static(b"{}\n")));
    assert_eq!(watch.next(), Next::Line("{}".to_owned()));
    server.put(&service("a")).unwrap();
    assert_eq!(watch.seen(), "MODIFIED a 6", "and it goes on");
}

#[test]
fn half_an_event() {
    let (server, client) = four_services();
    let half = r#"{"type":"MODIFIED","object":{"kind":"Service","meta"#.to_owned();
    let mut watch = open_watch(&server, &client);
    server.inject(Kind::Service, Injection::Truncated);
    assert_eq!(watch.next(), Next::End(half.clone()));
    server.wait_for_watches(Kind::Service, 0).unwrap();
    let mut watch = open_watch(&server, &client);
    server.inject(Kind::Service, Injection::Cut);
    assert_eq!(watch.next(), Next::Broken(half));
}

#[test]
fn events_that_come_again_or_too_late() {
    let (server, client) = four_services();
    let mut watch = open_watch(&server, &client);
    server.put(&service("a")).unwrap();
    server.put(&service("e")).unwrap();
    server.delete(Kind::Service, "default", "b").unwrap();
    let seen: Vec<String> = (0..3).map(|_| watch.seen()).collect();
    assert_eq!(seen, ["MODIFIED a 6", "ADDED e 7", "DELETED b 8"]);
    server.inject(Kind::Service, Injection::Repeated(3));
    let again: Vec<String> = (0..3).map(|_| watch.seen()).collect();
    assert_eq!(again, seen);
    server.inject(Kind::Service, Injection::Stale(3));
    assert_eq!([watch.seen(), watch.seen()], ["MODIFIED a 2", "MODIFIED b 3"], "e had no earlier state");
    server.put(&service("c")).unwrap();
    assert_eq!(watch.seen(), "MODIFIED c 9");
}

#[test]
fn every_watch_begins_badly() {
    let (server, client) = four_services();
    server.fault_on(Verb::Watch, Fault::WatchesBegin(Injection::Error(410))).unwrap();
    for _ in 0..2 {
        assert_eq!(client.get(WATCH).event()["type"], "ERROR");
    }
    server.clear_faults().unwrap();
    assert!(client.get(WATCH).silent());
}

#[test]
fn objects_no_server_would_have_accepted() {
    let (server, client) = four_services();
    let mut watch = open_watch(&server, &client);
    let huge =
        json!({"kind": "Service", "metadata": {"name": "huge", "annotations": {"a": "x".repeat(8 << 20)}}});
    server.put(&huge).unwrap();
    let event = watch.event();
    assert_eq!(event["object"]["metadata"]["annotations"]["a"].as_str().unwrap().len(), 8 << 20);
    server.put_raw(br#"{"kind":"Service","metadata":{"name":"odd"},"spec":{"ports":"eighty"}}"#).unwrap();
    assert_eq!(watch.event()["object"]["spec"]["ports"], "eighty");
    assert_eq!(client.json(SERVICES)["items"].as_array().unwrap().len(), 6);
}
