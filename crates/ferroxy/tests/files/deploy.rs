//! The files of `deploy/` and `docs/`, checked by the programs that read them: manifests and chart by the API's own types,
//! kubectl and helm; the unit by systemd; commands by our own command line. Needs no cluster. The image: `image.rs`; alerts
//! and dashboard: `monitoring.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use ferroxy::config::Config;
use ferroxy::flags::Flags;
use ferroxy::modes::MODES;
use ferroxy_dataplane::{Platform, Privilege};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ConfigMap, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::support::FERROXY;
use crate::support::repository::{documents, output, path, run, text, tool};

const API_SERVER: &str = "https://api.example.com:6443";

/// The manifests as they are in the repository.
fn manifests() -> Vec<Value> {
    let kustomization = documents(&text("deploy/kubernetes/kustomization.yaml")).remove(0);
    let files = kustomization["resources"].as_array().unwrap().clone();
    files
        .iter()
        .flat_map(|file| documents(&text(&format!("deploy/kubernetes/{}", file.as_str().unwrap()))))
        .collect()
}

fn find<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    objects.iter().find(|object| object["kind"] == kind).unwrap_or_else(|| panic!("no {kind}"))
}

/// Checks that an object has only fields that the API knows, with the right types: read into the API's types and
/// written again, the object is the same.
fn known_to_kubernetes(object: &Value) -> Result<(), String> {
    let again = match object["kind"].as_str().unwrap() {
        "DaemonSet" => again::<DaemonSet>(object),
        "ConfigMap" => again::<ConfigMap>(object),
        "Service" => again::<Service>(object),
        "ServiceAccount" => again::<ServiceAccount>(object),
        "ClusterRole" => again::<ClusterRole>(object),
        "ClusterRoleBinding" => again::<ClusterRoleBinding>(object),
        other => panic!("a {other} is not expected here"),
    };
    let again = again.map_err(|error| error.to_string())?;
    if again == *object { Ok(()) } else { Err(format!("{object:#} is understood as {again:#}")) }
}

fn again<T: DeserializeOwned + Serialize>(object: &Value) -> serde_json::Result<Value> {
    serde_json::to_value(serde_json::from_value::<T>(object.clone())?)
}

/// The chart's objects with these values; `None` without helm.
fn rendered(values: &[&str]) -> Option<Vec<Value>> {
    Some(documents(&output(&mut helm(values)?, "")))
}

fn helm(values: &[&str]) -> Option<Command> {
    let mut helm = tool("helm")?;
    helm.args(["template", "ferroxy", "deploy/helm/ferroxy", "--namespace=kube-system"]);
    helm.args(values.iter().map(|value| format!("--set={value}")));
    Some(helm)
}

fn api_server() -> String {
    format!("apiServer={API_SERVER}")
}

fn pod(objects: &[Value]) -> Value {
    find(objects, "DaemonSet")["spec"]["template"]["spec"].clone()
}

/// Objects by kind and name, without what only the chart has: its labels, and how the image is pulled. Files in them are
/// read, so that their comments do not count.
fn comparable(objects: &[Value]) -> BTreeMap<String, Value> {
    let named = objects.iter().cloned().map(|mut object| {
        object["metadata"]["labels"] = json!({ "k8s-app": object["metadata"]["labels"]["k8s-app"] });
        let pod = object.pointer_mut("/spec/template/spec");
        for containers in pod.into_iter().flat_map(|pod| pod.as_object_mut().unwrap().values_mut()) {
            for container in containers.as_array_mut().into_iter().flatten() {
                container.as_object_mut().unwrap().remove("imagePullPolicy");
            }
        }
        for file in
            object.get_mut("data").and_then(Value::as_object_mut).into_iter().flat_map(|it| it.values_mut())
        {
            *file = documents(file.as_str().unwrap()).remove(0);
        }
        (format!("{} {}", object["kind"], object["metadata"]["name"]), object)
    });
    named.collect()
}

#[test]
fn manifests_are_known_to_kubernetes() {
    let manifests = manifests();
    assert_eq!(manifests.len(), 7);
    for object in &manifests {
        known_to_kubernetes(object).unwrap();
    }
}

