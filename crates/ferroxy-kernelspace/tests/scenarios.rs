//! Ring 0 of conformance: the steps of each recorded scenario, played against the service in memory, end in the original's state,
//! but for what `conformance/kernelspace-differences.json` lists. And how the original starts or refuses to, compared with ours.
//!
//! The recordings name the steps; the objects they are about are here.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the functions that tests share are tests too; clippy does not know"
)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use ferroxy_core::Intent;
use ferroxy_dataplane::{Change, Dataplane, FailureKind, Verifies};
use ferroxy_hcn::{Code, Kind, Version};
use ferroxy_kernelspace::Kernelspace;
use serde_json::{Value, json};
use support::{Host, balancer_line, endpoint_line, intent, repository};

/// The objects of the cluster, as manifests.
#[derive(Default)]
struct Cluster {
    services: BTreeMap<String, Value>,
    slices: BTreeMap<String, Value>,
}

impl Cluster {
    /// As a scenario of this name begins.
    fn of(name: &str) -> Cluster {
        let mut cluster = Cluster::default();
        let mut web = service("web", "10.96.0.80", "NodePort");
        let all_kinds = [
            "endpoint-added",
            "endpoint-all-not-ready-lb",
            "endpoint-removed",
            "endpoint-replaced",
            "endpoint-terminating-lb",
            "restart",
            "restart-then-service-removed",
            "service-port-changed",
            "service-removed",
            "service-removed-slice-first",
        ];
        if all_kinds.contains(&name) {
            web["spec"]["type"] = json!("LoadBalancer");
            web["spec"]["externalIPs"] = json!(["198.51.100.20"]);
        }
        if all_kinds.contains(&name) || name.starts_with("health-") {
            web["spec"]["type"] = json!("LoadBalancer");
            web["status"]["loadBalancer"] = json!({ "ingress": [{ "ip": "203.0.113.10" }] });
        }
        match name {
            "endpoint-local-to-none" => web["spec"]["externalTrafficPolicy"] = json!("Local"),
            "service-nodeport-added" | "local-endpoint-late" => {
                web["spec"]["type"] = json!("ClusterIP");
                web["spec"]["ports"][0]["nodePort"] = json!(0);
            }
            _ => {}
        }
        let pods = match name {
            "endpoint-removed" => "a1, b1, b2",
            "endpoint-terminating-lb" => "b1",
            "local-endpoint-late" => "a1, late",
            _ => "a1, b1",
        };
        if name.starts_with("health-") {
            let https = json!({ "name": "https", "port": 443, "nodePort": 30443, "targetPort": 8080, "protocol": "TCP" });
            web["spec"]["ports"][0]["name"] = json!("http");
            web["spec"]["ports"].as_array_mut().unwrap().push(https);
        }
        cluster.services.insert("web".into(), web);
        match name {
            "health-two-ports" => cluster.add_slice("web-x1", "web", pods, &[("http", 80), ("https", 8080)]),
            "health-one-port-loses-endpoints" => {
                cluster.add_slice("web-x1", "web", pods, &[("http", 80)]);
                cluster.add_slice("web-x2", "web", "b1", &[("https", 8080)]);
            }
            _ => cluster.add_slice("web-x1", "web", pods, &[("", 80)]),
        }
        if name == "local-endpoint-late" {
            cluster.services.insert("api".into(), service("api", "10.96.0.81", "ClusterIP"));
            cluster.add_slice("api-x1", "api", "late", &[("", 80)]);
        }
        cluster
    }

