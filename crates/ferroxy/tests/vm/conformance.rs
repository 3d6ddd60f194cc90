//! The conformance corpus as real packets on the kernel of the virtual machine, in every mode. One agent for each mode goes from
//! case to case, as a cluster changes, because a start is the slowest step there. (`node/conformance.rs` plays each case by itself, on
//! this machine's kernel.)

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use ferroxy_lab::Namespace;
use ferroxy_lab::conformance::{Case, Mode, Trial};
use tempfile::TempDir;

use crate::support::corpus::command;
use crate::support::{
    self, Agent, DEADLINE, Done, Iptables, configured, ferroxy_with, nft, run_arguments, wait_until,
};

#[test]
#[ignore = "this machine's kernel plays it in conformance.rs: make test-vm"]
fn nftables() {
    let left = |ka: &Namespace| assert_eq!(nft(ka, &["list", "ruleset"]), "");
    play("nftables", Mode::Nftables, &Iptables::nft(), left);
}

#[test]
#[ignore = "this machine's kernel plays it in conformance.rs: make test-vm"]
fn iptables() {
    play("iptables", Mode::Iptables, &Iptables::nft(), |_| ());
}

#[test]
#[ignore = "this machine's kernel plays it in conformance.rs: make test-vm"]
fn iptables_legacy() {
    play("iptables", Mode::Iptables, &Iptables::legacy(), |_| ());
}

#[test]
#[ignore = "needs IPVS: make test-vm"]
fn ipvs() {
    let left = |ka: &Namespace| {
        assert_eq!(printed(ka, "ipvsadm -Sn"), "");
        assert_eq!(printed(ka, "ipset list -n"), "");
        assert!(!printed(ka, "ip -o link").contains("kube-ipvs0"));
    };
    play("ipvs", Mode::Ipvs, &Iptables::nft(), left);
}

/// A selection, because the proxy of a debug build is slow in an emulated machine: both protocols and families, node ports, policies,
/// source ranges and affinity.
#[test]
#[ignore = "this machine's kernel plays it in conformance.rs: make test-vm"]
fn userspace() {
    let cases = [
        "clusterip-affinity",
        "clusterip-udp",
        "dual-stack",
        "lb-local",
        "lb-source-ranges",
        "nodeport-cluster",
    ];
    let left = |ka: &Namespace| {
        assert_eq!(nft(ka, &["list", "ruleset"]), "");
        assert_eq!(printed(ka, "ip route show table local proto 102"), "");
        assert_eq!(printed(ka, "ip -6 route show table local proto 102"), "");
    };
    play_some("userspace", Mode::Userspace, &Iptables::nft(), left, |name| cases.contains(&name));
}

fn play(mode: &str, recorded_as: Mode, tools: &Iptables, is_left: impl Fn(&Namespace)) {
    play_some(mode, recorded_as, tools, is_left, |_| true);
}

/// Plays cases with the same configuration one after another. Reports every difference from the recording.
fn play_some(
    mode: &str,
    recorded_as: Mode,
    tools: &Iptables,
    is_left: impl Fn(&Namespace),
    is_wanted: impl Fn(&str) -> bool,
) {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let before = tools.rules(ka);
    let mut trials = Trial::all(recorded_as).unwrap();
    trials.retain(|trial| is_wanted(&trial.case.name));
    // The emulated machine may take seconds for an answer.
    trials.iter_mut().for_each(|trial| trial.replies = 8);
    trials.sort_by_key(|trial| configured(&trial.case.name, mode));
    let mut node = Node::new(ka, tools);
    let (mut faults, mut probes) = (Vec::new(), 0);
    for trial in &trials {
        node.show(&trial.case, &configured(&trial.case.name, mode));
        probes += trial.case.probes.len();
        let mut found = trial.differences(&network).unwrap();
        if !found.is_empty() {
            node.settle();
            found = trial.differences(&network).unwrap();
        }
        faults.extend(found);
    }
    assert!(faults.is_empty(), "{mode}: {} of {probes} probes:\n{}", faults.len(), faults.join("\n"));
    node.stop_and_start_again(recorded_as != Mode::Userspace);
    let cleanup = ferroxy_with(ka, tools, &["cleanup"]);
    assert_eq!(cleanup.code, 0, "{cleanup:?}");
    assert_eq!(tools.rules(ka), before);
    is_left(ka);
    let summary = format!("{mode}: {} cases and {probes} probes as recorded\n", trials.len());
    // Not println!, whose output the test harness keeps to itself.
    std::io::stderr().write_all(summary.as_bytes()).unwrap();
}

