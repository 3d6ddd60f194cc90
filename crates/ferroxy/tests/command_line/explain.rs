//! The findings of `explain`: Services that work, problems, and behaviour that is by design.

use ferroxy_lab::Protocol;
use serde_json::{Value, json};

use super::commands::{web, with_web};
use crate::support::{self, Agent, Cluster, DEADLINE, Service, ferroxy, nft, wait_until};

/// Needs no IPVS: the command does not query the kernel for the scheduler.
#[test]
fn explain_names_the_scheduler_of_virtual_servers() {
    let Some(node) = support::lonely_node() else { return };
    let service = || Service::new("web", &["10.96.0.80"]).port(Protocol::Tcp, 80, 80).endpoints(&["a1"]);
    let cluster = Cluster::in_mode("ipvs");
    cluster.configure("ipvs: {}", "ipvs: {scheduler: wlc}");
    cluster.write_service(&service());
    let explain = |words: &[&str]| ferroxy(&node, &cluster.command(&[&["explain", "web"], words].concat()));
    let shown = explain(&[]).stdout;
    assert!(shown.contains("\n  IPVS scheduler: wlc (configuration, ipvs.scheduler)\n"), "{shown}");
    cluster.write_service(&service().scheduler("sh"));
    let traits = explain(&["--output=json"]).json()["traits"].clone();
    let own = "sh (annotation ferroxy.io/scheduler)";
    assert_eq!(traits, serde_json::json!([{ "name": "IPVS scheduler", "value": own }]));
    cluster.configure("mode: ipvs", "mode: nftables");
    assert_eq!(explain(&["--output=json"]).json()["traits"], serde_json::json!([]));
}

#[test]
fn explain_says_what_is_right() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = with_web();
    let explain =
        |words: &[&str]| ferroxy(&node, &cluster.command(&[&["explain", "default/web"], words].concat()));
    let before = explain(&[]);
    assert_eq!(before.code, 2, "{before:?}");
    for words in ["Nothing of Ferroxy is in this kernel", "10.96.0.80:80", "30080", "on this node", "on kb"] {
        assert!(before.stdout.contains(words), "no {words:?} in {}", before.stdout);
    }
    let agent = Agent::start(&node, &cluster);
    let json = explain(&["--output=json"]).json();
    assert_eq!(json["service"], "default/web");
    assert_eq!(json["standing"], "handled");
    assert_eq!(json["findings"], json!([]));
    assert!(json["programmed"].as_str().unwrap().starts_with("yes, all"), "{json:#}");
    assert_eq!(json["ports"][0]["frontends"][0]["address"], "10.96.0.80:80");
    assert_eq!(json["ports"][0]["endpoints"][0]["local"], true);

    drop(agent.terminate());
    nft(&node, &["delete element ip ferroxy frontends { 10.96.0.80 . tcp . 80 }"]);
    let damaged = explain(&[]);
    assert_eq!(damaged.code, 2, "{damaged:?}");
    assert!(damaged.stdout.contains("incomplete: "), "{}", damaged.stdout);
    assert!(!damaged.stdout.contains("no problem found"), "{}", damaged.stdout);
}

/// A Service, what is done to it and its slices, and what `explain` must find.
type Trouble = (&'static str, fn(&mut Vec<Value>), &'static str);

const TROUBLES: [Trouble; 8] = [
    (
        "nothing local",
        |objects| objects[0]["spec"]["internalTrafficPolicy"] = json!("Local"),
        "internalTrafficPolicy is Local and this node has no endpoint",
    ),
    ("no slices", |objects| objects.truncate(1), "has no EndpointSlice"),
    ("no endpoints", |objects| objects[1]["endpoints"] = json!([]), "have no usable endpoint"),
    (
        "none ready",
        |objects| {
            let endpoints = objects[1]["endpoints"].as_array_mut().unwrap();
            endpoints.iter_mut().for_each(|it| it["conditions"]["ready"] = json!(false));
        },
        "No IPv4 endpoint of port 80 is ready",
    ),
    (
        "another port name",
        |objects| objects[1]["ports"][0]["name"] = json!("other"),
        "its EndpointSlices only have",
    ),
    (
        "another family",
        |objects| {
            objects[0]["spec"]["clusterIPs"] = json!(["10.96.0.80", "fd00:10:96::80"]);
            objects[0]["spec"]["ipFamilies"] = json!(["IPv4", "IPv6"]);
        },
        "no EndpointSlice with IPv6 addresses",
    ),
    ("no port", |objects| objects[0]["spec"]["ports"] = json!([]), "no usable port"),
    ("slices without a Service", |objects| drop(objects.remove(0)), "default/web does not exist"),
];

