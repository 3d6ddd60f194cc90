//! Commands that ask the agent on a node: `status`, `watch`, `record`; and bundles, read where there is no agent.

use std::ffi::OsString;
use std::process::{Command, Stdio};

use ferroxy_lab::{Namespace, Protocol};
use serde_json::Value;

use crate::support::{self, Agent, Cluster, DEADLINE, FERROXY, Service, ferroxy, run_arguments, wait_until};

fn cluster() -> Cluster {
    let cluster = Cluster::new();
    cluster.write_service(&web(&["a1", "b1"]));
    cluster.write_service(&Service::new("dns", &["10.96.0.10"]).port(Protocol::Udp, 53, 53));
    cluster
}

fn web(endpoints: &[&str]) -> Service {
    Service::new("web", &["10.96.0.80"]).node_port(Protocol::Tcp, 80, 8080, 30080).endpoints(endpoints)
}

fn start(node: &Namespace, cluster: &Cluster) -> Agent {
    start_with(node, cluster, &[])
}

fn start_with(node: &Namespace, cluster: &Cluster, more: &[&str]) -> Agent {
    let all = run_arguments(&cluster.manifests(), &cluster.config()).into_iter();
    let all = all.chain(["--page-address=127.0.0.1".into()]);
    Agent::start_with(node, all.chain(more.iter().map(OsString::from)).collect::<Vec<OsString>>())
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn status_is_one_screen_and_an_exit_code() {
    let Some(node) = support::lonely_node() else { return };
    let nobody = ferroxy(&node, &["status"]);
    assert_eq!(nobody.code, 1);
    assert!(nobody.stderr.contains("no agent answers at 127.0.0.1:10261"), "{}", nobody.stderr);
    assert!(nobody.stderr.contains("--page-address=127.0.0.1:10261") && nobody.stderr.lines().count() == 1);

    let cluster = cluster();
    let _agent = start(&node, &cluster);
    let shown = ferroxy(&node, &["status"]);
    assert_eq!((shown.code, shown.stderr.as_str()), (0, ""), "{}", shown.stdout);
    assert!(shown.stdout.starts_with("node ka, nftables mode, ferroxy "), "{}", shown.stdout);
    assert!(shown.stdout.contains("2 programmed") && !shown.stdout.contains('\x1b'), "{}", shown.stdout);
    let value = json(&ferroxy(&node, &["status", "--output=json"]).stdout);
    assert_eq!((&value["kind"], &value["services"]["known"]), (&"Status".into(), &2.into()));
    let yaml = ferroxy(&node, &["status", "--output=yaml", "--agent=0.0.0.0:10261"]).stdout;
    assert!(yaml.contains("\nkind: Status\n"), "{yaml}");

    assert_eq!(ferroxy(&node, &["status", "--agent=localhost"]).code, 0);
    let wrong = ferroxy(&node, &["status", "--agent=nowhere"]);
    assert_eq!(wrong.code, 1);
    assert!(wrong.stderr.starts_with("ferroxy: --agent: `nowhere` is neither"), "{}", wrong.stderr);
}

#[test]
fn watch_prints_what_was_and_what_comes() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = cluster();
    let _agent = start(&node, &cluster);
    let once = ferroxy(&node, &["watch", "--once"]);
    assert_eq!(once.code, 0, "{}", once.stderr);
    assert!(once.stdout.lines().any(|line| line.contains("  started ")), "{}", once.stdout);

    let file = tempfile::NamedTempFile::new().unwrap();
    let output = file.reopen().unwrap();
    let mut watching = node
        .run(|| {
            let mut command = Command::new(FERROXY);
            command.args(["watch", "--last=0", "--service=default/web", "--output=json"]);
            command.stdout(output).stdin(Stdio::null()).spawn().unwrap()
        })
        .unwrap();
    let read = || std::fs::read_to_string(file.path()).unwrap();
    // The watch may begin after any of these changes, so the test makes changes until an entry appears.
    let mut turn = 0;
    wait_until("an entry about a change", DEADLINE, || {
        turn += 1;
        cluster.write_service(&web(if turn % 2 == 0 { &["a1", "b1"] } else { &["a1"] }));
        cluster.write_service(&Service::new("dns", &["10.96.0.10"]).port(Protocol::Udp, 53, 50 + turn % 2));
        read().lines().count() >= 2
    });
    watching.kill().unwrap();
    watching.wait().unwrap();
    for line in read().lines().take(2) {
        let entry = json(line);
        assert_eq!((&entry["service"], &entry["kind"]), (&"default/web".into(), &"changed".into()), "{line}");
    }
    // From now on the newest entry is about another Service.
    let last = |service: &str| ferroxy(&node, &["watch", "--once", "--last=1", "--service", service]).stdout;
    cluster.write_service(
        &Service::new("new", &["10.96.0.81"]).port(Protocol::Tcp, 80, 8080).endpoints(&["a1"]),
    );
    wait_until("an entry about the new Service", DEADLINE, || last("new").contains("default/new"));
    assert!(last("web").lines().count() == 1 && last("web").contains("default/web"), "{}", last("web"));
    let once = ferroxy(&node, &["watch", "--once", "--service=none"]);
    assert_eq!((once.code, once.stdout.as_str()), (0, ""));
    assert_eq!(once.stderr, "ferroxy: the journal has no entry about default/none\n");
}

