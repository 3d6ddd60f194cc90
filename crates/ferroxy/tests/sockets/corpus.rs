//! The recorded corpus as real packets, with sockets of host and pods translated: the same answers, but for what
//! `conformance/sockets-differences.json` lists.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use ferroxy_lab::Protocol;
use ferroxy_lab::conformance::{Case, Mode, RecordedProbe, Trial, cases};

use super::Stage;
use super::support::{Agent, Iptables, configured, ferroxy, run_arguments};

/// How many cases are played at once.
const AT_ONCE: usize = 4;

#[test]
fn the_corpus_over_nftables() {
    play_all(|name| play(name, Mode::Nftables, "nftables", None));
}

#[test]
fn the_corpus_over_iptables() {
    play_all(|name| play(name, Mode::Iptables, "iptables", Some(Iptables::nft())));
}

/// Plays all cases, and fails with the faults of all of them together.
fn play_all(play: impl Fn(&str) -> Option<Vec<String>> + Sync) {
    let waiting = Mutex::new(cases().unwrap());
    let (played, faults) = (Mutex::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(case) = { waiting.lock().unwrap().pop() } {
                    let Some(found) = play(&case.name) else { return };
                    faults.lock().unwrap().extend(found);
                    *played.lock().unwrap() += 1;
                }
            });
        }
    });
    let faults = faults.into_inner().unwrap();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

fn play(name: &str, mode: Mode, word: &str, tools: Option<Iptables>) -> Option<Vec<String>> {
    let stage = Stage::new()?;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.yaml"), configured(name, word)).unwrap();
    let mut trial = Trial::named(name, mode).unwrap();
    let listed = take_listed(&mut trial, word);
    let mut arguments: Vec<_> = run_arguments(&trial.case.folder, &folder.path().join("config.yaml")).into();
    arguments.extend(stage.flags("all"));
    let agent = match &tools {
        Some(tools) => Agent::start_using(stage.ka(), tools, arguments),
        None => Agent::start_with(stage.ka(), arguments),
    };
    agent.wait_for("connections of the host and pods are translated");
    let differences = seen(&trial, &listed, &stage);
    let log = agent.terminate();
    assert!(!log.contains("drift"), "{name}: {log}");
    // Translation must also outlive the agent.
    let after = seen(&trial, &listed, &stage);
    let pins = format!("--sockets-pins={}", stage.pins().display());
    let done = ferroxy(stage.ka(), &["cleanup".to_owned(), "--only-ours".to_owned(), pins]);
    assert_eq!(done.code, 0, "{name}: {done:?}");
    assert!(!stage.pins().exists(), "{name}: pins are left");
    Some([differences, after].concat())
}

/// The corpus on the kernel of the virtual machine, where a start is the slowest step: so one agent goes from case to case, as a
/// cluster changes. It plays only the cases of the most common configuration, because another configuration needs another start, and
/// only the probes that sockets can affect: TCP from the host and from pods on this node. All other probes are packets, which
/// `vm/conformance.rs` plays there.
pub fn in_turn(mode: Mode, word: &str) {
    let Some(stage) = Stage::new() else { return };
    let (folder, config) = (tempfile::tempdir().unwrap(), configured("clusterip-tcp", word));
    let manifests = folder.path().join("manifests");
    std::fs::create_dir(&manifests).unwrap();
    std::fs::write(folder.path().join("config.yaml"), &config).unwrap();
    let mut arguments: Vec<_> = run_arguments(&manifests, &folder.path().join("config.yaml")).into();
    arguments.extend(stage.flags("all"));
    // Changes are logged from here on.
    arguments.push("-v=2".into());
    let mut trials = Trial::all(mode).unwrap();
    trials.retain(|trial| configured(&trial.case.name, word) == config);
    let (mut running, mut faults, mut probes): (Option<Agent>, Vec<String>, usize) = (None, Vec::new(), 0);
    for trial in &mut trials {
        let listed = take_listed(trial, word);
        let concerned = |it: &RecordedProbe| {
            it.protocol == Protocol::Tcp && ["ka", "a1", "a2"].contains(&it.from.as_str())
        };
        trial.case.probes.retain(concerned);
        if trial.case.probes.is_empty() && listed.is_empty() {
            continue;
        }
        // The emulated machine may take seconds for an answer.
        trial.replies = 8;
        show(&trial.case, &manifests, running.as_ref());
        let agent = running.get_or_insert_with(|| {
            let agent = Agent::start_using(stage.ka(), &Iptables::nft(), arguments.clone());
            agent.wait_for("connections of the host and pods are translated");
            agent
        });
        probes += trial.case.probes.len() + listed.len();
        let mut found = seen(trial, &listed, &stage);
        if !found.is_empty() {
            agent.settle(stage.ka());
            found = seen(trial, &listed, &stage);
        }
        faults.extend(found);
    }
    assert!(faults.is_empty(), "{word}: {} of {probes} probes:\n{}", faults.len(), faults.join("\n"));
    let (cases, log) = (trials.len(), running.unwrap().terminate());
    assert!(!log.contains("drift") && cases > 5 && probes > 50, "{cases} cases, {probes} probes: {log}");
}

