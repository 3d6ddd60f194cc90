//! Tests of `list_watch.rs`: what to do next after each thing an API server can answer.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use ferroxy_core::Event;

use super::*;
use crate::kube::Options;

const SERVER: &str = "https://192.0.2.1:6443";

/// A machine, a clock, and what came out.
struct Bench {
    machine: ListWatch,
    now: Instant,
    out: Outlet,
    events: Rc<RefCell<Vec<String>>>,
}

fn bench(kind: Kind) -> Bench {
    let events = Rc::new(RefCell::new(Vec::new()));
    let sink = Rc::clone(&events);
    let mut known = BTreeSet::new();
    let out = Outlet::new(move |events| {
        sink.borrow_mut().extend(events.iter().flat_map(|event| shown(event, &mut known)));
    });
    Bench { machine: ListWatch::new(kind, SERVER, accept(), || 1.0), now: Instant::now(), out, events }
}

fn accept() -> Accept {
    Accept::new(&Options::for_node("ka"))
}

/// What an event changes for an agent that knows these objects.
fn shown(event: &Event, known: &mut BTreeSet<String>) -> Vec<String> {
    let mut come = |name: &str, key: String| {
        known.insert(key);
        vec![format!("+{name}")]
    };
    let gone = match event {
        Event::Service(it) => return come(&it.name, format!("{}/{}", it.namespace, it.name)),
        Event::Slice(it) => return come(&it.name, format!("{}/{}", it.namespace, it.name)),
        Event::Node(it) => return come(&it.name, it.name.clone()),
        Event::ServiceCidr(it) => return come(&it.name, it.name.clone()),
        Event::HostAddresses(_) => return vec!["host".to_owned()],
        Event::Verdict(_) => return vec!["verdict".to_owned()],
        Event::ServiceGone { namespace, name } | Event::SliceGone { namespace, name } => {
            BTreeSet::from([format!("{namespace}/{name}")])
        }
        Event::NodeGone { name } | Event::ServiceCidrGone { name } => BTreeSet::from([name.clone()]),
        Event::Listed { names, .. } => {
            known.iter().filter(|name| !names.contains(name.as_str())).cloned().collect()
        }
    };
    gone.iter().filter(|name| known.remove(*name)).map(|name| format!("-{name}")).collect()
}

