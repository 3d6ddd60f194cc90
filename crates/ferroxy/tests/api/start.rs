//! From the start to the first sync with an API server: what the agent waits for, what it logs meanwhile, and that the
//! result is the same as from manifests. (Servers that fail at the start are in `faults`.)

use std::fs;
use std::time::{Duration, Instant};

use ferroxy_lab::api::{Access, Fault, Kind, Login, Request};
use ferroxy_lab::conformance::{Mode, Trial};
use ferroxy_lab::{Answer, Protocol};
use serde_json::{Value, json};

use crate::support::web::{HEALTHZ, METRICS, code, get};
use crate::support::{DEADLINE, Service, Setting, Stage, ask_from, ferroxy, listing, node, wait_until};

const NODE_PORT: &str = "172.18.0.2:30080";

#[test]
fn it_waits_for_its_node_and_for_an_address_of_it() {
    let Some(stage) = Stage::new(Setting::default()) else { return };
    stage.server.delete(Kind::Node, "", "ka").unwrap();
    let agent = stage.spawn();
    agent.wait_for("waiting for Node ka and its addresses");
    assert_eq!(code(stage.ka(), HEALTHZ, "/readyz").unwrap(), 503);
    assert_eq!(listing(stage.ka()), Vec::<String>::new(), "nothing is programmed yet");

    let mut without_address = node("ka", 1);
    without_address["status"] = json!({ "addresses": [{ "type": "Hostname", "address": "ka" }] });
    stage.put(&without_address);
    // One watch delivers both updates in order: the agent sees the Node without an address before the next update.
    assert_eq!(agent.said("in sync"), 0, "{}", agent.log());
    stage.put(&node("ka", 1));
    agent.wait_for("in sync");
    agent.settle(stage.ka());
    wait_until("/readyz says 200", DEADLINE, || code(stage.ka(), HEALTHZ, "/readyz") == Some(200));
    match ask_from(&stage.network, "ext", Protocol::Tcp, NODE_PORT) {
        Answer::Reply(_) => {}
        other => panic!("the node port on the Node's address: {other}"),
    }
    agent.terminate();
}

/// A kubelet that asks while the agent starts, or right after "in sync", must not get a 503: it would become an Event.
#[test]
fn a_kubelet_never_hears_that_a_good_start_is_not_ready() {
    let Some(stage) = Stage::new(Setting::default()) else { return };
    for fault in [None, Some(Fault::NoStreamingLists)] {
        fault.into_iter().for_each(|fault| stage.server.fault(fault).unwrap());
        for _ in 0..5 {
            let agent = stage.spawn();
            agent.wait_for("serving healthz");
            let asked = Instant::now();
            let early = get(stage.ka(), HEALTHZ, "/readyz").unwrap();
            // If the start takes longer than /readyz waits for it, /readyz must at least have waited.
            assert!(early.code == 200 || asked.elapsed() >= Duration::from_secs(2), "{early:?}");
            agent.wait_for("in sync");
            let late = get(stage.ka(), HEALTHZ, "/readyz").unwrap();
            assert_eq!(late.code, 200, "{late:?}");
            agent.terminate();
        }
    }
}

#[test]
fn it_asks_as_the_original_does() {
    let Some(stage) = Stage::new(Setting::default()) else { return };
    let agent = stage.start();
    let asked: Vec<String> = stage.server.requests().iter().map(|it| it.user_agent.clone()).collect();
    assert!(asked.iter().all(|agent| agent.starts_with("ferroxy/")), "{asked:?}");
    // The selectors of the original: the server sends neither Services of other proxies nor headless Services.
    let parameter = |kind, name: &str| -> String {
        let requests = stage.server.requests();
        requests.iter().find(|it| it.kind == Some(kind)).unwrap().parameter(name).to_owned()
    };
    assert_eq!(parameter(Kind::Service, "labelSelector"), "!service.kubernetes.io/service-proxy-name");
    assert_eq!(parameter(Kind::Service, "fieldSelector"), "spec.clusterIP!=None");
    assert_eq!(parameter(Kind::EndpointSlice, "labelSelector"), "!service.kubernetes.io/headless");
    assert_eq!(parameter(Kind::Node, "fieldSelector"), "metadata.name=ka");
    assert_eq!(stage.lists(), 2, "one of each");
    let accepted = |stage: &Stage| -> Vec<String> {
        // Requests that write (Events) stay JSON.
        let reads = |it: &Request| it.kind.is_some_and(|kind| kind != Kind::Event);
        stage.server.requests().into_iter().filter(reads).map(|it| it.accept).collect()
    };
    let protobuf = "application/vnd.kubernetes.protobuf, application/json";
    assert!(accepted(&stage).iter().all(|it| it == protobuf), "{:?}", accepted(&stage));
    agent.terminate();

    stage.server.forget_requests();
    let config = fs::read_to_string(stage.config()).unwrap();
    // Its last lines are those of clientConnection.
    fs::write(stage.config(), format!("{config}  contentType: application/json\n")).unwrap();
    let agent = stage.start();
    assert!(accepted(&stage).iter().all(|it| it == "application/json"), "{:?}", accepted(&stage));
    assert_eq!(stage.lists(), 2, "the same in JSON");
    agent.terminate();
}

