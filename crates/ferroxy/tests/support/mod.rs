//! Support for tests of the real binary: an agent in a namespace, one-shot commands, and manifests to edit while the
//! agent runs.

// Every test program uses only a part of this.
#![allow(
    dead_code,
    unused_imports,
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests; clippy only knows their functions"
)]

mod agent;
mod cluster;
pub mod corpus;
#[cfg(target_os = "linux")]
pub mod health;
pub mod hostile;
mod iptables;
mod owner;
mod recorded;
pub mod repository;
mod stage;
#[cfg(target_os = "linux")]
pub mod terminal;
mod traffic;
pub mod web;

use std::ffi::OsStr;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use ferroxy_lab::{ANSWER, Answer, Capability, Namespace, Network, Protocol, ask, require};

pub use agent::{Agent, arguments as run_arguments};
pub use cluster::{Cluster, Service, balanced, configuration, configured, node, service_cidr};
pub use iptables::Iptables;
pub use owner::OwnedTable;
pub use recorded::{RecordedIpvs, restore};
pub use stage::{Setting, Stage};
pub use traffic::{Traffic, web_service};

/// Only a test that fails waits this long.
pub const DEADLINE: Duration = ferroxy_lab::PATIENCE;

pub const FERROXY: &str = env!("CARGO_BIN_EXE_ferroxy");

/// The conformance network, or None if this machine does not support it (prints a message; fails in CI).
pub fn network() -> Option<Network> {
    let needs = [Capability::Bridges, Capability::BridgeNetfilter, Capability::NfTables, Capability::NftTool];
    require(&needs).then(|| Network::conformance().unwrap())
}

/// One lonely namespace, for tests that need rules but no traffic.
pub fn lonely_node() -> Option<Namespace> {
    require(&[Capability::NfTables, Capability::NftTool]).then(|| Namespace::new("ka").unwrap())
}

/// A command of `ferroxy` that ends by itself.
pub fn ferroxy<S: AsRef<OsStr> + Sync>(node: &Namespace, arguments: &[S]) -> Done {
    Done::of(
        node.run(|| Command::new(FERROXY).args(arguments).stdin(Stdio::null()).output()).unwrap().unwrap(),
    )
}

/// The same with a PATH on which the names of the iptables tools lead to one variant.
pub fn ferroxy_with<S: AsRef<OsStr> + Sync>(node: &Namespace, tools: &Iptables, arguments: &[S]) -> Done {
    let run =
        || Command::new(FERROXY).args(arguments).env("PATH", tools.path()).stdin(Stdio::null()).output();
    Done::of(node.run(run).unwrap().unwrap())
}

/// Runs `nft`, which must succeed, and returns its output.
pub fn nft<S: AsRef<OsStr> + Sync + std::fmt::Debug>(node: &Namespace, arguments: &[S]) -> String {
    let done = Done::of(node.run(|| Command::new("nft").args(arguments).output()).unwrap().unwrap());
    assert_eq!(done.code, 0, "nft {arguments:?}: {}", done.stderr);
    done.stdout
}

/// All rules as the official tool shows them. Sorted, because the tool lists chains in the order of their creation.
pub fn listing(node: &Namespace) -> Vec<String> {
    let ruleset = nft(node, &["--stateless", "list", "ruleset"]);
    let mut lines: Vec<String> = ruleset.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// A command that has ended.
#[derive(Debug)]
pub struct Done {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Done {
    pub fn of(output: Output) -> Done {
        Done {
            code: output.status.code().unwrap_or_else(|| panic!("ended by a signal: {output:?}")),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }
}

/// One connection (or datagram) from a namespace of the network, and what came back.
pub fn ask_from(network: &Network, from: &str, protocol: Protocol, target: &str) -> Answer {
    let target = target.parse().unwrap_or_else(|_| panic!("{target}: no address and port"));
    network.namespace(from).unwrap().run(|| ask(protocol, target, ANSWER)).unwrap().unwrap()
}

/// The pod that answered.
pub fn pod_from(network: &Network, from: &str, protocol: Protocol, target: &str) -> String {
    match ask_from(network, from, protocol, target) {
        Answer::Reply(line) => pod_of(&line).to_owned(),
        other => panic!("{from} -> {protocol} {target}: {other}"),
    }
}

/// `a1:80 10.244.1.5` came from `a1`.
pub fn pod_of(line: &str) -> &str {
    line.split_once(':').unwrap_or_else(|| panic!("not a pod's answer: {line}")).0
}

/// Polls until the condition is true, and returns how long that took.
pub fn wait_until(what: &str, deadline: Duration, mut is_so: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < deadline, "{what}: not within {deadline:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    start.elapsed()
}
