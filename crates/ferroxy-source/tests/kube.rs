//! The API as a source, against a server that follows a script: which requests it sends, what it reports, and what happens when
//! answers are late, wrong or missing. The rules themselves are tested beside `kube/list_watch.rs`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on says so"
)]

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use ferroxy_core::{Event, ObjectKind};
use ferroxy_source::kube::{KubeSource, KubeWatch, Options, ReadError, ResourceLiveness, Update};
use ferroxy_source::{Kind, Occurrence, Regarding};
use support::{Answer, END_OF_LIST, Say, Server, added, bookmark, expired, page};

const PATIENCE: Duration = Duration::from_secs(600);

fn options(server: &Server) -> Options {
    Options { master: Some(server.url()), qps: -1.0, ..Options::for_node("ka") }
}

/// A watch, and what it has reported.
struct Watched {
    watch: KubeWatch,
    updates: Receiver<Update>,
    received: Vec<String>,
    /// The Services that were reported.
    known: BTreeSet<String>,
}

fn watch(options: Options) -> Watched {
    let (sender, updates) = mpsc::channel();
    let source = KubeSource::open(options).unwrap();
    let watch = source.watch(move |update| drop(sender.send(update))).unwrap();
    Watched { watch, updates, received: Vec::new(), known: BTreeSet::new() }
}

/// What an event changes for an agent that knows these Services.
fn shown(event: &Event, known: &mut BTreeSet<String>) -> Vec<String> {
    match event {
        Event::Service(it) => {
            known.insert(format!("{}/{}", it.namespace, it.name));
            vec![format!("+{}", it.name)]
        }
        Event::ServiceGone { namespace, name } => {
            known.remove(&format!("{namespace}/{name}"));
            vec![format!("-{namespace}/{name}")]
        }
        Event::Listed { kind: ObjectKind::Service, names } => {
            let gone = known.extract_if(.., |name| !names.contains(name.as_str()));
            gone.map(|name| format!("-{name}")).collect()
        }
        Event::Node(it) => vec![format!("+node {}", it.name)],
        other => vec![format!("{other:?}")],
    }
}

impl Watched {
    /// Takes updates in until one of them is `wanted`.
    fn until(&mut self, wanted: &str) -> &mut Watched {
        while self.received.last().is_none_or(|last| last != wanted) {
            let update = self.updates.recv_timeout(PATIENCE);
            let Ok(update) = update else {
                panic!("timed out waiting for {wanted:?} after {:?}", self.received)
            };
            self.take(update, wanted);
        }
        self
    }

    fn take(&mut self, update: Update, wanted: &str) {
        match update {
            Update::Events(events) => {
                let shown: Vec<String> =
                    events.iter().flat_map(|event| shown(event, &mut self.known)).collect();
                if shown.iter().any(|it| it == wanted) {
                    // An event after it in the same batch would hide it.
                    assert_eq!(shown.last().map(String::as_str), Some(wanted), "{events:?}");
                }
                self.received.extend(shown);
            }
            Update::Listed => self.received.push("listed".to_owned()),
            Update::Denied(denial) => panic!("a watch waits for its permissions: {denial:?}"),
            Update::Troubles(troubles) if troubles.is_empty() => self.received.push("well".to_owned()),
            Update::Troubles(troubles) => {
                let mut troubles: Vec<String> =
                    troubles.iter().map(|it| format!("{}: {}", it.field, it.reason)).collect();
                // The order in which the server refuses several resources is random.
                troubles.sort_by_key(|trouble| trouble == wanted);
                self.received.extend(troubles);
            }
        }
    }