/// The node under test: an agent, and the files it follows.
struct Node<'a> {
    ka: &'a Namespace,
    tools: &'a Iptables,
    folder: TempDir,
    running: Option<(String, Agent)>,
}

impl<'a> Node<'a> {
    fn new(ka: &'a Namespace, tools: &'a Iptables) -> Node<'a> {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("manifests")).unwrap();
        Node { ka, tools, folder, running: None }
    }

    /// Replaces the cluster with this case, and waits until the agent has applied a change, which is usually the only one.
    /// (Only a `diff` could prove that it is, but a `diff` starts many programs. It runs after a wrong answer, and at the end.)
    /// Only another configuration restarts the agent.
    fn show(&mut self, case: &Case, config: &str) {
        let (new, file) = (self.folder.path().join("new"), self.folder.path().join("manifests/objects.yaml"));
        fs::copy(case.folder.join("objects.yaml"), &new).unwrap();
        if let Some((_, agent)) = self.running.take_if(|(running, _)| running != config) {
            agent.terminate();
        }
        if let Some((_, agent)) = &self.running {
            let changes = agent.said(" changed: ");
            fs::rename(new, file).unwrap();
            // A case that needs the same rules as the case before changes nothing.
            let end = Instant::now() + Duration::from_secs(5);
            while agent.said(" changed: ") == changes && Instant::now() < end {
                thread::sleep(Duration::from_millis(50));
            }
        } else {
            fs::rename(new, file).unwrap();
            fs::write(self.folder.path().join("config.yaml"), config).unwrap();
            let agent = Agent::start_using(self.ka, self.tools, self.arguments());
            self.running = Some((config.to_owned(), agent));
        }
    }

    fn settle(&self) {
        let (_, agent) = self.running.as_ref().unwrap();
        agent.settle(self.ka);
    }

    /// Listeners end with the process, so a start of a mode with listeners always has work to do.
    fn stop_and_start_again(&mut self, outlives_the_process: bool) {
        let (_, agent) = self.running.take().unwrap();
        let log = agent.terminate();
        let stays = log.contains("what is programmed stays in force");
        assert!(stays == outlives_the_process && !log.contains("drift"), "{log}");
        let agent = Agent::start_using(self.ka, self.tools, self.arguments());
        // Objects that the last case left unused are removed a second after the start.
        wait_until("nothing is left to tidy", DEADLINE, || agent.differences(self.ka).is_empty());
        let diff = ferroxy_with(self.ka, self.tools, &command("diff", &self.arguments()));
        assert_eq!(
            (diff.code, diff.stdout.as_str()),
            (0, "the kernel has exactly this\n"),
            "{}",
            diff.stderr
        );
        let log = agent.terminate();
        assert_eq!(log.contains("nothing to send"), outlives_the_process, "a restart sent something:\n{log}");
    }

    fn arguments(&self) -> Vec<OsString> {
        let folder = self.folder.path();
        let mut arguments = run_arguments(&folder.join("manifests"), &folder.join("config.yaml")).to_vec();
        // From this level on, changes are logged.
        arguments.push("-v=2".into());
        arguments
    }
}

fn printed(node: &Namespace, command: &str) -> String {
    let mut words = command.split(' ');
    let mut program = Command::new(words.next().unwrap());
    let done = Done::of(node.run(|| program.args(words).output()).unwrap().unwrap());
    assert_eq!(done.code, 0, "{command}: {}", done.stderr);
    done.stdout
}