#[test]
fn what_kubernetes_does_not_know_is_noticed() {
    let daemon_set = find(&manifests(), "DaemonSet").clone();
    let with = |pointer: &str, field: &str, value: Value| {
        let mut changed = daemon_set.clone();
        changed.pointer_mut(pointer).unwrap()[field] = value;
        known_to_kubernetes(&changed)
    };
    let container = "/spec/template/spec/containers/0";
    assert!(with(container, "securityContext", json!({ "readOnlyRootFilesystem": true })).is_ok());
    assert!(with(container, "securityContext", json!({ "readOnlyRootFileSystem": true })).is_err());
    assert!(with("/spec/template/spec", "hostNetwork", json!("true")).is_err());
    assert!(with("/spec", "replicas", json!(1)).is_err());
}

#[test]
fn kubectl_builds_the_kustomization() {
    let Some(mut kubectl) = tool("kubectl") else { return };
    let built = documents(&output(kubectl.args(["kustomize", "deploy/kubernetes"]), ""));
    let mut wanted = manifests();
    let pod = wanted.iter_mut().find_map(|object| object.pointer_mut("/spec/template/spec")).unwrap();
    for containers in ["containers", "initContainers"] {
        pod[containers][0]["image"] = json!(format!("ferroxy:{}", env!("CARGO_PKG_VERSION")));
    }
    assert_eq!(comparable(&built), comparable(&wanted));
}

#[test]
fn the_chart_makes_the_same_objects() {
    let Some(mut kubectl) = tool("kubectl") else { return };
    let Some(chart) = rendered(&[&api_server(), "config.clusterCIDR="]) else { return };
    let built = documents(&output(kubectl.args(["kustomize", "deploy/kubernetes"]), ""));
    assert_eq!(comparable(&chart), comparable(&built));
}

#[test]
fn the_whole_chart_is_known_to_kubernetes() {
    let switches = ["podMonitor", "serviceMonitor", "prometheusRule", "dashboard"];
    let switches = switches.map(|name| format!("{name}.enabled=true"));
    let server = api_server();
    let mut values: Vec<&str> = switches.iter().map(String::as_str).collect();
    values.extend([&server, "podAnnotations.a=b", "podLabels.c=d", "imagePullSecrets[0].name=pull"]);
    values.extend(["extraArgs[0]=--v=2", "updateStrategy.type=OnDelete", "resources.limits.memory=256Mi"]);
    let Some(objects) = rendered(&values) else { return };
    assert_eq!(objects.len(), 12);
    let custom = |object: &Value| object["apiVersion"] == "monitoring.coreos.com/v1";
    for object in objects.iter().filter(|it| !custom(it)) {
        known_to_kubernetes(object).unwrap();
    }
    let pod = pod(&objects);
    assert_eq!(pod["containers"][0]["command"].as_array().unwrap().last().unwrap(), "--v=2");

    // With a monitor, metrics listen on all addresses.
    let config = find(&objects, "ConfigMap")["data"]["config.conf"].as_str().unwrap();
    assert_eq!(documents(config)[0]["metricsBindAddress"], "0.0.0.0:10249");
    assert_eq!(pod["containers"][0]["ports"][1]["name"], "metrics");
    assert_eq!(find(&objects, "PodMonitor")["spec"]["podMetricsEndpoints"][0]["port"], "metrics");
    assert_eq!(
        find(&objects, "PodMonitor")["spec"]["selector"]["matchLabels"],
        json!({ "k8s-app": "kube-proxy" })
    );
    assert_eq!(find(&objects, "ServiceMonitor")["spec"]["endpoints"][0]["port"], "metrics");
    let selector = find(&objects, "ServiceMonitor")["spec"]["selector"]["matchLabels"].clone();
    let service = find(&objects, "Service");
    for (label, value) in selector.as_object().unwrap() {
        assert_eq!(service["metadata"]["labels"][label], *value);
    }

    let alerts = documents(&text("deploy/prometheus/alerts.yaml")).remove(0);
    assert_eq!(find(&objects, "PrometheusRule")["spec"], alerts);
    let dashboard = objects.iter().find(|object| object["metadata"]["name"] == "ferroxy-dashboard").unwrap();
    let dashboard: Value = serde_json::from_str(dashboard["data"]["ferroxy.json"].as_str().unwrap()).unwrap();
    assert_eq!(dashboard, serde_json::from_str::<Value>(&text("deploy/prometheus/dashboard.json")).unwrap());
}