/// Behaviour that the objects ask for: not a problem, but worth a note.
const BY_DESIGN: [Trouble; 5] = [
    (
        "nothing local for the outside",
        |objects| objects[0]["spec"]["externalTrafficPolicy"] = json!("Local"),
        "externalTrafficPolicy is Local and this node has no endpoint",
    ),
    (
        "no load balancer",
        |objects| objects[0]["spec"]["type"] = json!("LoadBalancer"),
        "No load-balancer IP is assigned",
    ),
    (
        "headless",
        |objects| {
            objects[0]["spec"]["clusterIP"] = json!("None");
            objects[0]["spec"]["clusterIPs"] = json!(["None"]);
        },
        "headless",
    ),
    ("external name", |objects| objects[0]["spec"]["type"] = json!("ExternalName"), "ExternalName"),
    (
        "another proxy",
        |objects| {
            objects[0]["metadata"]["labels"] = json!({ "service.kubernetes.io/service-proxy-name": "other" });
        },
        "the proxy `other`",
    ),
];

#[test]
fn explain_says_what_is_wrong() {
    let Some(node) = support::lonely_node() else { return };
    for (name, spoil, words) in TROUBLES {
        let cluster = Cluster::new();
        let service = Service::new("web", &["10.96.0.80"]).node_port(Protocol::Tcp, 80, 8080, 30080);
        let mut objects = service.endpoints(&["b1"]).objects();
        spoil(&mut objects);
        cluster.write("web.yaml", &objects);
        let text = ferroxy(&node, &cluster.command(&["explain", "web"]));
        assert_eq!(text.code, 2, "{name}: {text:?}");
        assert!(text.stdout.contains(words), "{name}: no {words:?} in {}", text.stdout);
        let json = ferroxy(&node, &cluster.command(&["explain", "web", "--output=json"])).json();
        let findings = json["findings"].as_array().unwrap();
        assert!(
            findings
                .iter()
                .any(|it| it["problem"].as_str().unwrap().contains(words) && it["severity"] == "problem"),
            "{name}: {json:#}"
        );
    }
}

#[test]
fn what_is_by_design_is_a_note() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = Cluster::new();
    let _agent = Agent::start(&node, &cluster);
    for (index, (name, change, words)) in BY_DESIGN.into_iter().enumerate() {
        // Each change has its own Service, because the agent keeps running and programs them one after another.
        let (service, port) = (format!("web{index}"), 30080 + index as u16);
        let made = Service::new(&service, &[format!("10.96.1.{}", index + 1).as_str()]);
        let mut objects = made.node_port(Protocol::Tcp, 80, 8080, port).endpoints(&["b1"]).objects();
        change(&mut objects);
        cluster.write(&format!("{service}.yaml"), &objects);
        let explain = |more: &[&str]| {
            ferroxy(&node, &cluster.command(&[&["explain", service.as_str()], more].concat()))
        };
        wait_until("the Service is programmed, or not handled", DEADLINE, || explain(&[]).code == 0);
        let text = explain(&[]).stdout;
        assert!(
            text.contains("no problem found on this node") && !text.contains("\nproblem "),
            "{name}: {text}"
        );
        assert!(text.contains("\nnote    ") && text.contains(words), "{name}: {text}");
        let json = explain(&["--output=json"]).json();
        let notes = json["findings"].as_array().unwrap();
        assert!(notes.iter().all(|it| it["severity"] == "note"), "{name}: {json:#}");
        assert!(notes[0]["problem"].as_str().unwrap().contains(words), "{name}: {json:#}");
    }
}

#[test]
fn explain_knows_clashes_and_misspelt_names() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = with_web();
    let later = Service::new("weblog", &["10.96.0.81"]).node_port(Protocol::Tcp, 80, 8080, 30080);
    cluster.write_service(&later.endpoints(&["b1"]));
    let explain = |name: &str| ferroxy(&node, &cluster.command(&["explain", name]));
    let clash = explain("weblog");
    assert_eq!(clash.code, 2);
    assert_eq!(
        clash.stdout.matches("30080/tcp already belongs to default/web").count(),
        1,
        "{}",
        clash.stdout
    );
    assert!(!clash.stdout.contains("invalid objects"), "{}", clash.stdout);
    assert!(!explain("web").stdout.contains("already belongs"), "the owner has no problem");
    assert!(explain("wep").stdout.contains("Did you mean default/web?"), "{}", explain("wep").stdout);
    assert!(explain("prod/web").stdout.contains("in another namespace: default/web"));
    assert_eq!(explain("a/b/c").code, 1);
}

#[test]
fn a_mistake_in_an_object_is_something_wrong() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = Cluster::new();
    let mut objects = web().objects();
    objects[0]["spec"]["externalIPs"] = json!(["203.0.113.300"]);
    cluster.write("web.yaml", &objects);
    let explain = ferroxy(&node, &cluster.command(&["explain", "web"]));
    assert_eq!(explain.code, 2, "{explain:?}");
    assert!(explain.stdout.contains("spec.externalIPs[0]"), "{}", explain.stdout);
    assert!(!explain.stdout.contains("no problem found"), "{}", explain.stdout);
}