#[test]
fn watch_goes_on_after_a_restart_of_the_agent() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = cluster();
    let agent = start(&node, &cluster);
    let [out, errors] = [(); 2].map(|()| tempfile::NamedTempFile::new().unwrap());
    let mut watching = node
        .run(|| {
            let mut command = Command::new(FERROXY);
            command.args(["watch", "--output=json"]).stdin(Stdio::null());
            command.stdout(out.reopen().unwrap()).stderr(errors.reopen().unwrap()).spawn().unwrap()
        })
        .unwrap();
    let read = |file: &tempfile::NamedTempFile| std::fs::read_to_string(file.path()).unwrap();
    // Whole lines only.
    let entries =
        || read(&out).split_inclusive('\n').filter(|it| it.ends_with('\n')).map(json).collect::<Vec<_>>();
    let starts = || entries().iter().filter(|it| it["kind"] == "started").count();
    let changes = || entries().iter().filter(|it| it["kind"] == "changed").count();
    wait_until("the first entry", DEADLINE, || starts() == 1);
    agent.terminate();
    wait_until("the end is noticed", DEADLINE, || read(&errors).contains("lost ("));
    let _agent = start(&node, &cluster);
    wait_until("the new journal is read", DEADLINE, || starts() == 2);
    let before = changes();
    cluster.write_service(&web(&["a1"]));
    wait_until("a change after the restart", DEADLINE, || changes() > before);
    watching.kill().unwrap();
    watching.wait().unwrap();
    let said = read(&errors);
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with("ferroxy: connection to 127.0.0.1:10261 lost ("), "{said}");
    assert!(lines[0].ends_with("): trying again"), "{said}");
    assert_eq!(lines[1], "ferroxy: the agent at 127.0.0.1:10261 was restarted: its journal begins again");
    assert_eq!(lines[2..], ["ferroxy: connected to 127.0.0.1:10261 again"], "{said}");
    let mut times: Vec<String> = entries().iter().map(|it| it["time"].to_string()).collect();
    let all = times.len();
    times.sort();
    times.dedup();
    assert_eq!(times.len(), all, "no entry twice: {:#?}", entries());
}

#[test]
fn without_a_mode_commands_take_that_of_the_agent() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = cluster();
    let _agent = start(&node, &cluster);
    let manifests = cluster.manifests();
    let manifests = manifests.to_str().unwrap();
    let explained =
        ferroxy(&node, &["explain", "default/web", "--manifests", manifests, "--hostname-override=ka"]);
    let said = "no proxy mode is set: using nftables, as the agent on this node does";
    assert!(explained.stderr.contains(said), "{}", explained.stderr);
    assert!(explained.stdout.contains("programmed in this kernel: yes"), "{}", explained.stdout);
}