#[test]
fn the_chart_uses_what_kubeadm_left() {
    let values =
        ["existingConfigMap=kube-proxy", "serviceAccount.create=false", "initContainer.enabled=false"];
    let Some(objects) = rendered(&values) else { return };
    let kinds: Vec<&str> = objects.iter().map(|object| object["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["ClusterRole", "ClusterRole", "ClusterRole", "ClusterRoleBinding", "DaemonSet"]);
    let pod = pod(&objects);
    assert_eq!(pod["volumes"][0]["configMap"]["name"], "kube-proxy");
    assert_eq!(pod.get("initContainers"), None);
}

/// The chart supports every mode that this binary can run on a node: the image, the privileges, the files of the host, and the
/// configuration.
#[test]
fn the_chart_offers_every_mode() {
    let modes: BTreeSet<&str> = MODES.for_platform(Platform::Linux).map(|mode| mode.name).collect();
    let schema: Value = serde_json::from_str(&text("deploy/helm/ferroxy/values.schema.json")).unwrap();
    let offered = schema["properties"]["mode"]["enum"].as_array().unwrap();
    assert_eq!(offered.iter().map(|mode| mode.as_str().unwrap()).collect::<BTreeSet<_>>(), modes);
    for mode in MODES.for_platform(Platform::Linux) {
        let Some(objects) = rendered(&[&api_server(), &format!("mode={}", mode.name)]) else { return };
        objects.iter().for_each(|object| known_to_kubernetes(object).unwrap());
        let config = find(&objects, "ConfigMap")["data"]["config.conf"].as_str().unwrap();
        assert_eq!(documents(config)[0]["mode"], mode.name);
        let pod = pod(&objects);
        let own = &pod["containers"][0];
        let is_of_xtables = !mode.privileges.programs.is_empty();
        let words: Vec<&str> = mode.privileges.own.iter().map(|it| privilege(*it)).collect();
        assert_eq!(own["securityContext"]["capabilities"], json!({ "drop": ["ALL"], "add": words }));
        assert_eq!(own["securityContext"]["readOnlyRootFilesystem"], true);
        for container in [own, &pod["initContainers"][0]] {
            // By default, no mode runs another program, so all modes use the image on an empty base.
            assert!(!container["image"].as_str().unwrap().ends_with("-iptables"), "{}", mode.name);
            let mounts = container["volumeMounts"].as_array().unwrap();
            assert_eq!(mounts.iter().any(|it| it["mountPath"] == "/run/xtables.lock"), is_of_xtables);
        }
        let of_host = |volume: &&Value| volume.get("hostPath").is_some();
        let volumes = pod["volumes"].as_array().unwrap();
        assert_eq!(volumes.iter().filter(of_host).count(), if is_of_xtables { 2 } else { 0 });
        assert_eq!(pod["securityContext"]["runAsUser"] == 0, is_of_xtables);
    }
}

/// The manifests for Windows nodes.
fn windows_manifests() -> Vec<Value> {
    let files = ["configmap", "daemonset"];
    files.iter().flat_map(|file| documents(&text(&format!("deploy/windows/{file}.yaml")))).collect()
}

#[test]
fn manifests_for_windows_are_known_to_kubernetes_and_configure_a_mode_of_windows() {
    let manifests = windows_manifests();
    manifests.iter().for_each(|object| known_to_kubernetes(object).unwrap());
    let data = &find(&manifests, "ConfigMap")["data"];
    let config = loaded(data["config.conf"].as_str().unwrap());
    let mode = config.mode.unwrap();
    assert!(mode.runs_on(Platform::Windows), "{}", mode.name);
    let volumes = &pod(&manifests)["volumes"];
    assert_eq!(volumes[0]["configMap"]["name"], find(&manifests, "ConfigMap")["metadata"]["name"]);
    // The configuration names files of the volume, and the kubeconfig names a server.
    let mount = pod(&manifests)["containers"][0]["volumeMounts"][0]["mountPath"].clone();
    let within = format!("C:{}/", mount.as_str().unwrap());
    assert_eq!(config.client.kubeconfig, format!("{within}kubeconfig.conf"));
    let command = pod(&manifests)["containers"][0]["command"].clone();
    assert!(
        command.as_array().unwrap().contains(&json!(format!("--config={within}config.conf"))),
        "{command}"
    );
    let kubeconfig = documents(data["kubeconfig.conf"].as_str().unwrap()).remove(0);
    assert_eq!(kubeconfig["clusters"][0]["cluster"]["server"], API_SERVER);
}

/// The numbered items of "Not confirmed", the lines that the script can print, and the table of those lines must agree.
#[test]
fn the_script_for_windows_nodes_checks_every_item_that_is_not_confirmed() {
    let page = text("docs/windows.md");
    let chapter = page.split("\n## ").find(|it| it.starts_with("Not confirmed")).unwrap();
    let number = |text: &str| text.trim().parse::<u32>().ok();
    let items: BTreeSet<u32> = chapter.lines().filter_map(|line| number(line.split_once(". ")?.0)).collect();
    let row = |line: &str| {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        Some((number(cells.next()?)?, cells.next()?.to_owned()))
    };
    let rows: BTreeSet<(u32, String)> =
        chapter.lines().filter(|line| line.starts_with('|')).filter_map(row).collect();
    let script = text("deploy/windows/confirm.ps1");
    let line = |call: &str| {
        let (item, rest) = call.split_once(" \"")?;
        let words = rest.split('"').next()?.replace("round ${round}: ", "").replace("$Service", "…");
        Some((number(item)?, words))
    };
    let lines: BTreeSet<(u32, String)> = script.split("Check ").filter_map(line).collect();
    assert_eq!(lines, rows);
    let checked: BTreeSet<u32> = lines.iter().map(|(item, _)| *item).filter(|item| *item != 0).collect();
    assert!(items.len() >= 9 && checked == items, "{checked:?} of {items:?}");
}

/// A configuration as the binary reads it.
fn loaded(text: &str) -> Config {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.conf");
    fs::write(&path, text).unwrap();
    let flags = Flags { config: Some(path.display().to_string()), ..Flags::default() };
    Config::load(&flags, MODES).unwrap().0
}

#[test]
fn the_chart_makes_the_same_objects_for_windows() {
    let Some(chart) = rendered(&[&api_server(), "windows.enabled=true"]) else { return };
    chart.iter().for_each(|object| known_to_kubernetes(object).unwrap());
    let ours = |object: &&Value| object["metadata"]["name"] == "kube-proxy-windows";
    let chart: Vec<Value> = chart.iter().filter(ours).cloned().collect();
    let mut wanted = windows_manifests();
    let pod = wanted.iter_mut().find_map(|object| object.pointer_mut("/spec/template/spec")).unwrap();
    pod["containers"][0]["image"] = json!(format!("ferroxy-windows:{}", env!("CARGO_PKG_VERSION")));
    assert_eq!(comparable(&chart), comparable(&wanted));
}

#[test]
fn the_chart_offers_every_mode_of_windows() {
    let schema: Value = serde_json::from_str(&text("deploy/helm/ferroxy/values.schema.json")).unwrap();
    let offered = schema["properties"]["windows"]["properties"]["mode"]["enum"].as_array().unwrap();
    let modes: BTreeSet<&str> = MODES.for_platform(Platform::Windows).map(|mode| mode.name).collect();
    assert_eq!(offered.iter().map(|mode| mode.as_str().unwrap()).collect::<BTreeSet<_>>(), modes);
    for mode in modes {
        let (mode_value, extra) = (format!("windows.mode={mode}"), "windows.extraArgs[0]=--v=2");
        let values = [&*api_server(), "windows.enabled=true", &*mode_value, extra];
        let Some(objects) = rendered(&values) else { return };
        let ours = |object: &&Value| object["metadata"]["name"] == "kube-proxy-windows";
        let ours: Vec<Value> = objects.iter().filter(ours).cloned().collect();
        let config = loaded(find(&ours, "ConfigMap")["data"]["config.conf"].as_str().unwrap());
        assert_eq!(config.mode.unwrap().name, mode);
        let command = pod(&ours)["containers"][0]["command"].clone();
        assert_eq!(command.as_array().unwrap().last().unwrap(), "--v=2");
    }
}

/// The tools are an option, with an image of their own.
#[test]
fn the_image_has_the_tools_where_they_are_asked_for() {
    for program in ["tool", "builtin"] {
        let value = format!("config.iptables.program={program}");
        let Some(objects) = rendered(&[&api_server(), "mode=ipvs", &value]) else { return };
        let config = find(&objects, "ConfigMap")["data"]["config.conf"].as_str().unwrap();
        assert_eq!(documents(config)[0]["iptables"]["program"], program);
        let image = pod(&objects)["containers"][0]["image"].clone();
        assert_eq!(image.as_str().unwrap().ends_with("-iptables"), program == "tool", "{image}");
    }
}

/// With accelerated sockets, every mode has one more capability, and two more directories of the host.
#[test]
fn the_chart_offers_sockets() {
    for (mode, capabilities, volumes) in
        [("nftables", json!(["NET_ADMIN", "BPF"]), 2), ("ipvs", json!(["NET_ADMIN", "NET_RAW", "BPF"]), 4)]
    {
        let Some(objects) = rendered(&[&api_server(), &format!("mode={mode}"), "sockets=all"]) else {
            return;
        };
        objects.iter().for_each(|object| known_to_kubernetes(object).unwrap());
        let pod = pod(&objects);
        let own = &pod["containers"][0];
        assert!(own["command"].as_array().unwrap().contains(&json!("--accelerate-sockets=all")));
        assert_eq!(own["securityContext"]["capabilities"]["add"], capabilities);
        assert_eq!(pod["securityContext"]["runAsUser"], 0);
        let of_host = |volume: &&Value| volume.get("hostPath").is_some();
        assert_eq!(pod["volumes"].as_array().unwrap().iter().filter(of_host).count(), volumes);
        let mounts = own["volumeMounts"].as_array().unwrap();
        assert!(mounts.iter().any(|it| it["mountPath"] == "/sys/fs/bpf"));
    }
}

fn privilege(privilege: Privilege) -> &'static str {
    match privilege {
        Privilege::NetAdmin => "NET_ADMIN",
        Privilege::NetRaw => "NET_RAW",
        Privilege::NetBindService => "NET_BIND_SERVICE",
        other => panic!("no mode needs {other:?} in the chart"),
    }
}

#[test]
fn helm_refuses_values_that_make_no_sense() {
    let server = api_server();
    let wrong = [
        ("mode=fast", "/mode"),
        ("config.mode=iptables", "/config/mode"),
        ("apiServer=10.0.0.1", "/apiServer"),
        ("image.repository=", "/image/repository"),
        ("image.pullPolicy=Sometimes", "/image/pullPolicy"),
        ("updateStrategy.type=AllAtOnce", "/updateStrategy/type"),
        ("podMonitor.interval=often", "/podMonitor/interval"),
        ("serviceMonitor.enabled=maybe", "/serviceMonitor/enabled"),
        ("tolerances=x", "tolerances"),
        ("extraArgs[0]=v", "/extraArgs/0"),
        ("windows.mode=nftables", "/windows/mode"),
        ("windows.image.repository=", "/windows/image/repository"),
    ];
    for (value, named) in wrong {
        let Some(mut helm) = helm(&[&server, value]) else { return };
        let done = run(&mut helm, "");
        assert!(done.code != 0 && done.stderr.contains(named), "{value}: {done:?}");
    }
    let done = run(&mut helm(&[]).unwrap(), "");
    assert!(done.code != 0 && done.stderr.contains("apiServer: say where the API server is"), "{done:?}");
    let lint =
        output(tool("helm").unwrap().args(["lint", "--strict", "deploy/helm/ferroxy", "--set", &server]), "");
    assert!(lint.contains("0 chart(s) failed"), "{lint}");
}

#[test]
fn no_more_is_asked_of_the_api_server_than_needed() {
    let manifests = manifests();
    let rule = |group: &str, resource: &str, verbs: &[&str]| json!({ "apiGroups": [group], "resources": [resource], "verbs": verbs });
    let expected = json!([
        rule("", "services", &["list", "watch"]),
        rule("discovery.k8s.io", "endpointslices", &["list", "watch"]),
        rule("networking.k8s.io", "servicecidrs", &["list", "watch"]),
        rule("", "nodes", &["get", "list", "watch"]),
        rule("events.k8s.io", "events", &["create"]),
    ]);
    assert_eq!(find(&manifests, "ClusterRole")["rules"], expected);
    let account = &find(&manifests, "ServiceAccount")["metadata"];
    let binding = find(&manifests, "ClusterRoleBinding");
    assert_eq!(binding["roleRef"]["name"], find(&manifests, "ClusterRole")["metadata"]["name"]);
    assert_eq!(binding["subjects"][0]["name"], account["name"]);
    assert_eq!(binding["subjects"][0]["namespace"], account["namespace"]);
    assert_eq!(pod(&manifests)["serviceAccountName"], account["name"]);
}

/// Exactly the permissions that `kubectl ferroxy` needs. The messages of `ferroxy_source::kube::AskError` name them.
#[test]
fn people_get_what_the_plugin_needs() {
    let manifests = manifests();
    let role = manifests.iter().find(|it| it["metadata"]["name"] == "ferroxy-viewer").unwrap();
    let expected = json!([
        { "apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"] },
        { "apiGroups": [""], "resources": ["pods/proxy"], "verbs": ["get"] },
        { "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["ferroxy-page"], "verbs": ["get"] },
    ]);
    assert_eq!(role["rules"], expected);
    // A separate role: if the first one is bound in one namespace only, it cannot grant access to nodes.
    let role = manifests.iter().find(|it| it["metadata"]["name"] == "ferroxy-viewer-nodes").unwrap();
    assert_eq!(role["rules"], json!([{ "apiGroups": [""], "resources": ["nodes"], "verbs": ["list"] }]));
    let binds = |it: &&Value| it["roleRef"]["name"].as_str().is_some_and(|it| it.contains("viewer"));
    assert_eq!(
        manifests.iter().filter(binds).count(),
        0,
        "the administrator decides for whom, and in which namespace"
    );
}

/// The page is off by default. When it is on, the chart and the kustomization make the same objects, and the agent accepts its flags.
#[test]
fn the_page_can_be_switched_on() {
    let Some(mut kubectl) = tool("kubectl") else { return };
    let Some(chart) = rendered(&[&api_server(), "config.clusterCIDR=", "page.enabled=true"]) else { return };
    let built = documents(&output(kubectl.args(["kustomize", "deploy/page"]), ""));
    assert_eq!(comparable(&chart), comparable(&built));
    built.iter().for_each(|object| known_to_kubernetes(object).unwrap());
    let pod = pod(&built);
    let port =
        pod["containers"][0]["ports"].as_array().unwrap().iter().find(|it| it["name"] == "page").unwrap();
    let address = format!("--page-address=0.0.0.0:{}", port["containerPort"]);
    assert!(pod["containers"][0]["command"].as_array().unwrap().contains(&json!(address)), "{pod:#}");
    assert!(!text("deploy/kubernetes/daemonset.yaml").contains("--page-address"));
}

#[test]
fn the_agents_container_has_one_capability_and_nothing_of_the_host() {
    let pod = pod(&manifests());
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    let own = &pod["containers"][0]["securityContext"];
    assert_eq!(own["capabilities"], json!({ "drop": ["ALL"], "add": ["NET_ADMIN"] }));
    assert_eq!(own["readOnlyRootFilesystem"], true);
    assert_eq!((own.get("privileged"), own.get("runAsUser")), (None, None));
    assert!(pod["volumes"].as_array().unwrap().iter().all(|volume| volume.get("hostPath").is_none()));
    assert_eq!((pod.get("hostPID"), pod.get("hostIPC")), (None, None));
}

/// Runs every command of manifests and unit with `--version` appended: the program parses it and does nothing else.
#[test]
fn commands_are_ours() {
    let pod = pod(&manifests());
    let words =
        |container: &Value| -> Vec<String> { serde_json::from_value(container["command"].clone()).unwrap() };
    let rollback = documents(&text("deploy/kubernetes/rollback.yaml")).remove(0);
    let cleanup = words(&rollback["spec"]["template"]["spec"]["containers"][0]);
    let shown = output(Command::new(FERROXY).args(&cleanup[1..]).arg("--help"), "");
    assert!(shown.contains("--when-replaced"), "{shown}");
    let unit = text("deploy/systemd/ferroxy.service");
    let starts = unit.lines().filter_map(|line| line.strip_prefix("ExecStart")?.split_once('='));
    let mut commands: Vec<Vec<String>> = starts
        .map(|(_, line)| line.trim_start_matches('+').split(' ').map(str::to_owned).collect())
        .collect();
    commands.extend([words(&pod["containers"][0]), words(&pod["initContainers"][0])]);
    assert_eq!(commands.len(), 4);
    for command in commands {
        assert_eq!(command[0], "/usr/local/bin/ferroxy");
        let version = output(Command::new(FERROXY).args(&command[1..]).arg("--version"), "");
        assert!(version.starts_with("ferroxy "), "{command:?}: {version}");
    }
}

#[test]
fn configurations_are_read_and_mean_what_they_say() {
    let server = api_server();
    let mut all = vec![find(&manifests(), "ConfigMap").clone()];
    let chart = rendered(&[&server, "config.clusterCIDR=10.244.0.0/16", "config.conntrack.maxPerCore=0"]);
    all.extend(chart.iter().map(|objects| find(objects, "ConfigMap").clone()));
    for map in all {
        let config = map["data"]["config.conf"].as_str().unwrap();
        let files = tempfile::tempdir().unwrap();
        let (given, written) = (files.path().join("config.conf"), files.path().join("written"));
        fs::write(&given, config).unwrap();
        let mut ferroxy = Command::new(FERROXY);
        ferroxy.arg("run").arg("--config").arg(&given).arg("--write-config-to").arg(&written);
        output(ferroxy.arg("--hostname-override=node"), "");
        let written = documents(&fs::read_to_string(written).unwrap()).remove(0);
        assert_contains(&written, &documents(config)[0]);

        // The paths lead to one another, and the kubeconfig to itself.
        let kubeconfig = "/var/lib/kube-proxy/kubeconfig.conf";
        assert_eq!(written["clientConnection"]["kubeconfig"], kubeconfig);
        let kubeconfig = documents(map["data"]["kubeconfig.conf"].as_str().unwrap()).remove(0);
        assert_eq!(kubeconfig["clusters"][0]["cluster"]["server"], API_SERVER);
        assert_eq!(kubeconfig["current-context"], kubeconfig["contexts"][0]["name"]);
    }
    assert_eq!(pod(&manifests())["containers"][0]["volumeMounts"][0]["mountPath"], "/var/lib/kube-proxy");
}

/// Every field of `part` is in `whole`, with its value.
fn assert_contains(whole: &Value, part: &Value) {
    let Value::Object(fields) = part else { return assert_eq!(whole, part) };
    fields.iter().for_each(|(name, value)| assert_contains(&whole[name], value));
}

#[test]
fn the_way_back_cleans_up_when_kube_proxy_serves() {
    let Some(mut kubectl) = tool("kubectl") else { return };
    let container = json!({
        "name": "kube-proxy", "image": "kube-proxy:v1.33.0", "securityContext": { "privileged": true },
        "resources": {}, "command": ["/usr/local/bin/kube-proxy", "--config=/var/lib/kube-proxy/config.conf"],
    });
    let labels = json!({ "k8s-app": "kube-proxy" });
    let before = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": { "name": "kube-proxy", "namespace": "kube-system", "resourceVersion": "7", "uid": "u" },
        "spec": {
            "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": { "containers": [container] } },
        },
    });
    let patch =
        ["patch", "--local", "-f", "-", "--patch-file", "deploy/kubernetes/rollback.yaml", "-o", "json"];
    let patched: Value = serde_json::from_str(&output(kubectl.args(patch), &before.to_string())).unwrap();
    assert_eq!(
        patched["metadata"].get("resourceVersion"),
        None,
        "it would conflict with what is there by then"
    );
    let pod = &patched["spec"]["template"]["spec"];
    assert_eq!(pod.get("initContainers"), None, "the rules must stay until kube-proxy has written its own");
    let containers = pod["containers"].as_array().unwrap();
    assert!(containers.contains(&container));
    let cleanup =
        |containers: &[Value]| containers.iter().find(|it| it["name"] == "ferroxy-cleanup").unwrap().clone();
    // The kubelet restarts a container that ends.
    let command = ["/usr/local/bin/ferroxy", "cleanup", "--when-replaced", "--stay"];
    assert_eq!(cleanup(containers)["command"], json!(command));
    // With the command of the guide.
    let mut set = tool("kubectl").unwrap();
    set.args(["set", "image", "--local", "-f", "-", "ferroxy-cleanup=elsewhere/ferroxy:1", "-o", "json"]);
    let renamed: Value = serde_json::from_str(&output(&mut set, &patched.to_string())).unwrap();
    let containers = renamed["spec"]["template"]["spec"]["containers"].as_array().unwrap();
    assert_eq!(cleanup(containers)["image"], "elsewhere/ferroxy:1");
}

