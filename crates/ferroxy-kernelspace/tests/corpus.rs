//! Ring 0 of conformance: for every recorded case and variant the final state of HNS is that of the original, but for what
//! `conformance/kernelspace-differences.json` lists. The whole dataplane runs, against the service in memory.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the functions that tests share are tests too; clippy does not know"
)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use ferroxy_core::Intent;
use ferroxy_dataplane::{Dataplane, Verifies};
use serde_json::{Value, json};
use support::{Host, balancer_line, endpoint_line, intent, repository};

struct Recording {
    case: String,
    variant: String,
    recorded: Value,
}

impl Recording {
    fn all() -> Vec<Recording> {
        let mut all = Vec::new();
        for case in sorted(&repository().join("conformance/hcn/cases")) {
            for file in sorted(&case) {
                let variant = file.file_stem().unwrap().to_str().unwrap().to_owned();
                if variant != "objects" {
                    let recorded = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
                    let case = case.file_name().unwrap().to_str().unwrap().to_owned();
                    all.push(Recording { case, variant, recorded });
                }
            }
        }
        all
    }

    fn intent(&self) -> Intent {
        let corpus = repository().join("conformance/cases");
        let own = repository().join("conformance/hcn/cases").join(&self.case).join("objects.json");
        if let Ok(text) = fs::read_to_string(own) {
            let objects: Vec<Value> = serde_json::from_str(&text).unwrap();
            let objects: Vec<String> = objects.iter().map(Value::to_string).collect();
            // Nodes, and the Service of the API server.
            let around = fs::read_to_string(corpus.join("clusterip-tcp/objects.yaml")).unwrap();
            let around: Vec<&str> = around.split("\n---\n").take(4).collect();
            return intent(&[&around.join("\n---\n"), &objects.join("\n---\n")]);
        }
        intent(&[&fs::read_to_string(corpus.join(&self.case).join("objects.yaml")).unwrap()])
    }

    fn host(&self) -> Host {
        let is_overlay = self.recorded["network"] == "overlay";
        let version = self.recorded["hnsVersion"].as_str().unwrap().parse().unwrap();
        let mut host = Host::new(is_overlay, version);
        let settings = &self.recorded["winkernel"];
        host.options.enable_dsr = settings["enableDSR"] == true;
        host.options.root_endpoint = (settings["forwardHealthCheckVip"] == true).then(|| "cbr0".to_owned());
        host
    }

    fn lines(&self) -> BTreeSet<String> {
        let list = |name: &str| self.recorded[name].as_array().unwrap().clone();
        let endpoints = list("endpoints").iter().map(endpoint_line).collect::<Vec<_>>();
        endpoints.into_iter().chain(list("loadBalancers").iter().map(balancer_line)).collect()
    }
}

fn sorted(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// Case and variant: what only the original has, and what only we have.
type Differences = BTreeMap<(String, String), (BTreeSet<String>, BTreeSet<String>)>;

fn listed() -> Differences {
    let text = fs::read_to_string(repository().join("conformance/kernelspace-differences.json")).unwrap();
    let entries: Vec<Value> = serde_json::from_str(&text).unwrap();
    let lines = |it: &Value| {
        let lines = it.as_array().unwrap().iter().map(|line| line.as_str().unwrap().to_owned());
        lines.collect::<BTreeSet<_>>()
    };
    let mut listed = Differences::new();
    for entry in entries.iter().filter(|entry| entry.get("case").is_some()) {
        assert!(entry["reason"].as_str().unwrap().len() > 40, "{entry}: give a reason");
        for variant in entry["variants"].as_array().unwrap() {
            let key = (entry["case"].as_str().unwrap().to_owned(), variant.as_str().unwrap().to_owned());
            let value = (lines(&entry["original"]), lines(&entry["ours"]));
            assert!(listed.insert(key.clone(), value).is_none(), "{key:?} is listed twice");
        }
    }
    listed
}

#[test]
fn final_states_are_those_of_the_original() {
    let mut found = Differences::new();
    let all = Recording::all();
    assert!(all.len() > 250, "only {} recordings", all.len());
    for recording in &all {
        let host = recording.host();
        host.open().start(&recording.intent()).unwrap();
        let (ours, theirs) = (host.lines(), recording.lines());
        assert!(ours.iter().all(|line| !line.contains("gone")), "{} names what is gone", recording.case);
        if ours != theirs {
            let key = (recording.case.clone(), recording.variant.clone());
            let only = |a: &BTreeSet<String>, b: &BTreeSet<String>| a.difference(b).cloned().collect();
            found.insert(key, (only(&theirs, &ours), only(&ours, &theirs)));
        }
    }
    if std::env::var_os("PRINT_DIFFERENCES").is_some() {
        for ((case, variant), (original, ours)) in &found {
            println!("{}", json!({ "case": case, "variant": variant, "original": original, "ours": ours }));
        }
    }
    let listed = listed();
    for (key, difference) in &found {
        assert_eq!(Some(difference), listed.get(key), "{key:?} differs otherwise than listed");
    }
    for key in listed.keys() {
        assert!(found.contains_key(key), "{key:?} is listed and does not differ any more");
    }
}

/// In every case, a restart and a verification find what a start left, and change nothing.
#[test]
fn a_restart_changes_nothing() {
    for recording in Recording::all() {
        let (host, intent) = (recording.host(), recording.intent());
        host.open().start(&intent).unwrap();
        let before = host.fake.service().changes();
        let mut again = host.open();
        assert_eq!(again.start(&intent).unwrap().operations, 0, "{} {}", recording.case, recording.variant);
        assert_eq!(again.verify().unwrap().operations, 0, "{} {}", recording.case, recording.variant);
        assert_eq!(host.fake.service().changes(), before);
        again.cleanup().unwrap();
        assert_eq!(host.lines(), BTreeSet::new(), "{} {}", recording.case, recording.variant);
        drop(again);
        assert_eq!(host.fake.service().open_handles(), 0);
    }
}
