//! Each fault: how it strikes, how the test sees that it has, and how many lists it may cause. `faults` plays them.

use std::time::Duration;

use ferroxy_lab::api::{Fault, Injection, Kind, On, Verb};
use ferroxy_lab::{Answer, Protocol};
use serde_json::json;

use super::{Trouble, readiness};
use crate::support::{Agent, DEADLINE, Service, Stage, ask_from, nft, pod_from, wait_until};

// Connections.

pub(super) fn cut() -> Trouble {
    Trouble::new("connections are cut", |stage| stage.server.cut())
        .until(|stage, _| stage.asked(Kind::EndpointSlice, Verb::Watch) > 0)
}

pub(super) fn refused() -> Trouble {
    Trouble::new("connections are refused", |stage| {
        stage.server.fault(Fault::Refuse).unwrap();
        stage.server.cut();
    })
    .until(|_, agent| agent.said("Connection refused") > 0)
}

pub(super) fn hung_connections() -> Trouble {
    Trouble::new("connections hang", |stage| {
        let before = stage.server.connections_accepted();
        stage.server.fault(Fault::HangConnections).unwrap();
        stage.server.cut();
        // One connection for each kind of object.
        wait_until("all connections hang", DEADLINE, || stage.server.connections_accepted() >= before + 4);
    })
}

pub(super) fn hung_requests() -> Trouble {
    Trouble::new("requests hang", |stage| {
        stage.server.fault(Fault::HangRequests).unwrap();
        stage.server.cut();
    })
    .until(|stage, _| stage.asked(Kind::EndpointSlice, Verb::Watch) > 0)
}

/// All connections stay open, but the server sends nothing: no events, and no answer when the agent checks it (`/version`).
pub(super) fn hung_server() -> Trouble {
    Trouble::new("the server hangs with its watches open", |stage| {
        stage.server.fault_on(Verb::Watch, Fault::SilentWatches).unwrap();
        stage.server.fault(Fault::HangRequests).unwrap();
    })
    .until(|stage, _| stage.server.requests().iter().any(|request| request.path == "/version"))
}