#[test]
fn a_second_start_sends_nothing_and_an_outage_is_logged_when_it_begins_and_ends() {
    let setting = Setting { tls: true, access: Access::Token, login: Login::TokenFile, ..Setting::default() };
    let Some(stage) = Stage::new(setting) else { return };
    stage.start().terminate();
    let agent = stage.start();
    agent.wait_for("nothing to send");
    assert_eq!(agent.said("settings changed"), 0, "{}", agent.log());

    stage.server.fault(Fault::Refuse).unwrap();
    stage.server.cut();
    agent.wait_for("changes of Services are not received");
    stage.server.clear_faults().unwrap();
    agent.wait_for("API server https://127.0.0.1:6443: all watches are established again");
    let log = agent.terminate();
    assert!(!log.contains("docs.rs") && !log.contains("ServiceError"), "{log}");
}

#[test]
fn a_cluster_of_the_corpus_gives_the_same_traffic_as_from_manifests() {
    let names = ["dual-stack", "lb-local", "nodeport-addresses", "other-proxy-name", "zone-hints"];
    for name in names {
        let Some(stage) = Stage::empty(Setting::default()) else { return };
        let trial = Trial::named(name, Mode::Nftables).unwrap();
        let case = &trial.case;
        stage.server.load(&fs::read_to_string(case.folder.join("objects.yaml")).unwrap()).unwrap();
        stage.write_config(&fs::read_to_string(case.folder.join("config.yaml")).unwrap());
        let agent = stage.start();

        assert_eq!(trial.differences(&stage.network).unwrap(), [""; 0]);
        let from_server = rendered(&stage, &[]);
        let manifests = case.folder.to_str().unwrap();
        assert_eq!(from_server, rendered(&stage, &["--manifests", manifests]), "{name}");
        agent.terminate();
    }
}

/// The rendered ruleset: from the API server, unless `words` name manifests.
fn rendered(stage: &Stage, words: &[&str]) -> String {
    let done = ferroxy(stage.ka(), &stage.command(&[&["render"], words].concat()));
    assert_eq!(done.code, 0, "{done:?}");
    done.stdout
}

#[test]
fn a_health_check_port_that_is_taken_is_an_event() {
    let Some(stage) = Stage::new(Setting::default()) else { return };
    let taken = stage.ka().run(|| std::net::TcpListener::bind("0.0.0.0:32100")).unwrap().unwrap();
    let mut objects =
        Service::new("balanced", &["10.96.0.99"]).port(Protocol::Tcp, 80, 80).endpoints(&["a1"]).objects();
    let service = objects.iter_mut().find(|object| object["kind"] == "Service").unwrap();
    service["spec"]["type"] = "LoadBalancer".into();
    service["spec"]["externalTrafficPolicy"] = "Local".into();
    service["spec"]["healthCheckNodePort"] = 32100.into();
    objects.iter().for_each(|object| stage.put(object));
    let agent = stage.start();
    wait_until("there is an event about the Service", DEADLINE, || {
        let events = stage.server.events().unwrap();
        events.iter().any(|event| {
            event["reason"] == "FailedToStartServiceHealthcheck"
                && event["type"] == "Warning"
                && event["action"] == "Listen"
                && event["regarding"]["kind"] == "Service"
                && event["regarding"]["name"] == "balanced"
        })
    });
    drop(taken);
    agent.terminate();
}

#[test]
fn requests_are_counted_and_the_cluster_s_version_is_reported() {
    let Some(stage) = Stage::new(Setting::default()) else { return };
    let agent = stage.start();
    let lines = || get(stage.ka(), METRICS, "/metrics").unwrap().body;
    wait_until("the metrics have both", DEADLINE, || {
        let page = lines();
        let counted = |start: &str| page.lines().any(|line| line.starts_with(start));
        counted("rest_client_requests_total{code=\"200\"")
            && counted("kubernetes_build_info{")
            && page.contains("git_version=\"v1.37.0+ferroxy-lab\"")
    });
    agent.terminate();
}

#[test]
fn the_original_s_events_are_sent() {
    let Some(stage) = Stage::new(Setting::default()) else { return };
    let text = crate::support::configuration();
    stage.write_config(&text.replace("mode: nftables", "mode: \"\""));
    let agent = stage.start();
    let reasons = || -> Vec<String> {
        let events: Vec<Value> = stage.server.events().unwrap();
        events.iter().map(|event| event["reason"].as_str().unwrap().to_owned()).collect()
    };
    wait_until("both events are there", DEADLINE, || reasons().len() == 2);
    let events = stage.server.events().unwrap();
    for (reason, kind) in [("Starting", "Normal"), ("KubeProxyDefaultMode", "Warning")] {
        let event = events.iter().find(|event| event["reason"] == reason).unwrap();
        assert_eq!(event["type"], kind, "{event}");
        assert_eq!(event["regarding"]["name"], "ka", "{event}");
        assert_eq!(event["reportingController"], "kube-proxy", "{event}");
        assert_eq!(event["action"], "StartKubeProxy", "{event}");
    }
    agent.terminate();
}
