//! What the real binary says, where, and in which format.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "the functions that tests share are tests too; clippy does not know"
)]

mod support;

use std::process::{Command, Stdio};

use ferroxy_lab::Namespace;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use support::{Cluster, DEADLINE, Done, FERROXY, ferroxy, run_arguments, wait_until};

/// Runs the agent with these flags until it serves (nothing is served in its first moments), stops it, and gives what it
/// said.
fn run(node: &Namespace, flags: &[&str]) -> Done {
    let cluster = Cluster::new();
    let mut command = Command::new(FERROXY);
    command.arg("run").args(run_arguments(&cluster.manifests(), &cluster.config())).args(flags);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = node.run(|| command.spawn()).unwrap().unwrap();
    let rules = || !support::nft(node, &["list", "ruleset"]).is_empty();
    wait_until("there are rules", DEADLINE, rules);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let done = Done::of(child.wait_with_output().unwrap());
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(ferroxy(node, &["cleanup"]).code, 0);
    done
}

/// The messages of lines that must all be klog's.
fn messages(text: &str) -> Vec<(char, &str)> {
    text.lines()
        .map(|line| {
            let (head, message) = line.split_once("] ").unwrap_or_else(|| panic!("not klog: {line:?}"));
            let severity = head.chars().next().unwrap();
            let is_head = "IWE".contains(severity) && head.as_bytes()[5] == b' ' && head.contains(".rs:");
            assert!(is_head, "not klog: {line:?}");
            (severity, message)
        })
        .collect()
}

#[test]
fn text_is_that_of_klog() {
    let Some(node) = support::lonely_node() else { return };
    let done = run(&node, &["--master=https://192.0.2.1", "--bind-address=192.0.2.2"]);
    assert_eq!(done.stdout, "");
    let lines = messages(&done.stderr);
    let has =
        |severity: char, words: &str| lines.iter().any(|(s, line)| *s == severity && line.contains(words));
    assert!(has('W', "ignored because --config is given: --bind-address"), "{lines:#?}");
    assert!(has('I', "runs in nftables mode as node ka"), "{lines:#?}");
    assert!(has('I', "asked to terminate"), "{lines:#?}");
}

#[test]
fn every_line_of_json_is_json() {
    let Some(node) = support::lonely_node() else { return };
    let done = run(&node, &["--logging-format=json", "-v4"]);
    assert_eq!(done.stdout, "");
    let lines: Vec<Value> = done
        .stderr
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    assert!(
        lines.iter().all(|line| line["ts"].is_f64() && line["caller"].is_string() && line["msg"].is_string())
    );
    assert!(
        lines.iter().any(|line| line["msg"].as_str().unwrap().contains("asked to terminate")),
        "{lines:#?}"
    );
}

#[test]
fn what_ends_it_is_json_too() {
    let Some(node) = support::lonely_node() else { return };
    let flags = ["run", "--proxy-mode=nftables", "--logging-format=json", "--manifests=/no/such/directory"];
    let done = ferroxy(&node, &flags);
    assert_eq!((done.code, done.stdout.as_str()), (1, ""), "{done:?}");
    let last: Value = serde_json::from_str(done.stderr.lines().last().unwrap()).unwrap();
    assert_eq!(last["msg"], "command failed");
    assert!(last["err"].as_str().unwrap().contains("/no/such/directory"), "{last}");
}

#[test]
fn split_streams_and_buffers() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = Cluster::new();
    let config = std::fs::read_to_string(cluster.config()).unwrap();
    let gated = format!("{config}\nfeatureGates: {{LoggingAlphaOptions: true}}\n");
    for (flags, gate) in [
        (&["--log-text-split-stream"][..], true),
        (&["--log-text-split-stream", "--log-text-info-buffer-size=1Mi", "--log-flush-frequency=1h"], true),
        (&["--log-text-split-stream"], false),
    ] {
        std::fs::write(cluster.config(), if gate { &gated } else { &config }).unwrap();
        let mut arguments: Vec<_> = cluster.command(&["--init-only"]);
        arguments.extend(flags.iter().map(Into::into));
        let done = ferroxy(&node, &arguments);
        if gate {
            assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{flags:?}: {done:?}");
            let lines = messages(&done.stdout);
            assert!(
                lines.iter().any(|(_, it)| it.contains("this host has everything that")),
                "{flags:?}: {lines:#?}"
            );
        } else {
            assert_eq!((done.code, done.stdout.as_str()), (1, ""), "{flags:?}: {done:?}");
            assert!(done.stderr.contains("--log-text-split-stream: needs the feature gate"), "{done:?}");
        }
    }
}
