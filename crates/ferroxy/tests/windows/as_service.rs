//! The program as a service that cannot start. The standard error of a service is not visible.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ferroxy_lab::PATIENCE;
use tempfile::TempDir;

/// The name that the program registers.
const SERVICE: &str = "kube-proxy";

fn system(program: &str, args: &[&str]) -> String {
    let wine = std::env::var("WINE").expect("WINE names what runs programs: use `make test-windows`");
    let output = Command::new(wine).arg(program).args(args).stdin(Stdio::null()).output().unwrap();
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

/// The path by which wine names a file of this machine.
fn windows(path: &Path) -> String {
    format!("Z:{}", path.display()).replace('/', "\\")
}

fn start(flags: &str, log: &Path) {
    let program = std::env::var("FERROXY_EXE").expect("FERROXY_EXE names the program");
    let line = format!("\"{}\" {flags} --log-file={}", windows(Path::new(&program)), windows(log));
    let created = system("sc", &["create", SERVICE, "binPath=", &line, "start=", "demand"]);
    let started = system("net", &["start", SERVICE]);
    let began = Instant::now();
    while fs::read_to_string(log).unwrap_or_default().lines().next().is_none() {
        assert!(began.elapsed() < PATIENCE, "no log: {flags}: {created} {started}");
        thread::sleep(Duration::from_millis(50));
    }
    // The service manager knows whether the program has ended.
    while system("sc", &["query", SERVICE]).contains("RUNNING") {
        assert!(began.elapsed() < PATIENCE, "it does not end: {flags}");
        thread::sleep(Duration::from_millis(50));
    }
    system("sc", &["delete", SERVICE]);
}

/// A flag that does not exist, a configuration with an error, one that also asks for the service, and an error at work.
#[test]
#[ignore = "needs wine: make test-windows"]
fn a_service_that_does_not_start_says_why_in_its_log_file() {
    let folder = TempDir::new().unwrap();
    let config = folder.path().join("bad.conf");
    let asks = folder.path().join("asks.conf");
    let header = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
    fs::write(&config, format!("{header}mode: nonsense\n")).unwrap();
    fs::write(&asks, format!("{header}windowsRunAsService: true\nmode: nonsense\n")).unwrap();
    system("sc", &["delete", SERVICE]);
    let cases = [
        ("run --windows-service --no-such-flag".to_owned(), "--no-such-flag"),
        (format!("run --windows-service --config={}", windows(&config)), "nonsense"),
        (format!("run --config={}", windows(&asks)), "nonsense"),
        ("run --windows-service --kubeconfig=Z:\\nowhere".to_owned(), "nowhere"),
    ];
    for (number, (flags, reason)) in cases.iter().enumerate() {
        let log = folder.path().join(format!("{number}.log"));
        start(flags, &log);
        let text = fs::read_to_string(&log).unwrap();
        assert!(text.lines().any(|line| line.starts_with('E') && line.contains(reason)), "{flags}: {text}");
    }
}
