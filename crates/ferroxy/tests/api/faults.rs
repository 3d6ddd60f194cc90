//! Everything that can go wrong between the agent and the API server, under traffic: no connection is lost, the right
//! state comes once the fault is over, and nothing is listed again that need not be.
//!
//! One table of scenes. Each has a network, a server and an agent of its own and plays its faults one after the other;
//! all scenes play at once, because most of their time is waiting.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::{Duration, Instant};

use ferroxy_lab::api::{Access, Fault, Injection, Kind, Login, On, Verb};
use ferroxy_lab::{Answer, Protocol};
use serde_json::json;

use crate::support::{
    Agent, DEADLINE, Service, Setting, Stage, Traffic, ask_from, http_get, nft, pod_from, wait_until,
};

struct Scene {
    setting: Setting,
    faults: Vec<Trouble>,
}

/// One fault.
struct Trouble {
    name: &'static str,
    /// The agent is not there when it strikes, and has to start under it.
    at_start: bool,
    strike: fn(&Stage),
    /// Whether it had its effect: then it ends.
    struck: fn(&Stage, &Agent) -> bool,
    /// What ends it, beside clearing the server's faults.
    mend: fn(&Stage),
    /// How many lists of Services and EndpointSlices it costs. None where that is chance.
    lists: Option<usize>,
    /// What else must be so afterwards.
    then: fn(&Stage),
}

impl Trouble {
    /// Under a running agent, over as soon as it has begun, and at no cost.
    fn new(name: &'static str, strike: fn(&Stage)) -> Trouble {
        Trouble {
            name,
            at_start: false,
            strike,
            struck: |_, _| true,
            mend: |_| {},
            lists: Some(0),
            then: |_| {},
        }
    }

    /// The agent starts under it, which takes its two lists at least.
    fn at_start(name: &'static str, strike: fn(&Stage)) -> Trouble {
        Trouble { at_start: true, lists: Some(2), ..Trouble::new(name, strike) }
    }

    fn until(self, struck: fn(&Stage, &Agent) -> bool) -> Trouble {
        Trouble { struck, ..self }
    }

    fn mended_by(self, mend: fn(&Stage)) -> Trouble {
        Trouble { mend, ..self }
    }

    fn costs_lists(self, lists: usize) -> Trouble {
        Trouble { lists: Some(lists), ..self }
    }

    fn costs_any_number_of_lists(self) -> Trouble {
        Trouble { lists: None, ..self }
    }

    fn then(self, then: fn(&Stage)) -> Trouble {
        Trouble { then, ..self }
    }
}

#[test]
fn every_fault_passes_without_a_trace() {
    if crate::support::network().is_none() {
        return;
    }
    let failed: Vec<String> = thread::scope(|scope| {
        let playing: Vec<_> = scenes().into_iter().map(|scene| scope.spawn(move || play(scene))).collect();
        playing.into_iter().filter_map(|scene| scene.join().unwrap().err()).collect()
    });
    assert!(failed.is_empty(), "failed (see above): {failed:?}");
}

/// The error is the name of the fault that did not pass.
fn play(scene: Scene) -> Result<(), String> {
    let mut at = "the start";
    let began = Instant::now();
    let played = catch_unwind(AssertUnwindSafe(|| {
        let stage = Stage::new(scene.setting).unwrap();
        let mut agent = stage.start();
        let traffic = Traffic::light(&stage.network);
        for trouble in &scene.faults {
            at = trouble.name;
            agent = pass(&stage, agent, trouble);
            println!("{:>5.1} s  {at}", began.elapsed().as_secs_f32());
        }
        traffic.was_undisturbed();
    }));
    played.map_err(|_| at.to_owned())
}

