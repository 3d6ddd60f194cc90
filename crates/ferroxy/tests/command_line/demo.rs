//! `ferroxy demo` as users run it: what it shows is true, and it leaves nothing behind however it ends.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{DEADLINE, FERROXY};
use ferroxy_lab::{Capability, require};
use serde_json::Value;
use tempfile::TempDir;

#[test]
fn every_row_is_as_it_should_be() {
    let Some(folder) = folder() else { return };
    let output = demo(FERROXY, &folder).args(["--output", "json"]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["wrong"], Value::Array(Vec::new()));

    // Check the answers themselves, not the demo's own verdict.
    let front = row(&found["outside"], "visitor", "shop/front", "load balancer");
    assert_eq!(pods(front), ["web-1"], "policy Local, by node-1");
    assert_eq!(sources(front), ["172.18.0.100"], "policy Local keeps the source");
    let api = row(&found["outside"], "visitor", "shop/api", "node port");
    assert_eq!(pods(api), ["api-1", "api-2", "api-3"]);
    assert!(!sources(api).contains(&"172.18.0.100"), "policy Cluster masquerades: {api}");
    let ours = row(&found["inside"], "cart-1", "shop/front", "cluster IP");
    assert_eq!((pods(ours), sources(ours)), (vec!["web-1", "web-2"], vec!["10.244.1.21"; 2]));
    let denied = row(&found["outside"], "visitor", "shop/admin", "load balancer");
    assert_eq!((pods(denied).len(), &denied["failures"][0]), (0, &Value::from("timeout")));
    for client in found["affinity"].as_array().unwrap() {
        assert_eq!(client["answers"].as_array().unwrap().len(), 1, "{client}");
        assert_eq!(client["answers"][0]["requests"], 10);
    }

    let change = &found["change"];
    assert_eq!(change["failedRequests"], Value::Array(Vec::new()));
    assert!(change["requests"].as_u64().unwrap() > 300, "{change}");
    let answered: Vec<bool> =
        change["phases"].as_array().unwrap().iter().map(|phase| phase["answers"]["api-3"].is_u64()).collect();
    assert_eq!(answered, [true, false, true], "{change}");
    let problem = found["explained"]["findings"][0]["problem"].as_str().unwrap();
    assert!(problem.contains("http") && problem.contains("web"), "{problem}");
    assert_nothing_left(&folder);
}

#[test]
fn without_a_terminal_it_is_plain_text() {
    let Some(folder) = folder() else { return };
    let output = demo(FERROXY, &folder).output().unwrap();
    let (text, errors) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}\n{errors}");
    assert!(!text.contains('\x1b') && errors.is_empty(), "{text}\n{errors}");
    for part in ["node-2 172.18.0.12", "source kept: policy Local", " 0 failed", "Try next"] {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
    assert_nothing_left(&folder);
}

#[test]
fn killed_in_the_middle_it_leaves_nothing() {
    let Some(folder) = folder() else { return };
    let mut child = demo(FERROXY, &folder).stdout(Stdio::null()).spawn().unwrap();
    wait_until("both proxies run", || processes(&folder).len() == 2);
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("the proxies are gone too", || processes(&folder).is_empty());
    assert_nothing_left(&folder);
}

#[test]
fn an_ordinary_user_can_run_it_or_learns_that_root_can() {
    let Some(folder) = folder() else { return };
    if !rustix::process::geteuid().is_root() {
        return; // Then the tests above ran as an ordinary user.
    }
    // Where an ordinary user can read it.
    let program = folder.path().join("ferroxy");
    fs::copy(FERROXY, &program).unwrap();
    let own = folder.path().join("tmp");
    fs::create_dir(&own).unwrap();
    for path in [folder.path(), &own] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    const NOBODY: u32 = 65534;
    let output = demo(&program, &folder)
        .env("TMPDIR", &own)
        .uid(NOBODY)
        .gid(NOBODY)
        .current_dir("/")
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let forbidden = errors.starts_with("ferroxy: this system lets only root") && errors.lines().count() == 1;
    assert!(output.status.success() || forbidden, "{errors}");
    assert_eq!(entries(&own), Vec::<PathBuf>::new());
}

#[test]
fn the_shop_can_be_saved_and_explained_without_privileges() {
    let folder = tempfile::tempdir().unwrap();
    let shop = folder.path().join("shop");
    let saved = Command::new(FERROXY).args(["demo", "--save-shop"]).arg(&shop).status().unwrap();
    assert!(saved.success());
    let output = Command::new(FERROXY)
        .args([
            "explain",
            "shop/reviews",
            "--proxy-mode=nftables",
            "--hostname-override=node-1",
            "--manifests",
        ])
        .arg(&shop)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "something is wrong with it");
    assert!(String::from_utf8_lossy(&output.stdout).contains("port named web"));
}

/// A temporary folder for the demo, which also identifies its processes. `None` if the demo cannot run here.
fn folder() -> Option<TempDir> {
    let able = require(&[Capability::NetworkNamespaces, Capability::Bridges, Capability::NfTables]);
    able.then(|| tempfile::tempdir().unwrap())
}

fn demo(program: impl AsRef<Path>, folder: &TempDir) -> Command {
    let mut command = Command::new(program.as_ref());
    command.arg("demo").env("TMPDIR", folder.path()).stdin(Stdio::null());
    command
}

fn row<'a>(rows: &'a Value, from: &str, service: &str, frontend: &str) -> &'a Value {
    let mut rows = rows.as_array().unwrap().iter();
    rows.find(|row| row["from"] == from && row["service"] == service && row["frontend"] == frontend).unwrap()
}

fn pods(row: &Value) -> Vec<&str> {
    row["answers"].as_array().unwrap().iter().map(|answer| answer["pod"].as_str().unwrap()).collect()
}

fn sources(row: &Value) -> Vec<&str> {
    row["answers"].as_array().unwrap().iter().map(|answer| answer["source"].as_str().unwrap()).collect()
}

/// Anonymous namespaces live as long as the processes in them, so the check for processes covers them.
fn assert_nothing_left(folder: &TempDir) {
    assert_eq!(processes(folder), Vec::<String>::new());
    assert_eq!(entries(folder.path()), Vec::<PathBuf>::new());
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(folder.path().to_str().unwrap()), "{mounts}");
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Command lines that name the folder.
fn processes(folder: &TempDir) -> Vec<String> {
    let name = folder.path().to_str().unwrap();
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    // A process that has ended meanwhile has no command line any more.
    let lines = processes.filter_map(|process| fs::read_to_string(process.path().join("cmdline")).ok());
    lines.filter(|line| line.contains(name)).collect()
}

fn wait_until(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !done() {
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        thread::sleep(Duration::from_millis(5));
    }
}
