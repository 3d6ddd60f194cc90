//! The log of the real binary: its messages, where they go, and in which format.

use std::fs::File;
use std::io::{PipeReader, Read, Write};
use std::process::{Child, Command, Stdio};

use ferroxy_lab::Namespace;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::{self, Cluster, DEADLINE, Done, FERROXY, Service, ferroxy, run_arguments, wait_until};

/// Runs the agent with these flags until it serves (nothing is served in its first moments), stops it, and returns its
/// output.
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

/// The bound and the renaming have their own tests, beside `log/file.rs`.
#[test]
fn a_file_gets_the_log_instead_of_standard_error() {
    let Some(node) = support::lonely_node() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ferroxy.log");
    let flag = format!("--log-file={}", path.display());
    let done = run(&node, &[&flag, "--log-file-max-size=1"]);
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("", ""));
    let text = std::fs::read_to_string(&path).unwrap();
    let lines = messages(&text);
    assert!(lines.iter().any(|(_, line)| line.contains("asked to terminate")), "{lines:#?}");
    let done = ferroxy(&node, &["run", "--proxy-mode=nftables", "--log-file=/no/such/directory/log"]);
    assert_eq!(done.code, 1);
    assert!(done.stderr.contains("--log-file: cannot write /no/such/directory/log"), "{done:?}");
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

/// Fills a pipe. Returns how many bytes fitted.
fn fill(pipe: &File) -> usize {
    let mut written = 0;
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    while poll(&mut [PollFd::new(pipe, PollFlags::OUT)], Some(&now)).unwrap() > 0 {
        (&*pipe).write_all(&[b'.'; 4096]).unwrap();
        written += 4096;
    }
    written
}

/// An agent that logs much, to a full and unread pipe.
fn run_unread(node: &Namespace, cluster: &Cluster) -> (Child, PipeReader, usize) {
    let (reader, writer) = std::io::pipe().unwrap();
    let writer = File::from(std::os::fd::OwnedFd::from(writer));
    let filled = fill(&writer);
    let mut command = Command::new(FERROXY);
    command.arg("run").args(run_arguments(&cluster.manifests(), &cluster.config())).arg("-v=9");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(writer);
    (node.run(|| command.spawn()).unwrap().unwrap(), reader, filled)
}

fn follows(node: &Namespace, cluster: &Cluster, last: u8) {
    let address = format!("10.96.0.{last}");
    let service = Service::new("web", &[&address]).port(ferroxy_lab::Protocol::Tcp, 80, 8080);
    cluster.write_service(&service.endpoints(&["10.244.2.9"]));
    let is_there = || support::nft(node, &["list", "ruleset"]).contains(&address);
    wait_until("the kernel follows", DEADLINE, is_there);
}

#[test]
fn an_unread_pipe_blocks_neither_the_work_nor_the_end() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = Cluster::new();
    let (mut child, mut reader, filled) = run_unread(&node, &cluster);
    (10..13).for_each(|last| follows(&node, &cluster, last));
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let mut code = None;
    wait_until("it ends", DEADLINE, || {
        code = child.try_wait().unwrap();
        code.is_some()
    });
    assert_eq!(code.and_then(|code| code.code()), Some(0));
    let mut text = Vec::new();
    reader.read_to_end(&mut text).unwrap();
    assert!(text.len() >= filled && text[..filled].iter().all(|byte| *byte == b'.'));
    assert_eq!(ferroxy(&node, &["cleanup"]).code, 0);
}

#[test]
fn what_waited_comes_when_stderr_is_read() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = Cluster::new();
    let (mut child, mut reader, filled) = run_unread(&node, &cluster);
    follows(&node, &cluster, 10);
    let reading = std::thread::spawn(move || {
        let mut text = Vec::new();
        reader.read_to_end(&mut text).map(|_| text)
    });
    follows(&node, &cluster, 11);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let text = String::from_utf8(reading.join().unwrap().unwrap().split_off(filled)).unwrap();
    let lines = messages(&text);
    for words in ["runs in nftables mode as node ka", "in sync", "default/web changed", "asked to terminate"]
    {
        assert!(lines.iter().any(|(_, line)| line.contains(words)), "{words}: {lines:#?}");
    }
    assert_eq!(ferroxy(&node, &["cleanup"]).code, 0);
}