fn object(name: &str, version: u32) -> String {
    format!(r#"{{"metadata":{{"name":"{name}","namespace":"n","resourceVersion":"{version}"}}}}"#)
}

fn bookmark(version: u32) -> String {
    format!(r#"{{"type":"BOOKMARK","object":{{"metadata":{{"resourceVersion":"{version}"}}}}}}"#)
}

fn list_end(version: u32) -> String {
    format!(
        r#"{{"type":"BOOKMARK","object":{{"metadata":{{"resourceVersion":"{version}","annotations":{{"k8s.io/initial-events-end":"true"}}}}}}}}"#
    )
}

fn error(code: u16, message: &str) -> String {
    format!(r#"{{"type":"ERROR","object":{{"kind":"Status","code":{code},"message":"{message}"}}}}"#)
}

fn watch(version: &str) -> Ask {
    Ask::Watch { version: version.to_owned() }
}

fn first_page() -> Ask {
    Ask::Page { limit: PAGE, token: None }
}

impl Bench {
    fn lines(&mut self, lines: &[String]) -> Go {
        let mut go = Go::On;
        for line in lines {
            go = self.machine.line(line.as_bytes(), self.now, &mut self.out);
        }
        self.out.flush();
        go
    }

    fn added(&mut self, name: &str, version: u32) -> Go {
        self.lines(&[format!(r#"{{"type":"ADDED","object":{}}}"#, object(name, version))])
    }

    fn deleted(&mut self, name: &str, version: u32) -> Go {
        self.lines(&[format!(r#"{{"type":"DELETED","object":{}}}"#, object(name, version))])
    }

    fn answered(&mut self) {
        self.machine.answered(Encoding::Json, self.now);
    }

    fn refused(&mut self, code: u16, message: &str, retry_after: Option<u64>) {
        let status = Status { code, message: message.to_owned(), reason: String::new() };
        self.machine.refused(status, retry_after.map(Duration::from_secs), self.now, &mut self.out);
        self.out.flush();
    }

    fn page(&mut self, names: &[&str], version: &str, token: &str) {
        self.answered();
        let items: Vec<String> = names.iter().map(|name| object(name, 1)).collect();
        let items = items.join(",");
        let body = format!(
            r#"{{"metadata":{{"resourceVersion":"{version}","continue":"{token}"}},"items":[{items}]}}"#
        );
        self.machine.page(body.as_bytes(), self.now, &mut self.out);
        self.out.flush();
    }

    /// A streaming list of these, ended at this version.
    fn listed(&mut self, names: &[&str], version: u32) {
        assert_eq!(self.machine.ask(), Ask::StreamingList);
        self.answered();
        for name in names {
            self.added(name, 1);
        }
        self.lines(&[list_end(version)]);
    }

    fn events(&mut self) -> Vec<String> {
        std::mem::take(&mut *self.events.borrow_mut())
    }

    fn wait_seconds(&self) -> f64 {
        self.machine.wait().map_or(0.0, |wait| (wait.until - self.now).as_secs_f64())
    }

    fn troubles(&self) -> Vec<String> {
        self.machine.troubles().iter().map(ToString::to_string).collect()
    }
}

#[test]
fn a_server_that_refuses_the_encoding_is_asked_for_json_at_once() {
    for code in [406, 415] {
        let mut bench = bench(Kind::Service);
        assert_ne!(bench.machine.accept.header(), "application/json");
        bench.refused(code, "only JSON", None);
        assert_eq!(bench.machine.accept.header(), "application/json");
        assert_eq!((bench.machine.ask(), bench.machine.wait()), (Ask::StreamingList, None));
        assert_eq!(bench.troubles(), Vec::<String>::new());
        bench.refused(code, "not even JSON", None);
        assert_eq!(bench.troubles().len(), 1);
        assert!(bench.wait_seconds() > 0.0);
        bench.machine.change_server("https://192.0.2.2:6443");
        assert_ne!(bench.machine.accept.header(), "application/json", "another server may have it");
    }
}

#[test]
fn protobuf_that_cannot_be_read_leads_to_json() {
    let mut watching = bench(Kind::Service);
    watching.listed(&["a"], 100);
    let mut paging = bench(Kind::Service);
    paging.refused(422, "", None);
    for attempt in 1..=3 {
        watching.machine.answered(Encoding::Protobuf, watching.now);
        let go = watching.machine.line(b"garbage", watching.now, &mut watching.out);
        assert_eq!(go, Go::Reconnect);
        paging.machine.answered(Encoding::Protobuf, paging.now);
        paging.machine.page(b"garbage", paging.now, &mut paging.out);
        for machine in [&watching.machine, &paging.machine] {
            assert_eq!(machine.accept.header() == "application/json", attempt == 3, "{attempt}");
        }
        let stuck =
            watching.troubles().iter().any(|it| it.contains("sent a frame that is not a watch event"));
        assert_eq!(stuck, attempt == 2, "{attempt}");
    }
    let reason = "sent a list that cannot be read: it does not begin with the API's four bytes";
    assert!(paging.troubles()[0].contains(reason), "{:?}", paging.troubles());
}

#[test]
fn a_streaming_list_is_complete_at_its_bookmark_and_goes_on_as_a_watch() {
    let mut bench = bench(Kind::Service);
    assert_eq!(bench.machine.ask(), Ask::StreamingList);
    bench.answered();
    bench.added("a", 90);
    bench.lines(&[bookmark(95)]);
    assert!(!bench.machine.is_listed());
    assert_eq!(bench.machine.version(), None, "the versions of listed objects are no place to continue from");
    bench.lines(&[list_end(100)]);
    assert!(bench.machine.is_listed());
    assert_eq!(bench.machine.ask(), watch("100"));
    bench.added("b", 101);
    assert_eq!(bench.machine.ask(), watch("101"));
    assert_eq!(bench.events(), ["+a", "+b"]);
}

#[test]
fn bookmarks_and_deletions_move_the_version_and_it_never_goes_back() {
    let mut bench = bench(Kind::Service);
    bench.listed(&["a", "b"], 100);
    bench.lines(&[bookmark(150)]);
    assert_eq!(bench.machine.ask(), watch("150"));
    bench.deleted("a", 151);
    assert_eq!(bench.machine.ask(), watch("151"));
    bench.added("c", 120);
    bench.lines(&[bookmark(140)]);
    assert_eq!(bench.machine.ask(), watch("151"));
    assert_eq!(bench.events(), ["+a", "+b", "-n/a"]);
}

#[test]
fn what_is_older_than_the_watch_is_not_reported() {
    let mut bench = bench(Kind::Service);
    bench.listed(&["a"], 100);
    bench.added("a", 105);
    bench.events();
    bench.added("a", 104);
    bench.deleted("a", 103);
    assert_eq!(bench.events(), Vec::<String>::new());
    bench.added("a", 105);
    bench.deleted("a", 107);
    bench.added("a", 108);
    assert_eq!(bench.events(), ["+a", "-n/a", "+a"]);
}

#[test]
fn what_is_gone_does_not_come_back_from_the_past() {
    let mut bench = bench(Kind::Service);
    bench.listed(&["a"], 100);
    bench.deleted("a", 101);
    bench.deleted("never-seen", 106);
    bench.events();
    bench.added("a", 99);
    bench.added("a", 105);
    bench.lines(&[bookmark(50)]);
    assert_eq!((bench.events(), bench.machine.ask()), (Vec::new(), watch("106")));
}

#[test]
fn versions_that_are_no_numbers_are_taken_as_they_come() {
    let mut bench = bench(Kind::Service);
    bench.listed(&["a"], 100);
    bench.lines(&[
        r#"{"type":"MODIFIED","object":{"metadata":{"name":"a","namespace":"n","resourceVersion":"x-7"}}}"#
            .to_owned(),
    ]);
    assert_eq!(bench.machine.ask(), watch("x-7"));
    assert_eq!(bench.events(), ["+a", "+a"]);
}

#[test]
fn servers_without_streaming_lists_are_asked_for_pages_from_then_on() {
    for code in [400, 403, 405, 422, 501] {
        let mut bench = bench(Kind::Service);
        bench.refused(code, "sendInitialEvents is forbidden", None);
        assert_eq!((bench.machine.ask(), bench.machine.wait()), (first_page(), None), "{code}");
        assert_eq!(bench.troubles(), Vec::<String>::new());
        bench.page(&["a", "b"], "50", "next");
        assert!(!bench.machine.is_listed());
        assert_eq!(bench.machine.ask(), Ask::Page { limit: PAGE, token: Some("next".to_owned()) });
        bench.page(&["c"], "50", "");
        assert!(bench.machine.is_listed());
        assert_eq!(bench.machine.ask(), watch("50"));
        bench.answered();
        bench.lines(&[error(410, "too old")]);
        assert_eq!(bench.machine.ask(), first_page(), "it is remembered");
        assert_eq!(bench.events(), ["+a", "+b", "+c"]);
    }
}

#[test]
fn other_refusals_of_a_streaming_list_do_not_change_the_way() {
    for code in [401, 429, 500, 503] {
        let mut bench = bench(Kind::Service);
        bench.refused(code, "", None);
        assert_eq!(bench.machine.ask(), Ask::StreamingList, "{code}");
        assert!(bench.machine.wait().is_some());
    }
}

#[test]
fn streaming_lists_that_never_end_are_given_up() {
    let mut bench = bench(Kind::Service);
    bench.answered();
    bench.added("a", 1);
    bench.machine.ended(bench.now);
    assert_eq!(bench.machine.ask(), Ask::StreamingList);
    bench.answered();
    bench.machine.broken("silent for 15 seconds".to_owned(), bench.now);
    assert_eq!(bench.machine.ask(), first_page());
}

#[test]
fn connections_that_never_came_to_be_say_nothing_about_streaming_lists() {
    let mut bench = bench(Kind::Service);
    for _ in 0..10 {
        bench.machine.broken("connection refused".to_owned(), bench.now);
    }
    assert_eq!(bench.machine.ask(), Ask::StreamingList);
}

#[test]
fn a_page_that_is_too_old_begins_the_list_again() {
    let mut bench = bench(Kind::Service);
    bench.refused(422, "", None);
    bench.page(&["a", "b"], "50", "next");
    bench.refused(410, "The provided continue parameter is too old", None);
    assert_eq!(bench.machine.ask(), first_page());
    bench.page(&["b"], "60", "");
    assert_eq!(bench.events(), ["+a", "+b", "+b", "-n/a"]);
    assert_eq!(bench.machine.ask(), watch("60"));
}

#[test]
fn pages_that_cannot_be_read_begin_the_list_again() {
    let mut bench = bench(Kind::Service);
    bench.refused(422, "", None);
    bench.page(&["a"], "50", "next");
    bench.answered();
    bench.machine.page(b"{\"items\": [", bench.now, &mut bench.out);
    assert_eq!(bench.machine.ask(), first_page());
    assert!(bench.wait_seconds() > 0.0);
    bench.page(&["a"], "", "");
    assert!(!bench.machine.is_listed(), "without a version there is nothing to watch from");
    bench.machine.page_too_large(bench.now);
    assert_eq!(bench.machine.ask(), Ask::Page { limit: PAGE / 2, token: None });
}

#[test]
fn removals_are_reported_when_the_new_list_is_complete_and_not_before() {
    for at_start in [true, false] {
        let mut bench = bench(Kind::Service);
        bench.listed(&["a", "b", "c"], 100);
        bench.events();
        if at_start {
            bench.refused(410, "too old resource version", None);
        } else {
            bench.answered();
            assert_eq!(bench.lines(&[error(410, "too old")]), Go::Reconnect);
        }
        assert_eq!(bench.machine.ask(), Ask::StreamingList);
        assert_eq!(bench.troubles(), Vec::<String>::new());
        bench.answered();
        bench.added("b", 1);
        // The list breaks off; one object that it had reported is gone when the list is repeated.
        bench.added("new", 150);
        bench.machine.broken("connection reset".to_owned(), bench.now);
        assert_eq!(bench.events(), ["+b", "+new"]);
        bench.listed(&["b"], 200);
        assert_eq!(bench.events(), ["+b", "-n/a", "-n/c", "-n/new"]);
        assert_eq!((bench.machine.relists(), bench.machine.ask()), (1, watch("200")));
    }
}

#[test]
fn after_a_restored_backup_versions_may_be_lower() {
    let mut bench = bench(Kind::Service);
    bench.listed(&["a"], 1000);
    bench.added("a", 1001);
    bench.refused(504, "Too large resource version: 1001, current: 10", None);
    bench.events();
    bench.listed(&["a"], 10);
    assert_eq!((bench.events(), bench.machine.ask()), (vec!["+a".to_owned()], watch("10")));
}

#[test]
fn a_cut_watch_continues_where_it_was() {
    let mut bench = bench(Kind::Service);
    bench.listed(&["a"], 100);
    bench.machine.broken("connection reset".to_owned(), bench.now);
    assert_eq!(bench.machine.ask(), watch("100"));
    assert_eq!(bench.wait_seconds(), 0.8);
    assert_eq!(bench.troubles(), Vec::<String>::new(), "once is no trouble");
    bench.machine.broken("connection refused".to_owned(), bench.now);
    assert_eq!(bench.wait_seconds(), 1.6);
    let trouble = format!(
        "API server {SERVER}: Services: connection refused; changes of Services are not received; the last known state stays in force"
    );
    assert_eq!(bench.troubles(), [trouble]);
    assert_eq!(bench.machine.troubles()[0].cause, Cause::SourceStale, "everything was listed once");
    bench.answered();
    assert_eq!((bench.troubles().len(), bench.machine.wait()), (0, None));
    assert_eq!(bench.machine.errors(), 2);
}

#[test]
fn waits_grow_until_a_watch_has_worked() {
    let mut bench = bench(Kind::Service);
    bench.listed(&["a"], 100);
    let mut cut_after = |seconds| {
        bench.answered();
        bench.now += Duration::from_secs(seconds);
        bench.machine.broken("connection reset".to_owned(), bench.now);
        bench.wait_seconds()
    };
    assert_eq!([cut_after(1), cut_after(1), cut_after(1)], [0.8, 1.6, 3.2]);
    assert_eq!([cut_after(10), cut_after(1)], [0.8, 1.6]);
}

#[test]
fn a_watch_that_ends_in_good_order_is_asked_for_again_at_once() {
    let mut bench = bench(Kind::Service);
    bench.listed(&["a"], 100);
    bench.now += Duration::from_secs(300);
    bench.machine.ended(bench.now);
    assert_eq!((bench.machine.ask(), bench.machine.wait()), (watch("100"), None));
    // A server that ends every watch at once must not get requests in a tight loop.
    bench.answered();
    bench.machine.ended(bench.now);
    assert!(bench.wait_seconds() > 0.0);
}

#[test]
fn connections_that_are_accepted_and_cut_are_a_trouble() {
    let mut bench = bench(Kind::Service);
    bench.listed(&["a"], 100);
    for silent in [false, true, true] {
        assert_eq!(bench.troubles(), Vec::<String>::new());
        bench.machine.broken("connection reset".to_owned(), bench.now);
        assert_eq!(bench.troubles().len(), usize::from(silent));
        bench.answered();
    }
    bench.now += Duration::from_secs(60);
    bench.machine.broken("connection reset".to_owned(), bench.now);
    assert_eq!(bench.troubles(), Vec::<String>::new(), "that one worked for a while");
}

#[test]
fn before_the_first_list_every_failure_is_a_trouble() {
    let mut bench = bench(Kind::Slice);
    bench.machine.broken("connection refused".to_owned(), bench.now);
    let trouble =
        format!("API server {SERVER}: EndpointSlices: connection refused; no EndpointSlice is known yet");
    assert_eq!(bench.troubles(), [trouble]);
    bench.listed(&[], 5);
    assert_eq!(bench.troubles(), Vec::<String>::new());
}

#[test]
fn garbage_is_tried_again_and_then_listed_around() {
    let mut bench = bench(Kind::Service);
    bench.listed(&["a"], 100);
    bench.events();
    let garbage = "{\"type\":\"ADDED\",\"obj".to_owned();
    for _ in 1..STUCK {
        assert_eq!(bench.lines(std::slice::from_ref(&garbage)), Go::Reconnect);
        assert_eq!(bench.machine.ask(), watch("100"));
        bench.answered();
    }
    assert_eq!(bench.troubles().len(), 1, "an answer alone does not mean that it works again");
    bench.lines(std::slice::from_ref(&garbage));
    assert_eq!(bench.machine.ask(), Ask::StreamingList);
    bench.listed(&["a", "b"], 200);
    assert_eq!((bench.events(), bench.troubles()), (vec!["+a".to_owned(), "+b".to_owned()], vec![]));
}

#[test]
fn garbage_that_has_passed_is_forgotten() {
    let mut bench = bench(Kind::Service);
    bench.listed(&["a"], 100);
    for version in 101..120 {
        bench.lines(&["garbage".to_owned()]);
        bench.answered();
        bench.added("a", version);
        assert_eq!(bench.machine.ask(), watch(&version.to_string()));
        assert_eq!(bench.troubles(), Vec::<String>::new());
    }
}

#[test]
fn other_errors_in_the_stream_continue_where_it_was() {
    let mut bench = bench(Kind::Service);
    bench.listed(&["a"], 100);
    assert_eq!(bench.lines(&[error(500, "etcdserver: leader changed")]), Go::Reconnect);
    assert_eq!(bench.machine.ask(), watch("100"));
    assert!(bench.wait_seconds() > 0.0);
}

#[test]
fn an_overloaded_server_is_not_listed_again() {
    let mut bench = bench(Kind::Service);
    bench.listed(&["a"], 100);
    for code in [500, 503, 429, 401].repeat(5) {
        bench.refused(code, "", None);
        assert_eq!(bench.machine.ask(), watch("100"), "{code}");
    }
    for _ in 0..STUCK {
        bench.refused(400, "no such version", None);
    }
    assert_eq!(bench.machine.ask(), Ask::StreamingList);
}

#[test]
fn retry_after_is_obeyed_within_bounds() {
    let mut bench = bench(Kind::Service);
    bench.refused(429, "", Some(7));
    assert_eq!(bench.wait_seconds(), 7.0);
    assert!(bench.machine.wait().is_some_and(|wait| !wait.until_recovery));
    bench.refused(503, "", Some(86_400));
    assert_eq!(bench.wait_seconds(), 60.0);
    bench.refused(500, "", Some(7));
    assert_eq!(bench.wait_seconds(), 3.2);
    assert!(bench.machine.wait().is_some_and(|wait| wait.until_recovery));
}

#[test]
fn a_server_without_service_cidrs_is_no_trouble() {
    let mut bench = bench(Kind::ServiceCidr);
    bench.refused(404, "the server could not find the requested resource", None);
    assert_eq!((bench.wait_seconds(), bench.troubles()), (180.0, vec![]));
    assert!(bench.machine.is_settled() && !bench.machine.is_listed());
    bench.listed(&["kubernetes"], 5);
    bench.refused(404, "gone after a downgrade", None);
    assert_eq!(bench.events(), ["+kubernetes", "-kubernetes"]);
    let mut services = self::bench(Kind::Service);
    services.refused(404, "", None);
    assert_eq!(services.troubles().len(), 1);
}

#[test]
fn an_object_with_wrong_fields_is_a_trouble_as_long_as_it_is_there() {
    let mut bench = bench(Kind::Service);
    bench.listed(&["a"], 100);
    let wrong = r#"{"type":"MODIFIED","object":{"metadata":{"name":"a","namespace":"n","resourceVersion":"101"},"spec":7}}"#;
    bench.lines(&[wrong.to_owned()]);
    assert_eq!(
        bench.troubles(),
        ["Service n/a: spec: must be a mapping, but is a number; the field is treated as absent"]
    );
    bench.added("a", 102);
    assert_eq!(bench.troubles(), Vec::<String>::new());
    bench.lines(&[wrong.replace("101", "103")]);
    bench.deleted("a", 104);
    assert_eq!(bench.troubles(), Vec::<String>::new());
}

#[test]
fn an_object_that_cannot_be_used_is_one_trouble_and_stops_nothing() {
    let mut bench = bench(Kind::Service);
    bench.answered();
    let nameless = r#"{"type":"ADDED","object":{"metadata":{}}}"#.to_owned();
    assert_eq!(bench.lines(&[nameless.clone(), nameless]), Go::On);
    bench.added("a", 1);
    bench.lines(&[list_end(100)]);
    let trouble =
        format!("API server {SERVER}: Services: one object cannot be used: it has no name; it is ignored");
    assert_eq!((bench.events(), bench.troubles()), (vec!["+a".to_owned()], vec![trouble]));
    assert_eq!(bench.machine.troubles()[0].cause, Cause::SourceIncomplete, "it may be any object");
}

#[test]
fn a_slice_that_becomes_headless_is_gone() {
    let mut bench = bench(Kind::Slice);
    bench.listed(&["s"], 100);
    let headless = r#"{"type":"MODIFIED","object":{"metadata":{"name":"s","namespace":"n","resourceVersion":"101","labels":{"service.kubernetes.io/headless":""}}}}"#;
    bench.lines(&[headless.to_owned()]);
    assert_eq!(bench.events(), ["+s", "-n/s"]);
}

#[test]
fn cluster_wide_kinds_go_by_their_bare_name() {
    let mut bench = bench(Kind::Node);
    bench.listed(&["ka"], 100);
    bench.deleted("ka", 101);
    assert_eq!(bench.events(), ["+ka", "-ka"]);
}

#[test]
fn a_list_comes_out_in_batches() {
    let sizes = Rc::new(RefCell::new(Vec::new()));
    let sink = Rc::clone(&sizes);
    let mut out = Outlet::new(move |events: Vec<Event>| sink.borrow_mut().push(events.len()));
    let mut machine = ListWatch::new(Kind::Service, SERVER, accept(), || 1.0);
    let now = Instant::now();
    machine.answered(Encoding::Json, now);
    for i in 0..2_500 {
        let line = format!(r#"{{"type":"ADDED","object":{}}}"#, object(&format!("s{i}"), 1));
        machine.line(line.as_bytes(), now, &mut out);
    }
    assert_eq!(*sizes.borrow(), [1_000, 1_000]);
    machine.line(list_end(9).as_bytes(), now, &mut out);
    assert_eq!(*sizes.borrow(), [1_000, 1_000, 500]);
}