#[test]
fn systemd_accepts_the_unit() {
    let Some(mut systemd_analyze) = tool("systemd-analyze") else { return };
    let folder = tempfile::tempdir().unwrap();
    let unit = folder.path().join("ferroxy.service");
    // systemd-analyze checks that the program exists.
    fs::write(&unit, text("deploy/systemd/ferroxy.service").replace("/usr/local/bin/ferroxy", FERROXY))
        .unwrap();
    let done = run(systemd_analyze.arg("verify").arg(&unit), "");
    let complaints: Vec<&str> = done.stderr.lines().filter(|line| line.contains("ferroxy.service")).collect();
    assert!(done.code == 0 && complaints.is_empty(), "{done:?}");
}

const GUIDES: [&str; 8] = [
    "docs/install.md",
    "docs/ipvs.md",
    "docs/iptables.md",
    "docs/migration.md",
    "docs/nftables.md",
    "docs/operate.md",
    "docs/security.md",
    "docs/troubleshooting.md",
];
const COMMANDS: [&str; 7] = ["run", "cleanup", "render", "diff", "trace", "explain", "demo"];

/// Commands in the guides exist, and have the flags that the guides show. Links: `links/`.
#[test]
fn commands_in_the_guides_exist() {
    let mut seen = 0;
    for guide in GUIDES {
        let text = text(guide);
        let mentions = text.lines().flat_map(|line| line.split("ferroxy ").skip(1));
        seen += mentions.filter(|mention| is_command(guide, mention)).count();
    }
    assert!(seen > 5, "only {seen} commands");
}