fn pass(stage: &Stage, agent: Agent, trouble: &Trouble) -> Agent {
    let running = if trouble.at_start {
        agent.kill();
        None
    } else {
        Some(agent)
    };
    stage.server.forget_requests();
    (trouble.strike)(stage);
    stage.move_other();
    let agent = running.unwrap_or_else(|| stage.spawn());
    wait_until(&format!("{} has struck", trouble.name), DEADLINE, || (trouble.struck)(stage, &agent));
    if trouble.at_start && agent.said("in sync") == 0 {
        stage.other_was_left_alone();
    }
    stage.server.clear_faults().unwrap();
    (trouble.mend)(stage);
    stage.wait_for_other();
    if let Some(lists) = trouble.lists {
        assert_eq!(stage.lists(), lists, "lists of {}: {:#?}", trouble.name, stage.server.requests());
    }
    (trouble.then)(stage);

    stage.move_other();
    stage.wait_for_other();
    agent.settle(stage.ka());
    assert_eq!(agent.said("drift"), 0, "{}", agent.log());
    agent
}

/// More than one fault in a scene makes the waits before the next attempt longer: where attempts fail, few go together.
fn scenes() -> Vec<Scene> {
    let plain = |faults: Vec<Trouble>| Scene { setting: Setting::default(), faults };
    let mut scenes: Vec<Scene> = vec![
        plain(vec![cut(), refused(), no_bookmarks()]),
        plain(vec![hung_connections()]),
        plain(vec![hung_requests()]),
        plain(vec![hung_server()]),
        plain(vec![answers_500(), answers_503(), answers_429()]),
        plain(vec![
            repeated_events(),
            stale_events(),
            wrong_types(),
            a_huge_object(),
            times_of_another_clock(),
        ]),
        plain(vec![garbage(), truncated_event(), cut_in_an_event(), error_event()]),
        plain(vec![expired_in_mid_stream(), expired_at_the_start_of_a_watch(), compacted_while_away()]),
        plain(vec![away_at_start(), half_listed()]),
        plain(vec![refused_lists(), a_list_that_is_cut(), no_streaming_lists(), trickling_lists()]),
        plain(vec![endless_lists()]),
        Scene {
            setting: Setting { host: "api", address: "172.31.255.1:6443", ..Setting::default() },
            faults: vec![vanished()],
        },
    ];
    scenes.extend(logins());
    scenes
}

fn logins() -> [Scene; 4] {
    let scene = |access, login, faults| Scene {
        setting: Setting { tls: true, access, login, ..Setting::default() },
        faults,
    };
    let rotated = |name| Trouble::new(name, rotate_credentials);
    [
        scene(
            Access::Token,
            Login::TokenFile,
            vec![rotated("a token file is rotated"), new_server_certificate(), new_authority()],
        ),
        scene(Access::Token, Login::Token, vec![rotated("a kubeconfig with its token is rotated")]),
        scene(
            Access::Token,
            Login::Exec,
            vec![rotated("a program makes another token").then(|stage| {
                let runs = std::fs::read_to_string(stage.folder().join("runs")).unwrap();
                assert!(runs.lines().count() > 1, "the program was not run again");
            })],
        ),
        scene(
            Access::ClientCertificate,
            Login::CertificateFiles,
            vec![rotated("a client certificate is rotated")],
        ),
    ]
}

// Connections.

fn cut() -> Trouble {
    Trouble::new("connections are cut", |stage| stage.server.cut())
        .until(|stage, _| stage.asked(Kind::EndpointSlice, Verb::Watch) > 0)
}

fn refused() -> Trouble {
    Trouble::new("connections are refused", |stage| {
        stage.server.fault(Fault::Refuse).unwrap();
        stage.server.cut();
    })
    .until(|_, agent| agent.said("Connection refused") > 0)
}

fn hung_connections() -> Trouble {
    Trouble::new("connections hang", |stage| {
        stage.server.fault(Fault::HangConnections).unwrap();
        stage.server.cut();
    })
    .until(|stage, _| stage.server.watches(Kind::EndpointSlice) == 0 && stage.server.connections_open() > 0)
}

