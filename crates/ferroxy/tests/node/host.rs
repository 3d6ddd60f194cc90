//! Effects of the running agent on its host and on itself: it gives up privileges, changes settings, notifies systemd.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};

use ferroxy_lab::{Namespace, Protocol};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::support::{
    self, Agent, Cluster, DEADLINE, FERROXY, Service, ferroxy, nft, run_arguments, wait_until,
};

const NET_ADMIN: u64 = 1 << 12;

fn web() -> Service {
    Service::new("web", &["10.96.0.80"]).port(Protocol::Tcp, 80, 80).endpoints(&["a1"])
}

/// A line of `/proc/<pid>/status` for each thread of a process.
fn of_each_thread(pid: u32, field: &str) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    // A thread may end while we look.
    let status = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("status")).ok());
    let value = |status: String| {
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {field} in {status}")).trim().to_owned()
    };
    status.map(value).collect()
}

#[test]
fn every_thread_has_the_privileges_of_its_mode_and_no_others() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = Cluster::new();
    cluster.write_service(&web());
    let agent = Agent::start(&node, &cluster);

    let threads = of_each_thread(agent.pid(), "CapEff");
    assert!(threads.len() > 3, "too few threads to show anything: {threads:?}");
    for (field, expected) in
        [("CapEff", NET_ADMIN), ("CapPrm", NET_ADMIN), ("CapBnd", NET_ADMIN), ("CapInh", 0), ("CapAmb", 0)]
    {
        for value in of_each_thread(agent.pid(), field) {
            assert_eq!(u64::from_str_radix(&value, 16).unwrap(), expected, "{field}");
        }
    }
    for value in of_each_thread(agent.pid(), "NoNewPrivs") {
        assert_eq!(value, "1");
    }

    // All of its work can still be done: drift is repaired, changes are programmed, addresses are seen.
    nft(&node, &["delete table ip ferroxy"]);
    agent.wait_for("drift repaired (1 so far)");
    cluster
        .write_service(&Service::new("new", &["10.96.0.81"]).port(Protocol::Tcp, 80, 80).endpoints(&["b1"]));
    agent.settle(&node);
    assert!(nft(&node, &["list map ip ferroxy sole-endpoints"]).contains("10.96.0.81 . tcp . 80"));
    assert_eq!(agent.said("privileges"), 0, "{}", agent.log());
}

/// The configuration of the corpus with these words replaced.
fn configured(changes: &[(&str, &str)]) -> (Cluster, TempDir, std::path::PathBuf) {
    let cluster = Cluster::new();
    let mut text = fs::read_to_string(cluster.config()).unwrap();
    for (before, after) in changes {
        assert!(text.contains(before), "{text}");
        text = text.replace(before, after);
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.yaml");
    fs::write(&path, text).unwrap();
    (cluster, folder, path)
}

fn conntrack_setting(node: &Namespace, name: &str) -> String {
    let read = || fs::read_to_string(format!("/proc/sys/net/netfilter/nf_conntrack_{name}"));
    node.run(read).unwrap().unwrap().trim().to_owned()
}

#[test]
fn connection_tracking_is_set_as_configured() {
    let Some(node) = support::lonely_node() else { return };
    let (cluster, _folder, config) = configured(&[
        ("tcpEstablishedTimeout: 0s", "tcpEstablishedTimeout: 7h"),
        (
            "tcpCloseWaitTimeout: 0s",
            "tcpCloseWaitTimeout: 77s\n  udpStreamTimeout: 177s\n  tcpBeLiberal: true",
        ),
    ]);
    let untouched = conntrack_setting(&node, "udp_timeout");
    let log = Agent::start_with(&node, run_arguments(&cluster.manifests(), &config)).terminate();
    let expected = [
        ("tcp_timeout_established", "25200"),
        ("tcp_timeout_close_wait", "77"),
        ("udp_timeout_stream", "177"),
        ("tcp_be_liberal", "1"),
        ("udp_timeout", &untouched),
    ];
    for (name, value) in expected {
        assert_eq!(conntrack_setting(&node, name), value, "{name}");
    }
    assert!(
        log.contains("set /proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established to 25200"),
        "{log}"
    );
    let again = Agent::start_with(&node, run_arguments(&cluster.manifests(), &config)).terminate();
    assert!(!again.contains("nf_conntrack"), "what was right already was written:\n{again}");
}

#[test]
fn init_only_prepares_the_host_and_programs_nothing() {
    let Some(node) = support::lonely_node() else { return };
    let (_cluster, _folder, config) =
        configured(&[("tcpEstablishedTimeout: 0s", "tcpEstablishedTimeout: 8h")]);
    let done = ferroxy(&node, &["run", "--init-only", "--config", config.to_str().unwrap()]);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(conntrack_setting(&node, "tcp_timeout_established"), "28800");
    assert_eq!(nft(&node, &["list ruleset"]), "");
}

#[test]
fn the_score_for_running_out_of_memory_is_as_configured() {
    let Some(node) = support::lonely_node() else { return };
    let (cluster, _folder, config) = configured(&[("conntrack:", "oomScoreAdj: 321\nconntrack:")]);
    let agent = Agent::start_with(&node, run_arguments(&cluster.manifests(), &config));
    let score = fs::read_to_string(format!("/proc/{}/oom_score_adj", agent.pid())).unwrap();
    assert_eq!(score.trim(), "321");
}

/// Runs the agent under a fake service manager until a message arrives, and then until the agent ends. Returns all messages.
fn under_a_manager(watchdog_pid: Option<&str>, until: &str) -> Option<Vec<String>> {
    let node = support::lonely_node()?;
    let cluster = Cluster::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut command = Command::new(FERROXY);
    command.arg("run").args(run_arguments(&cluster.manifests(), &cluster.config()));
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "100000").stderr(Stdio::null());
    if let Some(pid) = watchdog_pid {
        command.env("WATCHDOG_PID", pid);
    }
    let mut child = node.run(|| command.spawn()).unwrap().unwrap();
    let mut messages = Vec::new();
    let mut hear_until = |words: &str, times: usize| {
        let mut buffer = [0; 256];
        while messages.iter().filter(|message: &&String| message.starts_with(words)).count() < times {
            let length =
                manager.recv(&mut buffer).unwrap_or_else(|error| panic!("{error} after {messages:?}"));
            messages.push(String::from_utf8(buffer[..length].to_vec()).unwrap());
        }
    };
    hear_until(until, if until == "WATCHDOG" { 4 } else { 1 });
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    hear_until("STOPPING", 1);
    wait_until("the agent has ended", DEADLINE, || child.try_wait().unwrap().is_some());
    Some(messages)
}

#[test]
fn the_service_manager_is_notified_of_start_watchdog_and_end() {
    let Some(messages) = under_a_manager(None, "WATCHDOG") else { return };
    assert_eq!(messages[0], "READY=1\nSTATUS=in sync");
    let (last, beats) = messages[1..].split_last().unwrap();
    assert!(beats.iter().all(|message| message == "WATCHDOG=1"), "{messages:?}");
    assert!(last.starts_with("STOPPING=1\nSTATUS="), "{messages:?}");
}

#[test]
fn a_watchdog_for_another_program_is_not_fed() {
    let Some(messages) = under_a_manager(Some("1"), "READY") else { return };
    assert!(!messages.iter().any(|message| message.contains("WATCHDOG")), "{messages:?}");
}