/// Whether the text after our name is a command. Panics if the command does not have one of the flags.
fn is_command(guide: &str, mention: &str) -> bool {
    let command = mention.split(['`', '|', '#']).next().unwrap();
    let mut words = command.split_whitespace();
    let Some(name) = words.next().filter(|name| COMMANDS.contains(name)) else { return false };
    let help = output(Command::new(FERROXY).args([name, "--help"]), "");
    for flag in words.filter(|word| word.starts_with("--")) {
        let flag = flag.split('=').next().unwrap();
        assert!(help.contains(flag), "{guide}: `{name}` has no {flag}: {command}");
    }
    true
}

/// Metrics and log lines that a guide names are in the code. A table of log lines has `log` or `line` as the head of its first column.
#[test]
fn metrics_and_log_lines_in_the_guides_exist() {
    let sources = sources();
    let mut seen = 0;
    for guide in GUIDES {
        let text = text(guide);
        let mut wanted: Vec<&str> = text.lines().flat_map(quoted).filter_map(metric).collect();
        let mut of_log = false;
        for line in text.lines() {
            let cell = line.strip_prefix("| ").and_then(|it| it.split(" |").next());
            match cell {
                Some("log" | "line") => of_log = true,
                Some(cell) if of_log => wanted.extend(quoted(cell)),
                _ if line.starts_with('|') => {}
                _ => of_log = false,
            }
        }
        seen += wanted.len();
        let missing: Vec<&str> = wanted.into_iter().filter(|it| !sources.contains(it)).collect();
        assert!(missing.is_empty(), "{guide} names what the code does not have: {missing:#?}");
    }
    assert!(seen > 30, "only {seen}");
}