fn hung_requests() -> Trouble {
    Trouble::new("requests hang", |stage| {
        stage.server.fault(Fault::HangRequests).unwrap();
        stage.server.cut();
    })
    .until(|stage, _| stage.asked(Kind::EndpointSlice, Verb::Watch) > 0)
}

/// All connections stay, and nothing comes: neither events nor an answer to the question whether it is still there.
fn hung_server() -> Trouble {
    Trouble::new("the server hangs with its watches open", |stage| {
        stage.server.fault_on(Verb::Watch, Fault::SilentWatches).unwrap();
        stage.server.fault(Fault::HangRequests).unwrap();
    })
    .until(|stage, _| stage.server.requests().iter().any(|request| request.path == "/version"))
}

/// The server's machine is gone without a word: no packet comes or goes, until the agent has noticed.
fn vanished() -> Trouble {
    Trouble::new("packets to and from the server are lost", |stage| {
        let rules = "table inet lost {
            chain in { type filter hook input priority 0; policy drop; }
            chain out { type filter hook output priority 0; policy drop; }
        }";
        let file = stage.folder().join("lost.nft");
        std::fs::write(&file, rules).unwrap();
        nft(stage.network.namespace("api").unwrap(), &["-f".as_ref(), file.as_os_str()]);
        stage.server.cut();
    })
    .until(|stage, _| readiness(stage) == 503)
    .mended_by(|stage| {
        nft(stage.network.namespace("api").unwrap(), &["delete", "table", "inet", "lost"]);
    })
    .then(|stage| {
        wait_until("/readyz says 200", DEADLINE, || readiness(stage) == 200);
    })
}

fn readiness(stage: &Stage) -> u16 {
    http_get(stage.ka(), "127.0.0.1:10256", "/readyz").unwrap().0
}

// Answers.

fn answers_500() -> Trouble {
    Trouble::new("watches are answered with 500", |stage| strike_watches(stage, Fault::answer(500)))
        .until(watched_twice)
}

fn answers_503() -> Trouble {
    Trouble::new("watches are answered with 503", |stage| strike_watches(stage, Fault::answer(503)))
        .until(watched_twice)
}

fn answers_429() -> Trouble {
    Trouble::new("watches are answered with 429", |stage| {
        strike_watches(stage, Fault::answer_after(429, Duration::from_secs(1)));
    })
    .until(watched_twice)
}

fn strike_watches(stage: &Stage, fault: Fault) {
    for kind in [Kind::Service, Kind::EndpointSlice] {
        stage.server.fault_on(On::from((kind, Verb::Watch)).times(1), fault.clone()).unwrap();
    }
    stage.server.cut();
}

fn watched_twice(stage: &Stage, _: &Agent) -> bool {
    [Kind::Service, Kind::EndpointSlice].iter().all(|kind| stage.asked(*kind, Verb::Watch) > 1)
}

// Streams.

fn no_bookmarks() -> Trouble {
    Trouble::new("bookmarks do not come", |stage| {
        stage.server.fault(Fault::NoBookmarks).unwrap();
        stage.server.cut();
    })
    .until(|stage, _| stage.asked(Kind::EndpointSlice, Verb::Watch) > 0)
}

fn repeated_events() -> Trouble {
    Trouble::new("events come again", |stage| inject(stage, Injection::Repeated(5)))
}

/// Told once more where it was, a Service stays where it is.
fn stale_events() -> Trouble {
    fn third(endpoint: &str) -> Service {
        Service::new("third", &["10.96.0.82"]).port(Protocol::Tcp, 80, 80).endpoints(&[endpoint])
    }
    Trouble::new("old events come again", |stage| {
        stage.put_service(&third("a2"));
        stage.put(&third("b2").objects()[1]);
        wait_until("the third Service has moved", DEADLINE, || {
            matches!(ask_from(&stage.network, "a1", Protocol::Tcp, "10.96.0.82:80"), Answer::Reply(line) if line.starts_with("b2"))
        });
        inject(stage, Injection::Stale(1));
    })
    .then(|stage| {
        assert_eq!(pod_from(&stage.network, "a1", Protocol::Tcp, "10.96.0.82:80"), "b2");
        stage.remove_service(&third("b2"));
    })
}