/// The server's machine disappears without closing connections: all packets are lost until the agent has noticed.
pub(super) fn vanished() -> Trouble {
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

// Answers.

pub(super) fn answers_500() -> Trouble {
    Trouble::new("watches are answered with 500", |stage| strike_watches(stage, Fault::answer(500)))
        .until(watched_twice)
}

pub(super) fn answers_503() -> Trouble {
    Trouble::new("watches are answered with 503", |stage| strike_watches(stage, Fault::answer(503)))
        .until(watched_twice)
}

pub(super) fn answers_429() -> Trouble {
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

pub(super) fn no_bookmarks() -> Trouble {
    Trouble::new("bookmarks do not come", |stage| {
        stage.server.fault(Fault::NoBookmarks).unwrap();
        stage.server.cut();
    })
    .until(|stage, _| stage.asked(Kind::EndpointSlice, Verb::Watch) > 0)
}

pub(super) fn repeated_events() -> Trouble {
    Trouble::new("events come again", |stage| inject(stage, Injection::Repeated(5)))
}

/// Old events that are sent again neither move an endpoint back nor restore a deleted Service.
pub(super) fn stale_events() -> Trouble {
    fn third(endpoint: &str) -> Service {
        Service::new("third", &["10.96.0.82"]).port(Protocol::Tcp, 80, 80).endpoints(&[endpoint])
    }
    fn fourth() -> Service {
        Service::new("fourth", &["10.96.0.83"]).port(Protocol::Tcp, 80, 80).endpoints(&["a2"])
    }
    Trouble::new("old events come again", |stage| {
        stage.put_service(&fourth());
        stage.put_service(&third("a2"));
        stage.put(&third("b2").objects()[1]);
        stage.remove_service(&fourth());
        wait_until("the third Service has moved", DEADLINE, || {
            let answer = ask_from(&stage.network, "a1", Protocol::Tcp, "10.96.0.82:80");
            matches!(answer, Answer::Reply(line) if line.starts_with("b2"))
        });
        inject(stage, Injection::Stale(2));
        assert_eq!(stage.server.inject(Kind::Service, Injection::Stale(1)), 1);
    })
    .then(|stage| {
        assert_eq!(pod_from(&stage.network, "a1", Protocol::Tcp, "10.96.0.82:80"), "b2");
        stage.remove_service(&third("b2"));
    })
}

pub(super) fn wrong_types() -> Trouble {
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

/// Larger than any object that etcd would store.
pub(super) fn a_huge_object() -> Trouble {
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
pub(super) fn times_of_another_clock() -> Trouble {
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

pub(super) fn garbage() -> Trouble {
    Trouble::new("bytes are no event", |stage| inject(stage, Injection::Garbage)).until(watched_again)
}

/// In protobuf, where each frame follows its length.
pub(super) fn absurd_length() -> Trouble {
    Trouble::new("an event is 4 GiB long", |stage| inject(stage, Injection::AbsurdLength))
        .until(watched_again)
}

/// The server no longer supports protobuf, for example after an upgrade, and answers in JSON.
pub(super) fn no_protobuf() -> Trouble {
    Trouble::new("answers are in JSON", |stage| {
        stage.server.fault(Fault::NoProtobuf).unwrap();
        stage.server.cut();
    })
    .until(watched_again)
}

pub(super) fn truncated_event() -> Trouble {
    Trouble::new("an event is half there", |stage| inject(stage, Injection::Truncated)).until(watched_again)
}

pub(super) fn cut_in_an_event() -> Trouble {
    Trouble::new("an event is cut", |stage| inject(stage, Injection::Cut)).until(watched_again)
}

pub(super) fn error_event() -> Trouble {
    Trouble::new("an event is an error", |stage| inject(stage, Injection::Error(500))).until(watched_again)
}

fn inject(stage: &Stage, injection: Injection) {
    stage.server.wait_for_watches(Kind::EndpointSlice, 1).unwrap();
    assert_eq!(stage.server.inject(Kind::EndpointSlice, injection), 1);
}

fn watched_again(stage: &Stage, _: &Agent) -> bool {
    stage.asked(Kind::EndpointSlice, Verb::Watch) > 0
}

// Lost history: the only reason to list again.

pub(super) fn expired_in_mid_stream() -> Trouble {
    Trouble::new("a watch expires", |stage| inject(stage, Injection::Error(410)))
        .until(|stage, _| stage.lists() > 0)
        .costs_lists(1)
}

pub(super) fn expired_at_the_start_of_a_watch() -> Trouble {
    Trouble::new("a watch has expired when it begins", |stage| {
        let watches = On::from((Kind::EndpointSlice, Verb::Watch)).times(1);
        stage.server.fault_on(watches, Fault::answer(410)).unwrap();
        stage.server.cut();
    })
    .until(|stage, _| stage.lists() > 0)
    .costs_lists(1)
}

pub(super) fn compacted_while_away() -> Trouble {
    Trouble::new("the server forgets its history while it is away", |stage| {
        stage.server.fault(Fault::Refuse).unwrap();
        stage.server.cut();
        stage.move_other();
        stage.server.compact();
    })
    .costs_lists(2)
}

// At the start.

pub(super) fn away_at_start() -> Trouble {
    Trouble::at_start("the server is away at start", |stage| stage.server.fault(Fault::Refuse).unwrap())
        .until(|_, agent| {
            agent.said("waiting for the API server's first complete list of Services and EndpointSlices") > 0
        })
        .keeps_rules()
}

/// While one of the lists is missing, the agent must not remove anything.
pub(super) fn half_listed() -> Trouble {
    Trouble::at_start("only the Services are listed", |stage| {
        stage.server.fault_on(Kind::EndpointSlice, Fault::answer(503)).unwrap();
    })
    .until(|stage, agent| {
        stage.server.watches(Kind::Service) == 1
            && agent.said("waiting for the API server's first complete list") > 0
    })
    .keeps_rules()
    .costs_any_number_of_lists()
}

pub(super) fn refused_lists() -> Trouble {
    Trouble::at_start("lists are answered with 500", |stage| {
        for kind in [Kind::Service, Kind::EndpointSlice] {
            stage.server.fault_on(On::from(kind).times(1), Fault::answer(500)).unwrap();
        }
    })
    .until(|stage, _| stage.lists() == 4)
    .costs_lists(4)
}

pub(super) fn a_list_that_is_cut() -> Trouble {
    Trouble::at_start("a list is cut", |stage| {
        let lists = On::from(Kind::EndpointSlice).times(1);
        stage.server.fault_on(lists, Fault::CutAfter { bytes: 200 }).unwrap();
    })
    .until(|stage, _| stage.lists() == 3)
    .costs_lists(3)
}

/// For each kind, a streaming list is tried and refused, then the list is read in pages.
pub(super) fn no_streaming_lists() -> Trouble {
    Trouble::at_start("streaming lists are refused", |stage| {
        stage.server.fault(Fault::NoStreamingLists).unwrap();
    })
    .until(|_, agent| agent.said("in sync") > 0)
    .costs_lists(4)
}

pub(super) fn trickling_lists() -> Trouble {
    Trouble::at_start("lists come in drops", |stage| {
        stage.server.fault(Fault::Trickle { bytes: 256, every: Duration::from_millis(20) }).unwrap();
    })
    .until(|_, agent| agent.said("in sync") > 0)
}

/// For each kind, two streaming lists are given up, then the list is read in pages.
pub(super) fn endless_lists() -> Trouble {
    Trouble::at_start("streaming lists never end", |stage| {
        stage.server.fault(Fault::EndlessInitialEvents).unwrap();
    })
    .until(|_, agent| agent.said("in sync") > 0)
    .costs_lists(6)
}

// Credentials.

pub(super) fn rotate_credentials(stage: &Stage) {
    stage.server.renew_credentials().unwrap();
    stage.write_kubeconfig();
    stage.server.revoke_old_credentials();
    stage.server.cut();
}

pub(super) fn new_server_certificate() -> Trouble {
    Trouble::new("the server has a new certificate", |stage| {
        stage.server.renew_server_certificate().unwrap();
        stage.server.cut();
    })
}

pub(super) fn new_authority() -> Trouble {
    Trouble::new("the server has a certificate of a new authority", |stage| {
        stage.server.renew_authority().unwrap();
        stage.server.cut();
    })
    .until(|_, agent| agent.said("certificate") > 0)
    .mended_by(|stage| drop(stage.write_kubeconfig()))
}