    fn add_slice(&mut self, name: &str, service: &str, pods: &str, ports: &[(&str, u16)]) {
        let port = |(name, port): &(&str, u16)| json!({ "name": name, "port": port, "protocol": "TCP" });
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": { "name": name, "namespace": "default", "labels": { "kubernetes.io/service-name": service } },
            "addressType": "IPv4",
            "ports": ports.iter().map(port).collect::<Vec<_>>(),
            "endpoints": endpoints(pods),
        });
        self.slices.insert(name.into(), slice);
    }

    /// `false`: the step is about HNS or about time.
    fn apply(&mut self, step: &str) -> bool {
        let web = |cluster: &mut Cluster, path: &str, value: Value| {
            *cluster.services.get_mut("web").unwrap().pointer_mut(path).unwrap() = value;
        };
        match step {
            "annotation preserve-destination on web" => {
                web(self, "/metadata/annotations", json!({ "preserve-destination": "true" }));
            }
            "label on web" => web(self, "/metadata/labels", json!({ "a": "b" })),
            "create Service api" => {
                self.services.insert("api".into(), service("api", "10.96.0.81", "ClusterIP"));
            }
            "create EndpointSlice api-x1" => self.add_slice("api-x1", "api", "b1, b2", &[("", 80)]),
            "delete services api" => drop(self.services.remove("api")),
            "delete services web" => drop(self.services.remove("web")),
            "delete endpointslices web-x1" => drop(self.slices.remove("web-x1")),
            "delete endpointslices web-x2" => drop(self.slices.remove("web-x2")),
            "service web: port 80 -> 81" => web(self, "/spec/ports/0/port", json!(81)),
            "service web: port 443 removed" => {
                let ports = self.services["web"]["spec"]["ports"][0].clone();
                web(self, "/spec/ports", json!([ports]));
            }
            "service web: externalTrafficPolicy Local" => {
                web(self, "/spec/externalTrafficPolicy", json!("Local"));
            }
            "service web: type NodePort" => {
                web(self, "/spec/type", json!("NodePort"));
                web(self, "/spec/ports/0/nodePort", json!(30080));
            }
            _ => match step.strip_prefix("endpoints of web: ") {
                Some(pods) => self.slices.get_mut("web-x1").unwrap()["endpoints"] = endpoints(pods),
                None => return false,
            },
        }
        true
    }

    fn intent(&self) -> Intent {
        let around = repository().join("conformance/cases/clusterip-tcp/objects.yaml");
        let around = fs::read_to_string(around).unwrap();
        // Nodes, and the Service of the API server.
        let around: Vec<&str> = around.split("\n---\n").take(4).collect();
        let objects: Vec<String> =
            self.services.values().chain(self.slices.values()).map(Value::to_string).collect();
        intent(&[&around.join("\n---\n"), &objects.join("\n---\n")])
    }
}

fn service(name: &str, ip: &str, kind: &str) -> Value {
    let node_port = if kind == "NodePort" { 30080 } else { 0 };
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": name, "namespace": "default", "annotations": {}, "labels": {} },
        "spec": {
            "type": kind,
            "clusterIP": ip,
            "clusterIPs": [ip],
            "ipFamilies": ["IPv4"],
            "externalTrafficPolicy": "Cluster",
            "internalTrafficPolicy": "Cluster",
            "ports": [{ "port": 80, "targetPort": 80, "protocol": "TCP", "nodePort": node_port }],
        },
        "status": {},
    })
}

/// `a1, b1 {"conditions": {…}}`, as the steps write them.
fn endpoints(pods: &str) -> Value {
    let mut found = Vec::new();
    let mut rest = pods.trim();
    while !rest.is_empty() {
        let end = rest.find([' ', ',']).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        let (ip, node) = match name {
            "a1" => ("10.244.1.5", "ka"),
            "b1" => ("10.244.2.5", "kb"),
            "b2" => ("10.244.2.6", "kb"),
            "late" => ("10.244.1.99", "ka"),
            other => panic!("who is {other}?"),
        };
        let mut endpoint = json!({ "addresses": [ip], "nodeName": node,
            "conditions": { "ready": true, "serving": true, "terminating": false } });
        rest = after.trim_start();
        if rest.starts_with('{') {
            let mut more = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
            endpoint["conditions"] = more.next().unwrap().unwrap()["conditions"].clone();
            rest = &rest[more.byte_offset()..];
        }
        rest = rest.trim_start_matches([',', ' ']);
        found.push(endpoint);
    }
    Value::Array(found)
}

struct Scenario {
    name: String,
    variant: String,
    steps: Vec<String>,
    expected: Value,
}

impl Scenario {
    fn all() -> Vec<Scenario> {
        let folder = repository().join("conformance/hcn/scenarios");
        let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        // Without the recording of every call of a start, which is only for people.
        paths.retain(|path| !path.to_str().unwrap().contains("startup-full"));
        paths.iter().map(|path| Scenario::read(path)).collect()
    }

    fn read(path: &std::path::Path) -> Scenario {
        let file = path.file_name().unwrap().to_str().unwrap();
        let (name, variant) = file.split_once('.').unwrap();
        let text = fs::read_to_string(path).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let steps = lines.iter().filter_map(|line| line["step"].as_str()).map(str::to_owned);
        Scenario {
            name: name.to_owned(),
            variant: variant.strip_suffix(".jsonl").unwrap().to_owned(),
            steps: steps.collect(),
            expected: lines.last().unwrap()["final"].clone(),
        }
    }

    fn host(&self) -> Host {
        let mut parts = self.variant.split('-');
        let is_overlay = parts.next() == Some("overlay");
        let mut host = Host::new(is_overlay, parts.next().unwrap().parse().unwrap());
        host.options.root_endpoint = (parts.next() == Some("health")).then(|| "cbr0".to_owned());
        host
    }