fn wrong_types() -> Trouble {
    Trouble::new("fields have the wrong types", |stage| {
        let metadata = json!({ "name": "odd", "namespace": "default", "labels": ["none"], "annotations": 5 });
        let spec = json!({ "clusterIP": 17, "ports": "none", "externalIPs": [{}], "sessionAffinity": {} });
        stage.put(&json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec }));
        stage.put(&json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata,
            "addressType": 4, "endpoints": [17, { "addresses": {}, "conditions": [] }], "ports": [null, "80"],
        }));
    })
    .then(|stage| {
        stage.server.delete(Kind::Service, "default", "odd").unwrap();
        stage.server.delete(Kind::EndpointSlice, "default", "odd").unwrap();
    })
}

/// More than etcd would ever keep.
fn a_huge_object() -> Trouble {
    Trouble::new("an object is huge", |stage| {
        let annotations = json!({ "huge": "x".repeat(8 << 20) });
        let metadata = json!({ "name": "huge", "namespace": "default", "annotations": annotations });
        let spec = json!({ "clusterIP": "10.96.0.90", "ports": [{ "port": 80, "protocol": "TCP" }] });
        stage.put(&json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec }));
    })
    .then(|stage| {
        stage.server.delete(Kind::Service, "default", "huge").unwrap();
    })
}

/// Objects carry times of other machines' clocks, which may be years off.
fn times_of_another_clock() -> Trouble {
    Trouble::new("clocks of other machines jump", |stage| {
        let clocks = ["1960-01-01T00:00:00Z", "2999-12-31T23:59:59Z", "1970-01-01T00:00:00Z", "yesterday"];
        for (number, clock) in clocks.iter().enumerate() {
            let name = format!("clock-{number}");
            let service = Service::new(&name, &[&format!("10.96.0.{}", 100 + number)])
                .port(Protocol::Tcp, 80, 80)
                .endpoints(&["b1"]);
            for mut object in service.objects() {
                object["metadata"]["creationTimestamp"] = json!(clock);
                object["metadata"]["annotations"] =
                    json!({ "endpoints.kubernetes.io/last-change-trigger-time": clock });
                stage.put(&object);
            }
        }
    })
    .then(|stage| {
        for number in 100..104 {
            let target = format!("10.96.0.{number}:80");
            assert_eq!(pod_from(&stage.network, "a1", Protocol::Tcp, &target), "b1");
        }
    })
}

fn garbage() -> Trouble {
    Trouble::new("a line is no JSON", |stage| inject(stage, Injection::Garbage)).until(watched_again)
}

fn truncated_event() -> Trouble {
    Trouble::new("an event is half there", |stage| inject(stage, Injection::Truncated)).until(watched_again)
}

fn cut_in_an_event() -> Trouble {
    Trouble::new("an event is cut", |stage| inject(stage, Injection::Cut)).until(watched_again)
}

fn error_event() -> Trouble {
    Trouble::new("an event is an error", |stage| inject(stage, Injection::Error(500))).until(watched_again)
}

fn inject(stage: &Stage, injection: Injection) {
    stage.server.wait_for_watches(Kind::EndpointSlice, 1).unwrap();
    assert_eq!(stage.server.inject(Kind::EndpointSlice, injection), 1);
}

fn watched_again(stage: &Stage, _: &Agent) -> bool {
    stage.asked(Kind::EndpointSlice, Verb::Watch) > 0
}

// History that is gone: the only reason to list again.

fn expired_in_mid_stream() -> Trouble {
    Trouble::new("a watch expires", |stage| inject(stage, Injection::Error(410)))
        .until(|stage, _| stage.lists() > 0)
        .costs_lists(1)
}