/// With a flag that changes rules: a command that asks the agent must use the agent's configuration.
#[test]
fn commands_say_the_same_through_the_agent_and_without() {
    let Some(network) = support::network() else { return };
    // This host has the address of the Node, so commands without an agent use its other addresses, too.
    let node = network.namespace("ka").unwrap();
    let cluster = cluster();
    let limit = "--service-max-endpoints=1";
    let agent = start_with(node, &cluster, &[limit]);
    for words in [
        &["explain", "default/web"][..],
        &["explain", "default/nothing"],
        &["trace", "10.244.1.5", "10.96.0.80:80"],
        &["trace", "node", "default/web:80"],
        &["diff"],
        &["render"],
    ] {
        for output in ["--output=json", "--output=text"] {
            let words = [words, &[output]].concat();
            let asked = ferroxy(node, &words);
            let own = cluster.command(&[&words[..], &[limit]].concat());
            let computed = ferroxy(node, &own);
            assert_eq!(asked.stderr, computed.stderr, "{words:?}");
            assert_eq!(
                (asked.code, &asked.stdout),
                (computed.code, &computed.stdout),
                "{words:?}: {computed:?}"
            );
        }
    }
    let other = ferroxy(node, &["explain", "default/web", "--hostname-override=kb", "--agent=127.0.0.1"]);
    assert!(other.code == 1 && other.stderr.contains("is that of node ka, not of kb"), "{other:?}");
    agent.terminate();
    let nobody = ferroxy(node, &["explain", "default/web", "--agent=127.0.0.1"]);
    assert!(nobody.code == 1 && nobody.stderr.contains("no agent answers at 127.0.0.1:10261"), "{nobody:?}");
    let server = ferroxy(node, &["explain", "default/web"]);
    assert!(server.code == 1 && !server.stderr.contains("no agent answers"), "{server:?}");
    let far = ferroxy(node, &["explain", "default/web", "--agent=192.0.2.1"]);
    assert!(far.code == 1 && far.stderr.contains("192.0.2.1:10261 is on another node"), "{far:?}");
    let both = ferroxy(node, &cluster.command(&["explain", "default/web", "--agent=127.0.0.1"]));
    assert_eq!((both.code, both.stderr.lines().count()), (1, 1), "{both:?}");
}