    fn lines(&self) -> BTreeSet<String> {
        let list = |name: &str| self.expected[name].as_array().unwrap().clone();
        let endpoints = list("endpoints").iter().map(endpoint_line).collect::<Vec<_>>();
        endpoints.into_iter().chain(list("loadBalancers").iter().map(balancer_line)).collect()
    }

    /// The final state. After every step the agent has had the time to retry and to verify.
    fn play(&self) -> BTreeSet<String> {
        let mut host = self.host();
        let mut cluster = Cluster::of(&self.name);
        let mut wanted = cluster.intent();
        let mut dataplane = host.open();
        assert_eq!(self.steps[0], "start");
        dataplane.start(&wanted).unwrap();
        settle(&mut dataplane, &wanted);
        for step in &self.steps[1..] {
            if cluster.apply(step) {
                wanted = cluster.intent();
            } else if step == "restart kube-proxy" {
                dataplane = host.open();
                dataplane.start(&wanted).unwrap();
            } else if let Some(words) = step.strip_prefix("HNS: ") {
                of_hns(&mut host, words, self.variant.starts_with("overlay"));
            } else {
                assert!(step.starts_with("wait "), "{step}");
            }
            settle(&mut dataplane, &wanted);
        }
        host.lines()
    }
}

fn of_hns(host: &mut Host, words: &str, is_overlay: bool) {
    let words: Vec<&str> = words.split(' ').collect();
    let named = |host: &Host, kind: Kind, text: &str| {
        let service = host.fake.service();
        let found = service.documents(kind).filter(|(_, it)| it.to_string().contains(&format!("\"{text}\"")));
        found.map(|(id, _)| id).collect::<Vec<_>>()
    };
    match words.as_slice() {
        ["stop"] => host.fake.stop(),
        ["start"] => host.fake.resume(),
        ["renew-network"] => host.renew_network(is_overlay),
        ["drop-network"] => host.fake.service().remove(Kind::Network, host.network),
        ["add-ep", name, last] => drop(host.add_pod(name, &[&format!("10.244.1.{last}")])),
        ["delete-lb", vip] => {
            let ids = named(host, Kind::LoadBalancer, vip);
            ids.into_iter().for_each(|id| host.fake.service().remove(Kind::LoadBalancer, id));
        }
        ["delete-ep", ip] => {
            let ids = named(host, Kind::Endpoint, ip);
            ids.into_iter().for_each(|id| host.fake.service().remove(Kind::Endpoint, id));
        }
        ["fault", function, code, times @ ..] => {
            let code = u32::from_str_radix(code.trim_start_matches("0x"), 16).unwrap();
            let times = times.first().map_or(1, |times| times.parse().unwrap());
            host.fake.fail(function, Code::new(code), times);
        }
        ["someone", ..] => {
            let pod = named(host, Kind::Endpoint, "a2");
            let mapping = json!({ "Protocol": 6, "InternalPort": 80, "ExternalPort": 80 });
            let document = json!({ "HostComputeEndpoints": pod, "FrontendVIPs": ["10.96.0.81"], "PortMappings": [mapping] });
            host.fake.service().add(Kind::LoadBalancer, document);
        }
        other => panic!("{other:?}"),
    }
}

/// As the agent: what is not in force is tried again, and everything is verified. What fails for good is left.
fn settle(dataplane: &mut Kernelspace, wanted: &Intent) {
    for _ in 0..4 {
        let in_force: BTreeMap<_, _> =
            dataplane.acknowledged().services().map(|(name, it)| (name.clone(), it)).collect();
        let names: BTreeSet<_> = in_force.keys().chain(wanted.services.keys()).cloned().collect();
        let differs = |name: &_| in_force.get(name) != wanted.services.get(name);
        let changes: Vec<Change> = names
            .into_iter()
            .filter(differs)
            .map(|name| (name.clone(), wanted.services.get(&name).cloned()))
            .collect();
        if !changes.is_empty() {
            drop(dataplane.change(changes));
        }
        drop(dataplane.verify());
    }
}

type Difference = (BTreeSet<String>, BTreeSet<String>);