fn expired_at_the_start_of_a_watch() -> Trouble {
    Trouble::new("a watch has expired when it begins", |stage| {
        let watches = On::from((Kind::EndpointSlice, Verb::Watch)).times(1);
        stage.server.fault_on(watches, Fault::answer(410)).unwrap();
        stage.server.cut();
    })
    .until(|stage, _| stage.lists() > 0)
    .costs_lists(1)
}

fn compacted_while_away() -> Trouble {
    Trouble::new("the server forgets its history while it is away", |stage| {
        stage.server.fault(Fault::Refuse).unwrap();
        stage.server.cut();
        stage.move_other();
        stage.server.compact();
    })
    .costs_lists(2)
}

// At the start.

fn away_at_start() -> Trouble {
    Trouble::at_start("the server is away at start", |stage| stage.server.fault(Fault::Refuse).unwrap())
        .until(|_, agent| {
            agent.said("waiting for the API server's first complete list of Services and EndpointSlices") > 0
        })
}

/// As long as one of the lists is missing, nothing is known well enough to be removed.
fn half_listed() -> Trouble {
    Trouble::at_start("only the Services are listed", |stage| {
        stage.server.fault_on(Kind::EndpointSlice, Fault::answer(503)).unwrap();
    })
    .until(|stage, agent| {
        stage.server.watches(Kind::Service) == 1
            && agent.said("waiting for the API server's first complete list") > 0
    })
    .costs_any_number_of_lists()
}

fn refused_lists() -> Trouble {
    Trouble::at_start("lists are answered with 500", |stage| {
        for kind in [Kind::Service, Kind::EndpointSlice] {
            stage.server.fault_on(On::from(kind).times(1), Fault::answer(500)).unwrap();
        }
    })
    .until(|stage, _| stage.lists() == 4)
    .costs_lists(4)
}

fn a_list_that_is_cut() -> Trouble {
    Trouble::at_start("a list is cut", |stage| {
        let lists = On::from(Kind::EndpointSlice).times(1);
        stage.server.fault_on(lists, Fault::CutAfter { bytes: 700 }).unwrap();
    })
    .until(|stage, _| stage.lists() == 3)
    .costs_lists(3)
}

/// Each is tried, refused, and asked for in pages.
fn no_streaming_lists() -> Trouble {
    Trouble::at_start("streaming lists are refused", |stage| {
        stage.server.fault(Fault::NoStreamingLists).unwrap();
    })
    .until(|_, agent| agent.said("in sync") > 0)
    .costs_lists(4)
}

fn trickling_lists() -> Trouble {
    Trouble::at_start("lists come in drops", |stage| {
        stage.server.fault(Fault::Trickle { bytes: 256, every: Duration::from_millis(20) }).unwrap();
    })
    .until(|_, agent| agent.said("in sync") > 0)
}

/// Two streaming lists are given up, then pages are asked for.
fn endless_lists() -> Trouble {
    Trouble::at_start("streaming lists never end", |stage| {
        stage.server.fault(Fault::EndlessInitialEvents).unwrap();
    })
    .until(|_, agent| agent.said("in sync") > 0)
    .costs_lists(6)
}

// Credentials.

fn rotate_credentials(stage: &Stage) {
    stage.server.renew_credentials().unwrap();
    stage.write_kubeconfig();
    stage.server.revoke_old_credentials();
    stage.server.cut();
}

fn new_server_certificate() -> Trouble {
    Trouble::new("the server has a new certificate", |stage| {
        stage.server.renew_server_certificate().unwrap();
        stage.server.cut();
    })
}

fn new_authority() -> Trouble {
    Trouble::new("the server has a certificate of a new authority", |stage| {
        stage.server.renew_authority().unwrap();
        stage.server.cut();
    })
    .until(|_, agent| agent.said("certificate") > 0)
    .mended_by(|stage| drop(stage.write_kubeconfig()))
}