    /// Liveness is updated right after an update is sent.
    fn wait_until_services(&self, holds: impl Fn(&ResourceLiveness) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let liveness = self.watch.liveness();
            let services = liveness.resources.iter().find(|it| it.kind == Kind::Service).unwrap();
            if holds(services) {
                return;
            }
            assert!(Instant::now() < deadline, "{services:?}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Everything received about Services so far.
    fn services(&self) -> Vec<&str> {
        let about = |it: &&str| it.starts_with(['+', '-']) && !it.contains("node");
        self.received.iter().map(String::as_str).filter(about).collect()
    }
}

fn list(lines: &[String], version: u32) -> Answer {
    Answer::Stream(lines.iter().cloned().chain([bookmark(version, END_OF_LIST)]).collect())
}

#[test]
fn a_streaming_list_and_the_watch_it_becomes() {
    let server = Server::start();
    server.answer("services", [list(&[added("a", 5), added("b", 7)], 9)]);
    server.answer("nodes", [list(&[added("ka", 3)], 9)]);
    let mut watched = watch(options(&server));
    watched.until("listed");
    assert_eq!(watched.services(), ["+a", "+b"]);
    assert!(watched.received.contains(&"+node ka".to_owned()));
    server.say("services", Say::Line(added("c", 10)));
    watched.until("+c");
    assert_eq!(watched.received.iter().filter(|it| *it == "listed").count(), 1);
    let target = &server.asked("services")[0].target;
    assert!(
        target.starts_with("/api/v1/services?watch=1&allowWatchBookmarks=true&timeoutSeconds="),
        "{target}"
    );
    watched.wait_until_services(|it| it.version.as_deref() == Some("10"));
    watched.wait_until_services(|it| it.listed && it.connected && it.last_activity.is_some());
    watched.wait_until_services(|it| (it.relists, it.errors) == (0, 0));
}

/// Otherwise the rules made of them would be removed and added again at every start.
#[test]
fn service_cidrs_belong_to_the_first_list_unless_they_cannot_be_had() {
    let server = Server::start();
    server.answer("servicecidrs", [Answer::Stream(vec![added("kubernetes", 5)])]);
    let mut watched = watch(options(&server));
    server.wait_for_request("servicecidrs", 1);
    watched.wait_until_services(|it| it.listed);
    assert!(!watched.updates.try_iter().any(|it| it == Update::Listed));
    server.say("servicecidrs", Say::Line(bookmark(9, END_OF_LIST)));
    watched.until("listed");

    let server = Server::start();
    server.answer("servicecidrs", [Answer::Whole(500, "{}".to_owned())]);
    watch(options(&server)).until("listed");
}

#[test]
fn pages_where_streaming_lists_are_refused_and_a_page_that_is_too_old() {
    let server = Server::start();
    let refusal = r#"{"kind":"Status","code":422,"message":"sendInitialEvents is forbidden"}"#.to_owned();
    let answers = [
        Answer::Whole(422, refusal),
        page(&["a", "b"], 20, "next"),
        Answer::Whole(410, r#"{"kind":"Status","code":410}"#.to_owned()),
        page(&["b"], 30, "next/2"),
        page(&["c"], 30, ""),
    ];
    server.answer("services", answers);
    let mut watched = watch(options(&server));
    watched.until("listed");
    assert_eq!(watched.services(), ["+a", "+b", "+b", "+c", "-n/a"]);
    let watch = server.wait_for_request("services", 6);
    assert!(
        watch.target.contains("watch=1") && watch.target.contains("&resourceVersion=30&"),
        "{}",
        watch.target
    );
    let asked = server.asked("services");
    assert!(asked[1].target.contains("limit=500&labelSelector="), "{}", asked[1].target);
    assert!(asked[4].target.contains("&continue=next%2F2&"), "{}", asked[4].target);
}

#[test]
fn a_cut_watch_continues_after_the_last_bookmark() {
    let server = Server::start();
    server.answer("services", [list(&[added("a", 5)], 9)]);
    let mut watched = watch(options(&server));
    watched.until("listed");
    server.say("services", Say::Line(bookmark(77, "")));
    server.say("services", Say::Cut);
    let again = server.wait_for_request("services", 2);
    assert!(again.target.contains("&resourceVersion=77&"), "{}", again.target);
    server.say("services", Say::Line(bookmark(88, "")));
    server.say("services", Say::End);
    let again = server.wait_for_request("services", 3);
    assert!(again.target.contains("&resourceVersion=88&"), "{}", again.target);
    server.say("services", Say::Line(added("b", 89)));
    watched.until("+b");
    assert_eq!(watched.services(), ["+a", "+b"]);
    assert!(!watched.received.iter().any(|it| it.contains("Services: ")), "{:?}", watched.received);
}

#[test]
fn too_old_at_the_start_of_a_watch_lists_again_and_then_tells_what_is_gone() {
    let server = Server::start();
    let answers = [
        list(&[added("a", 5), added("b", 6)], 9),
        Answer::Whole(410, r#"{"kind":"Status","code":410,"reason":"Expired"}"#.to_owned()),
        Answer::Stream(vec![added("b", 6), added("c", 15)]),
    ];
    server.answer("services", answers);
    let mut watched = watch(options(&server));
    watched.until("listed");
    server.say("services", Say::Cut);
    server.wait_for_request("services", 3);
    while let Ok(update) = watched.updates.try_recv() {
        watched.take(update, "");
    }
    assert!(!watched.received.iter().any(|it| it.starts_with('-')), "the new list is not complete");
    server.say("services", Say::Line(bookmark(20, END_OF_LIST)));
    watched.until("-n/a");
    assert_eq!(watched.services(), ["+a", "+b", "+b", "+c", "-n/a"]);
}

#[test]
fn too_old_in_the_middle_of_a_watch_lists_again() {
    let server = Server::start();
    server.answer("services", [list(&[added("a", 5), added("b", 6)], 9), list(&[added("b", 6)], 30)]);
    let mut watched = watch(options(&server));
    watched.until("listed");
    server.say("services", Say::Line(expired()));
    watched.until("-n/a");
    assert_eq!(watched.services(), ["+a", "+b", "+b", "-n/a"]);
    watched.wait_until_services(|it| it.relists == 1);
}

#[test]
fn garbage_does_not_lose_what_comes_after_it() {
    let server = Server::start();
    let answers = [
        list(&[added("a", 5)], 9),
        Answer::Stream(vec![added("b", 10), "{\"type\":\"ADD".to_owned(), added("lost", 11)]),
        Answer::Stream(vec![added("c", 12)]),
    ];
    server.answer("services", answers);
    let mut watched = watch(options(&server));
    watched.until("listed");
    server.say("services", Say::Cut);
    watched.until("+c");
    assert_eq!(watched.services(), ["+a", "+b", "+c"]);
    let last = &server.asked("services")[2].target;
    assert!(last.contains("&resourceVersion=10&"), "{last}");
}

#[test]
fn garbage_that_stays_is_listed_around() {
    let server = Server::start();
    let garbage = || Answer::Stream(vec!["garbage".to_owned()]);
    server.answer("services", [list(&[added("a", 5)], 9), garbage(), garbage(), garbage()]);
    server.answer("services", [list(&[added("a", 5), added("b", 12)], 20)]);
    let mut watched = watch(options(&server));
    watched.until("listed");
    server.say("services", Say::Cut);
    watched.until("+b");
    assert!(server.asked("services")[4].target.contains("sendInitialEvents"));
    assert!(
        watched.received.iter().any(|it| it.starts_with("Services: sent a line that is not a watch event"))
    );
}

#[test]
fn an_object_that_cannot_be_used_stops_no_other() {
    let server = Server::start();
    let bad = r#"{"type":"ADDED","object":{"metadata":{"labels":7}}}"#.to_owned();
    server.answer("services", [list(&[bad, added("a", 5)], 9)]);
    let mut watched = watch(options(&server));
    watched.until("listed");
    assert_eq!(watched.services(), ["+a"]);
    assert!(watched.received.contains(&"Services: one object cannot be used: it has no name".to_owned()));
}

/// In a directory of its own, with these credentials.
fn kubeconfig(server: &Server, user: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::TempDir::new().unwrap();
    let path = directory.path().join("kubeconfig");
    let text = format!(
        "current-context: here\ncontexts: [{{name: here, context: {{cluster: c, user: u}}}}]\n\
         clusters: [{{name: c, cluster: {{server: '{}'}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n",
        server.url()
    );
    fs::write(&path, text).unwrap();
    (directory, path)
}

#[test]
fn a_refused_token_is_read_again() {
    let server = Server::start();
    let (directory, path) = kubeconfig(&server, "tokenFile: token");
    fs::write(directory.path().join("token"), "old").unwrap();
    server.require_token("new");
    server.answer("services", [list(&[added("a", 5)], 9)]);
    let mut watched = watch(Options { kubeconfig: Some(path), master: None, ..options(&server) });
    watched.until("Services: answered 401: Unauthorized");
    // The newline does not belong to the token.
    fs::write(directory.path().join("token"), "new\n").unwrap();
    watched.until("listed");
    assert_eq!(watched.services(), ["+a"]);
}

#[test]
fn a_program_is_run_again_when_its_token_is_refused() {
    let server = Server::start();
    let user =
        "exec: {apiVersion: client.authentication.k8s.io/v1, command: ./login, interactiveMode: Never}";
    let (directory, path) = kubeconfig(&server, user);
    let program = directory.path().join("login");
    let token = directory.path().join("token");
    let script = format!(
        "#!/bin/sh\necho '{{\"apiVersion\": \"client.authentication.k8s.io/v1\", \"kind\": \"ExecCredential\", \
         \"status\": {{\"token\": \"'$(cat {})'\"}}}}'\n",
        token.display()
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(&token, "first").unwrap();
    server.require_token("second");
    server.answer("services", [list(&[added("a", 5)], 9)]);
    let mut watched = watch(Options { kubeconfig: Some(path), master: None, ..options(&server) });
    watched.until("Services: answered 401: Unauthorized");
    fs::write(&token, "second").unwrap();
    watched.until("listed");
    assert_eq!(watched.services(), ["+a"]);
}

#[test]
fn a_new_token_moves_the_watches_without_listing_again() {
    let server = Server::start();
    let (directory, path) = kubeconfig(&server, "tokenFile: token");
    fs::write(directory.path().join("token"), "old").unwrap();
    server.answer("services", [list(&[added("a", 5)], 9)]);
    let kubeconfig = path.clone();
    let mut watched = watch(Options { kubeconfig: Some(path), master: None, ..options(&server) });
    watched.until("listed");
    fs::write(directory.path().join("token"), "new").unwrap();
    let again = server.wait_for_request("services", 2);
    assert_eq!(again.token, "new");
    assert!(again.target.contains("&resourceVersion=9&"), "{}", again.target);
    // A configuration that cannot be read only causes this message.
    let good = fs::read_to_string(&kubeconfig).unwrap();
    fs::write(&kubeconfig, "clusters: [").unwrap();
    while !watched.received.last().is_some_and(|it| it.starts_with("credentials: kubeconfig ")) {
        let update = watched.updates.recv_timeout(PATIENCE).unwrap();
        watched.take(update, "");
    }
    server.say("services", Say::Line(added("b", 10)));
    watched.until("+b");
    fs::write(&kubeconfig, good).unwrap();
    watched.until("well");
    assert_eq!(watched.services(), ["+a", "+b"]);
}

#[test]
fn a_server_that_falls_silent_is_left() {
    let server = Server::start();
    server.answer("services", [list(&[added("a", 5)], 9)]);
    let mut watched = watch(options(&server));
    watched.until("listed");
    server.freeze(true);
    // The probe is not answered, and then the watches are requested again.
    let again = server.wait_for_request("services", 2);
    assert!(again.target.contains("&resourceVersion=9&"), "{}", again.target);
    assert!(!server.asked("version").is_empty());
    server.freeze(false);
    server.say("services", Say::Cut);
    server.wait_for_request("services", 3);
    server.say("services", Say::Line(added("b", 10)));
    watched.until("+b");
    assert_eq!(watched.services(), ["+a", "+b"]);
}

#[test]
fn reading_once() {
    let server = Server::start();
    server.answer("services", [list(&[added("a", 5), added("b", 6)], 9)]);
    server.answer("servicecidrs", [Answer::Whole(404, "404 page not found".to_owned())]);
    let (events, troubles) = KubeSource::open(options(&server)).unwrap().read_once(PATIENCE).unwrap();
    let shown = |event| shown(event, &mut BTreeSet::new());
    assert_eq!(events.iter().flat_map(shown).collect::<Vec<_>>(), ["+a", "+b"]);
    assert_eq!(troubles, []);
}

#[test]
fn reading_once_from_nobody_says_why() {
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let options = Options { master: Some(format!("http://{unused}")), ..Options::for_node("ka") };
    // On a busy machine the first dial may take longer than the first limits.
    let mut time = Duration::from_secs(2);
    loop {
        let error = KubeSource::open(options.clone()).unwrap().read_once(time).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, ReadError::Timeout { .. }) && text.contains(&unused.to_string()), "{text}");
        if text.contains("Connection refused") {
            break;
        }
        time *= 2;
        assert!(time < PATIENCE, "{text}");
    }
}

#[test]
fn events_for_people() {
    let server = Server::start();
    let watched = watch(options(&server));
    let occurrence = Occurrence {
        regarding: Regarding::Service { namespace: "shop".into(), name: "web".into() },
        reason: "FailedToStartServiceHealthcheck".into(),
        action: "Listen".into(),
        about: String::new(),
        note: "port 31000 is taken".into(),
        warning: true,
    };
    server.answer("events", [Answer::Whole(503, String::new()), Answer::Whole(201, "{}".to_owned())]);
    let recorder = watched.watch.recorder();
    recorder.emit(occurrence.clone());
    let posted = server.wait_for_request("events", 2);
    assert_eq!(posted.method, "POST");
    assert_eq!(posted.target, "/apis/events.k8s.io/v1/namespaces/shop/events");
    assert!(posted.body.contains(r#""note":"port 31000 is taken""#), "{}", posted.body);
    assert!(posted.body.contains(r#""type":"Warning""#), "{}", posted.body);
    // An event that was sent is not repeated.
    recorder.emit(occurrence.clone());
    recorder.emit(Occurrence { reason: "Other".into(), ..occurrence });
    let posted = server.wait_for_request("events", 3);
    assert!(posted.body.contains(r#""reason":"Other""#), "{}", posted.body);
}