/// Replaces the cluster with this case, and waits until the agent has applied a change, which is usually the only one.
fn show(case: &Case, manifests: &Path, agent: Option<&Agent>) {
    let (new, file) = (manifests.with_file_name("new"), manifests.join("objects.yaml"));
    std::fs::copy(case.folder.join("objects.yaml"), &new).unwrap();
    let changes = |agent: &Agent| agent.said(" changed: ");
    let before = agent.map(changes);
    std::fs::rename(new, file).unwrap();
    // A case that needs the same rules as the case before changes nothing.
    let end = Instant::now() + Duration::from_secs(5);
    while agent.is_some() && agent.map(changes) == before && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The answers that are neither as recorded nor as listed.
fn seen(trial: &Trial, listed: &[(RecordedProbe, BTreeSet<String>)], stage: &Stage) -> Vec<String> {
    let ask = |recorded: &RecordedProbe| {
        let probe = recorded.clone();
        trial.ask_and_read(recorded, &stage.network, move |answer: String| as_recorded(&probe, answer))
    };
    let mut differences = trial.differences_by(ask).unwrap();
    for (probe, expected) in listed {
        let seen: BTreeSet<String> = trial.ask(probe, &stage.network).unwrap().into_keys().collect();
        if !seen.is_subset(expected) || seen.is_empty() {
            let name = &trial.case.name;
            differences.push(format!("{name}: {}: listed as {expected:?}, saw {seen:?}", probe.address));
        }
    }
    differences
}

/// Removes the probes from a case whose answers are listed as different from the recording, and returns them.
fn take_listed(trial: &mut Trial, mode: &str) -> Vec<(RecordedProbe, BTreeSet<String>)> {
    let listed = differences();
    let of_case =
        listed[mode].as_array().into_iter().flatten().filter(|it| it["case"] == trial.case.name.as_str());
    let mut taken = Vec::new();
    for difference in of_case {
        let is_it = |probe: &RecordedProbe| {
            let place = (probe.from.as_str(), probe.address.to_string(), u64::from(probe.port));
            let tcp = probe.protocol == Protocol::Tcp && difference["proto"] == "tcp";
            tcp && difference["from"] == place.0
                && difference["dst"] == place.1.as_str()
                && difference["port"] == place.2
        };
        let index = trial
            .case
            .probes
            .iter()
            .position(is_it)
            .unwrap_or_else(|| panic!("no such probe in the recording: {difference}"));
        let seen = serde_json::from_value(difference["seen"].clone()).unwrap();
        taken.push((trial.case.probes.remove(index), seen));
    }
    taken
}

fn differences() -> serde_json::Value {
    let path = super::support::repository::path("conformance/sockets-differences.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The one systematic difference: a pod that reaches itself sees its own address, where the recording has the node's.
fn as_recorded(recorded: &RecordedProbe, answer: String) -> String {
    let own = match (recorded.from.as_str(), recorded.address) {
        ("a1", IpAddr::V4(_)) => "10.244.1.5",
        ("a1", IpAddr::V6(_)) => "fd00:10:244:1::5",
        ("a2", IpAddr::V4(_)) => "10.244.1.6",
        ("a2", IpAddr::V6(_)) => "fd00:10:244:1::6",
        _ => return answer,
    };
    let node = if recorded.address.is_ipv4() { "10.244.1.1" } else { "fd00:10:244:1::1" };
    let is_itself =
        answer.starts_with(&format!("{}:", recorded.from)) && answer.ends_with(&format!(" {own}"));
    if recorded.protocol == Protocol::Tcp && is_itself {
        return answer.replace(&format!(" {own}"), &format!(" {node}"));
    }
    answer
}

#[test]
fn every_difference_has_a_reason() {
    let listed = differences();
    let rules = listed["rules"].as_array().unwrap();
    assert_eq!(rules.len(), 1);
    assert_eq!(rules[0]["recorded"], serde_json::json!(["10.244.1.1", "fd00:10:244:1::1"]));
    let all = listed.as_object().unwrap().values().flat_map(|list| list.as_array().unwrap());
    assert!(all.into_iter().all(|it| it["reason"].as_str().is_some_and(|reason| !reason.is_empty())));
}