/// `make site`: a link to a file that is not a page leads to the repository; a link to a page stays.
#[test]
fn links_out_of_the_book_lead_to_the_repository() {
    let Some(mut python) = tool("python3") else { return };
    let chapter =
        |content: &str, below: Value| json!({ "Chapter": { "content": content, "sub_items": below } });
    let address = "https://example.com/ferroxy";
    let context = json!({ "config": { "output": { "html": { "git-repository-url": address } } } });
    let inner = chapter("[c](../README.md#d) [e](limits.md) ![f](g.svg)", json!([]));
    let book = json!({ "items": [chapter("[a](../deploy/b.yaml)", json!([inner]))] });
    let printed = output(python.arg("scripts/site-links"), &json!([context, book]).to_string());
    let book: Value = serde_json::from_str(&printed).unwrap();
    let first = &book["items"][0]["Chapter"];
    assert_eq!(first["content"], format!("[a]({address}/blob/main/deploy/b.yaml)"));
    let inner = format!("[c]({address}/blob/main/README.md#d) [e](limits.md) ![f](g.svg)");
    assert_eq!(first["sub_items"][0]["Chapter"]["content"], inner);
}

/// The texts in backticks.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// The name of a metric without its labels. Those of traffic are put together in the code.
fn metric(quoted: &str) -> Option<&str> {
    let name = quoted.split('{').next().unwrap_or_default();
    let of_traffic = name.strip_prefix("ferroxy_service_").or(name.strip_prefix("ferroxy_endpoint_"));
    let is_name =
        name.starts_with("ferroxy_") || name.starts_with("kubeproxy_") || name.starts_with("process_");
    (is_name && !name.ends_with(['_', '*'])).then_some(of_traffic.unwrap_or(name))
}

/// The code of all crates, with strings on several lines made one.
fn sources() -> String {
    let mut all = String::new();
    let mut folders = vec![path("crates")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("tests") {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let mut parts = text.split("\\\n");
                all += parts.next().unwrap_or_default();
                parts.for_each(|part| all += part.trim_start());
            }
        }
    }
    all
}
