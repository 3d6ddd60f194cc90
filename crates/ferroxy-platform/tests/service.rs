//! The service manager of Windows (wine has one): this program registers itself as a service, is started and is stopped.

#![cfg(windows)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "the functions that tests share are tests too")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Long enough on a machine that is very busy.
const PATIENCE: Duration = Duration::from_secs(1800);

const NAME: &str = "ferroxy-test";

/// A service does not have our environment: it writes a trace beside the program.
fn trace_file() -> PathBuf {
    std::env::current_exe().unwrap().with_extension("service-trace")
}

/// What the service manager starts.
#[test]
#[ignore = "the service manager starts it, for the test below"]
fn as_service() {
    let work = || {
        let (sender, receiver) = mpsc::channel();
        ferroxy_platform::signals::watch(move |reason| sender.send(reason.unwrap()).unwrap()).unwrap();
        fs::write(trace_file(), "running").unwrap();
        let reason = receiver.recv_timeout(PATIENCE);
        fs::write(trace_file(), format!("{reason:?}")).unwrap();
        7
    };
    ferroxy_platform::service::run(NAME, work).unwrap();
}

/// Exit code and output of a command of the system.
fn command(program: &str, args: &[&str]) -> (bool, String) {
    let output = Command::new(program).args(args).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

fn wait_for(path: &Path, text: &str) {
    let begun = Instant::now();
    while fs::read_to_string(path).unwrap_or_default() != text {
        let seen = fs::read_to_string(path);
        assert!(begun.elapsed() < PATIENCE, "{text} never came: {seen:?}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn the_service_manager_starts_and_stops_it() {
    let trace = trace_file();
    let _ = fs::remove_file(&trace);
    command("sc", &["delete", NAME]);
    let program = std::env::current_exe().unwrap();
    let line = format!("\"{}\" --exact as_service --ignored", program.display());
    let (created, output) = command("sc", &["create", NAME, "binPath=", &line, "start=", "demand"]);
    assert!(created, "{output}");
    let (started, output) = command("net", &["start", NAME]);
    assert!(started, "{output}");
    wait_for(&trace, "running");
    let (stopped, output) = command("net", &["stop", NAME]);
    assert!(stopped, "{output}");
    wait_for(&trace, "Ok(Terminated)");
    let (deleted, output) = command("sc", &["delete", NAME]);
    assert!(deleted, "{output}");
    let _ = fs::remove_file(&trace);
}