#[test]
fn a_bundle_is_read_where_there_is_no_agent() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = cluster();
    let agent = start(&node, &cluster);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bundle.json");
    let bundle = path.to_str().unwrap();
    let recorded = ferroxy(&node, &["record", "--file", bundle]);
    assert_eq!(recorded.code, 0, "{}", recorded.stderr);
    let here = |command: &[&str]| {
        let flags = run_arguments(&cluster.manifests(), &cluster.config());
        let flags = flags.iter().map(|it| it.to_str().unwrap().to_owned());
        let all: Vec<String> = command.iter().map(|it| (*it).to_owned()).chain(flags).collect();
        ferroxy(&node, &all)
    };
    let explained = here(&["explain", "default/web"]);
    let traced = here(&["trace", "10.244.1.5", "10.96.0.80:80"]);
    agent.terminate();

    let content = json(&std::fs::read_to_string(&path).unwrap());
    for part in ["status", "configuration", "journal", "objects", "ledger", "metrics", "traffic", "rules"] {
        assert!(!content[part].is_null(), "{part}");
    }
    assert!(content["metrics"].as_str().unwrap().contains("ferroxy_"), "{}", content["metrics"]);
    assert_eq!(content["rules"]["difference"], "", "{}", content["rules"]);

    let Some(elsewhere) = support::lonely_node() else { return };
    let offline = ferroxy(&elsewhere, &["explain", "--bundle", bundle, "default/web"]);
    let ports = |text: &str| text.split_once("\nport ").map(|(_, ports)| ports.to_owned());
    assert!(ports(&explained.stdout).is_some(), "{}{}", explained.stdout, explained.stderr);
    assert_eq!(ports(&offline.stdout), ports(&explained.stdout), "{}{}", offline.stdout, offline.stderr);
    let offline = ferroxy(&elsewhere, &["trace", "--bundle", bundle, "10.244.1.5", "10.96.0.80:80"]);
    assert_eq!((offline.code, offline.stdout), (traced.code, traced.stdout), "{}", offline.stderr);
    let offline = ferroxy(&elsewhere, &["diff", "--bundle", bundle]);
    assert_eq!(offline.code, 0, "{}", offline.stderr);
    assert!(offline.stdout.contains(" had exactly this at 20"), "{}", offline.stdout);

    let explained = ferroxy(&elsewhere, &["explain", "--bundle", bundle, "default/web"]);
    assert!(explained.stdout.contains("programmed in this kernel: yes, at 20"), "{}", explained.stdout);
    let mut content = content;
    content["status"]["refused"] = serde_json::json!([{ "service": "default/web", "reason": "too large" }]);
    std::fs::write(&path, content.to_string()).unwrap();
    let explained = ferroxy(&elsewhere, &["explain", "--bundle", bundle, "default/web"]);
    let refused = "The kernel refused the Service: too large.";
    assert!(explained.code == 2 && explained.stdout.contains(refused), "{}", explained.stdout);

    let wrong = ferroxy(&elsewhere, &["run", "--bundle", bundle]);
    assert_eq!((wrong.code, wrong.stderr.lines().count()), (1, 1), "{}", wrong.stderr);
    std::fs::write(&path, "{}").unwrap();
    let wrong = ferroxy(&elsewhere, &["explain", "--bundle", bundle, "default/web"]);
    assert!(wrong.code == 1 && wrong.stderr.contains("is not a bundle"), "{}", wrong.stderr);
    let of_version = |version: &str, configuration: &str| {
        let head = format!(r#"{{"apiVersion": "ferroxy.io/{version}", "kind": "Bundle""#);
        std::fs::write(&path, format!(r#"{head}, "configuration": {configuration}}}"#)).unwrap();
        let wrong = ferroxy(&elsewhere, &["explain", "--bundle", bundle, "default/web"]);
        assert_eq!(wrong.code, 1, "{wrong:?}");
        wrong.stderr
    };
    let newer = of_version("v2", "{}");
    assert!(
        newer.contains(r#"is of version "ferroxy.io/v2", and this program reads ferroxy.io/v1"#),
        "{newer}"
    );
    for line in of_version("v1", "null").lines() {
        assert!(line.starts_with("ferroxy: --bundle: its configuration: "), "{line}");
    }
}

/// A bundle from `record` without privileges: `diff` compares with the agent's ledger instead of the kernel.
#[test]
fn where_the_kernel_was_not_compared_the_ledger_is() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = cluster();
    let agent = start(&node, &cluster);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bundle.json");
    let bundle = path.to_str().unwrap();
    assert_eq!(ferroxy(&node, &["record", "--file", bundle]).code, 0);
    agent.terminate();
    let mut content = json(&std::fs::read_to_string(&path).unwrap());
    let ledger = &content["ledger"]["services"];
    let names: Vec<&str> =
        ledger.as_array().unwrap().iter().map(|it| it["service"].as_str().unwrap()).collect();
    assert_eq!(names, ["default/dns", "default/web"]);
    assert_eq!(ledger[1]["ports"][0]["cluster"], serde_json::json!(["10.244.1.5:8080", "10.244.2.5:8080"]));

    content["rules"] = serde_json::json!({ "desired": "", "notCompared": "not permitted" });
    let diff = |content: &Value| {
        std::fs::write(&path, content.to_string()).unwrap();
        ferroxy(&node, &["diff", "--bundle", bundle])
    };
    let same = diff(&content);
    assert_eq!(same.code, 0, "{}{}", same.stdout, same.stderr);
    assert!(same.stdout.starts_with("the agent of ka had programmed exactly this at 20"), "{}", same.stdout);
    assert!(same.stderr.contains("the kernel was not compared (not permitted)"), "{}", same.stderr);
    // The agent did not know one endpoint yet, and still had a Service that is gone.
    content["ledger"]["services"][1]["ports"][0]["cluster"] = serde_json::json!(["10.244.1.5:8080"]);
    content["ledger"]["services"].as_array_mut().unwrap().push(serde_json::json!({
        "service": "default/old", "clusterIPs": ["10.96.0.9"], "ports": [],
    }));
    let behind = diff(&content);
    assert_eq!(behind.code, 2, "{}{}", behind.stdout, behind.stderr);
    let lines: Vec<&str> = behind.stdout.lines().collect();
    assert_eq!(lines[0], "- default/old clusterIPs: 10.96.0.9");
    assert!(lines[1].starts_with("+ default/web ") && lines[1].ends_with("cluster: 10.244.2.5:8080"));
    assert_eq!(lines.len(), 2, "{}", behind.stdout);
    content["ledger"] = Value::Null;
    let older = diff(&content);
    assert!(older.code == 1 && older.stderr.contains("nothing was compared: not permitted"), "{older:?}");
}

/// The flags change the rules. Without the flags in the bundle, the kernel would seem to differ.
#[test]
fn a_bundle_has_what_only_flags_say() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = cluster();
    let flags = ["--traffic-metrics", "--service-max-endpoints=1"];
    let agent = start_with(&node, &cluster, &flags);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bundle.json");
    let bundle = path.to_str().unwrap();
    let recorded = ferroxy(&node, &["record", "--file", bundle]);
    assert_eq!(recorded.code, 0, "{}", recorded.stderr);
    agent.terminate();
    let content = json(&std::fs::read_to_string(&path).unwrap());
    let configuration = &content["configuration"];
    assert_eq!(
        (&configuration["trafficMetrics"], &configuration["serviceMaxEndpoints"]),
        (&true.into(), &1.into())
    );
    assert_eq!(content["rules"]["difference"], "", "{}", content["rules"]);
    let Some(elsewhere) = support::lonely_node() else { return };
    let done = ferroxy(&elsewhere, &["diff", "--bundle", bundle, "--output=json"]);
    assert_eq!((done.code, &done.json()["operations"]), (0, &Value::Array(Vec::new())), "{}", done.stdout);
    let rendered = ferroxy(&elsewhere, &["render", "--bundle", bundle]).stdout;
    assert!(rendered.contains("chain traffic") && !rendered.contains("10.244.2.5"), "{rendered}");
    assert_eq!(Some(rendered.as_str()), content["rules"]["desired"].as_str());
}

/// The bridge's address is not in the Node object.
#[test]
fn a_node_port_is_traced_at_every_address_of_the_host() {
    const ADDRESS: &str = "10.244.1.1:30080";
    let Some(network) = support::network() else { return };
    let Some(elsewhere) = support::lonely_node() else { return };
    let node = network.namespace("ka").unwrap();
    for mode in ["nftables", "iptables"] {
        let cluster = Cluster::in_mode(mode);
        cluster.answer_everywhere();
        cluster.write_service(&web(&["a1", "b1"]));
        let agent = start(node, &cluster);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bundle.json");
        let bundle = path.to_str().unwrap();
        assert_eq!(ferroxy(node, &["record", "--file", bundle]).code, 0);
        let pod = support::pod_from(&network, "a2", Protocol::Tcp, ADDRESS);
        assert!(["a1", "b1"].contains(&pod.as_str()), "{mode}: {pod}");

        let words = ["trace", "--output=json", "10.244.1.6", ADDRESS];
        let live = ferroxy(node, &cluster.command(&words));
        assert_eq!((live.code, &live.json()["verdict"]), (0, &"endpoints".into()), "{mode}: {live:?}");
        let recorded: Vec<&str> = words.into_iter().chain(["--bundle", bundle]).collect();
        let offline = ferroxy(&elsewhere, &recorded);
        assert_eq!((offline.code, offline.stdout), (live.code, live.stdout), "{mode}: {}", offline.stderr);
        // From an address of the host itself. On another machine, only the addresses of the Node object are known.
        let own = ferroxy(node, &cluster.command(&["trace", "10.244.1.1", "10.96.0.80:80"]));
        assert!(own.stdout.contains("sent by this node"), "{mode}: {}", own.stdout);
        let stranger = ferroxy(&elsewhere, &cluster.command(&words));
        assert_eq!((stranger.code, &stranger.json()["verdict"]), (2, &"pass".into()), "{mode}: {stranger:?}");
        agent.terminate();
        ferroxy(node, &["cleanup"]);
    }
}
