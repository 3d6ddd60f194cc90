//! What users see of accelerated sockets: `render`, `trace`, `explain`, `diff`, `/statusz`, metrics and the log.

use std::ffi::OsString;

use super::Stage;
use super::support::{Agent, Cluster, ask_from, ferroxy, run_arguments, web, web_service};
use ferroxy_lab::Protocol;

fn arguments(cluster: &Cluster, stage: &Stage, clients: &str) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = run_arguments(&cluster.manifests(), &cluster.config()).into();
    arguments.extend(stage.flags(clients));
    arguments
}

fn command(words: &[&str], arguments: &[OsString]) -> Vec<OsString> {
    words.iter().map(OsString::from).chain(arguments.iter().cloned()).collect()
}

#[test]
fn commands_and_pages_say_whether_sockets_are_translated() {
    let Some(stage) = Stage::new() else { return };
    let cluster = Cluster::new();
    cluster.write_service(&web_service());
    let all = arguments(&cluster, &stage, "all");
    let agent = Agent::start_with(stage.ka(), all.clone());
    for from in ["a1", "ka"] {
        ask_from(&stage.network, from, Protocol::Tcp, "10.96.0.80:80");
    }
    let status = web::get(stage.ka(), web::METRICS, "/statusz").unwrap().body;
    assert!(
        status.contains("Sockets of host: translated, ")
            && status.contains("Sockets of pods: translated, 1 c"),
        "{status}"
    );
    let metrics = web::metrics(stage.ka());
    assert_eq!(metrics["ferroxy_sockets_translated{clients=\"pods\"}"], 1.0);
    assert_eq!(metrics["ferroxy_sockets_connections_total{clients=\"pods\"}"], 1.0);
    assert!(metrics["ferroxy_sockets_elements{map=\"frontends\"}"] >= 4.0);

    let ka = stage.ka();
    let diff = ferroxy(ka, &command(&["diff"], &all));
    assert_eq!((diff.code, diff.stdout.as_str()), (0, "the kernel has exactly this\n"), "{}", diff.stderr);
    let render = ferroxy(ka, &command(&["render"], &all)).stdout;
    assert!(render.contains("\t10.96.0.80:80 tcp for host,pods {\n\t\t0 : 10.244.1.5:8080\n"), "{render}");
    let trace = ferroxy(ka, &command(&["trace", "10.244.1.5", "10.96.0.80:80"], &all)).stdout;
    assert!(trace.contains("sockets") && trace.contains("directly, without NAT"), "{trace}");
    let explain = ferroxy(ka, &command(&["explain", "web"], &all)).stdout;
    assert!(explain.contains("10.96.0.80:80 for host,pods"), "{explain}");
    assert!(explain.contains("sockets in force: host: yes; pods: yes\n"), "{explain}");
    let plain = ferroxy(ka, &command(&["render"], &arguments(&cluster, &stage, "off"))).stdout;
    assert!(!plain.contains("sockets"));
    agent.terminate();
    let explain = ferroxy(ka, &command(&["explain", "web"], &all)).stdout;
    assert!(explain.contains("sockets in force: not known: no agent answers at "), "{explain}");
}

/// The mode name `ebpf` selects nftables mode for packets.
#[test]
fn the_mode_ebpf_is_nftables_with_all_sockets() {
    let Some(stage) = Stage::new() else { return };
    let cluster = Cluster::in_mode("ebpf");
    cluster.write_service(&web_service());
    let arguments: Vec<OsString> = arguments(&cluster, &stage, "all")
        .into_iter()
        .filter(|it| it != "--accelerate-sockets=all")
        .collect();
    let agent = Agent::start_with(stage.ka(), arguments);
    assert_eq!(agent.said("runs in nftables mode"), 1, "{}", agent.log());
    assert_eq!(agent.said("connections of the host and pods are translated at their sockets"), 1);
    agent.terminate();
}

/// One line says what is missing; everything else works.
#[test]
fn what_is_missing_is_said_in_one_line() {
    let Some(stage) = Stage::new() else { return };
    let cluster = Cluster::new();
    cluster.write_service(&web_service());
    let mut arguments = arguments(&cluster, &stage, "pods");
    arguments.push("--sockets-pods-cgroup=/sys/fs/cgroup/there-is-none".into());
    let agent = Agent::start_with(stage.ka(), arguments.clone());
    assert_eq!(
        agent.warned("connections of pods are translated by packet rules: cannot open cgroup"),
        1,
        "{}",
        agent.log()
    );
    ask_from(&stage.network, "a1", Protocol::Tcp, "10.96.0.80:80");
    let status = web::get(stage.ka(), web::METRICS, "/statusz").unwrap().body;
    assert!(status.contains("Sockets of pods: not translated: cannot open cgroup"), "{status}");
    assert_eq!(web::metrics(stage.ka())["ferroxy_sockets_translated{clients=\"pods\"}"], 0.0);
    let explain = ferroxy(stage.ka(), &command(&["explain", "web"], &arguments)).stdout;
    assert!(explain.contains("sockets in force: pods: no, cannot open cgroup"), "{explain}");
    agent.terminate();
}