fn listed() -> BTreeMap<(String, String), Difference> {
    let text = fs::read_to_string(repository().join("conformance/kernelspace-differences.json")).unwrap();
    let entries: Vec<Value> = serde_json::from_str(&text).unwrap();
    let lines = |it: &Value| {
        let lines = it.as_array().unwrap().iter().map(|line| line.as_str().unwrap().to_owned());
        lines.collect::<BTreeSet<_>>()
    };
    let mut listed = BTreeMap::new();
    for entry in entries.iter().filter(|entry| entry.get("scenario").is_some()) {
        assert!(entry["reason"].as_str().unwrap().len() > 40, "{entry}: give a reason");
        for variant in entry["variants"].as_array().unwrap() {
            let key = (entry["scenario"].as_str().unwrap().to_owned(), variant.as_str().unwrap().to_owned());
            let value = (lines(&entry["original"]), lines(&entry["ours"]));
            assert!(listed.insert(key.clone(), value).is_none(), "{key:?} is listed twice");
        }
    }
    listed
}

#[test]
fn scenarios_end_in_the_states_of_the_original() {
    let all = Scenario::all();
    assert!(all.len() > 70, "only {} scenarios", all.len());
    let mut found = BTreeMap::new();
    for scenario in &all {
        let (ours, theirs) = (scenario.play(), scenario.lines());
        if ours != theirs {
            let only = |a: &BTreeSet<String>, b: &BTreeSet<String>| a.difference(b).cloned().collect();
            let key = (scenario.name.clone(), scenario.variant.clone());
            found.insert(key, (only(&theirs, &ours), only(&ours, &theirs)));
        }
    }
    if std::env::var_os("PRINT_DIFFERENCES").is_some() {
        for ((scenario, variant), (original, ours)) in &found {
            println!(
                "{}",
                json!({ "scenario": scenario, "variants": [variant], "original": original, "ours": ours })
            );
        }
    }
    let listed = listed();
    for (key, difference) in &found {
        assert_eq!(Some(difference), listed.get(key), "{key:?} differs otherwise than listed");
    }
    for key in listed.keys() {
        assert!(found.contains_key(key), "{key:?} is listed and does not differ any more");
    }
}

/// How a start ends.
#[derive(Debug, PartialEq, Eq)]
enum Start {
    /// It serves.
    Serves,
    /// It tries again until the host is as it must be. What is in force stays.
    Waits,
    /// The process ends.
    Ends,
}

/// The original's starts, with ours. `None`: decided before the dataplane is opened, by the configuration or the command line.
fn start_of(name: &str) -> Option<Start> {
    let (is_overlay, version) = match name {
        "hns-too-old" => (false, Version::new(9, 1)),
        "dsr-unsupported" => (false, Version::new(9, 2)),
        "no-network-name-single-stack" => (false, Version::new(9, 3)),
        _ => (name.starts_with("overlay"), Version::new(15, 5)),
    };
    let mut host = Host::new(is_overlay, version);
    match name {
        "ok-network-from-env" | "hns-too-old" => {}
        "ok-network-other-case" => host.options.network = Some("CBR0".into()),
        "no-network-name" | "no-network-name-single-stack" => host.options.network = None,
        "network-absent" => host.options.network = Some("nope".into()),
        "hns-not-running" => host.fake.stop(),
        "dsr-unsupported" => host.options.enable_dsr = true,
        "overlay-no-source-vip" => host.options.source_vip = None,
        "overlay-node-ip-not-here" => host.mac = None,
        "mode-empty" | "mode-iptables" | "mode-userspace" | "cleanup" | "init-only" => return None,
        other => panic!("how do we start with {other}?"),
    }
    let wanted = Cluster::of("endpoint-added").intent();
    let mut dataplane = host.open();
    // The agent ends if the host cannot do it, and tries everything else again.
    if dataplane.probe(&wanted.node).is_err() {
        return Some(Start::Ends);
    }
    match dataplane.start(&wanted) {
        Ok(_) => Some(Start::Serves),
        Err(error) if error.kind == FailureKind::Unsupported => Some(Start::Ends),
        Err(_) => Some(Start::Waits),
    }
}

#[test]
fn starts_are_those_of_the_original_or_wait_where_it_gives_up() {
    let text = fs::read_to_string(repository().join("conformance/hcn/startup-errors.json")).unwrap();
    let recorded: BTreeMap<String, Value> = serde_json::from_str(&text).unwrap();
    assert!(recorded.len() >= 15, "only {}", recorded.len());
    for (name, recorded) in recorded {
        let Some(ours) = start_of(&name) else { continue };
        let expected = match name.as_str() {
            "network-absent" => Start::Waits,
            // HNS starts later than the agent at times, and the network plugin later still: no reason to end.
            "hns-not-running" | "overlay-no-source-vip" | "overlay-node-ip-not-here" => {
                assert_eq!(recorded["exit"], 1, "{name}");
                Start::Waits
            }
            _ if recorded["exit"].is_number() => Start::Ends,
            _ => Start::Serves,
        };
        assert_eq!(ours, expected, "{name}");
    }
}
