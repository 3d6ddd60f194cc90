//! `docs/api.md` and the program: every kind that is printed is documented, and the fields of `Ruleset`, `Diff`, `Bundle` and `Status` are
//! the documented ones, in both directions.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use ferroxy::modes::MODES;
use ferroxy_lab::Protocol;
use serde_json::Value;

use crate::support::{self, Agent, Cluster, Done, FERROXY, Service, ferroxy, run_arguments};

type Names = BTreeSet<String>;

fn page() -> String {
    support::repository::text("docs/api.md")
}

/// The words in backticks. A word with a space, an equals sign and so on is not a field.
fn quoted(text: &str) -> Names {
    let words = text.split('`').skip(1).step_by(2).filter(|word| !word.contains([' ', '=', '/', '-', '(']));
    words.map(str::to_owned).collect()
}

/// A part of the page, from its title to the next one.
fn section<'a>(page: &'a str, title: &str) -> &'a str {
    let (_, rest) = page.split_once(&format!("\n### {title}\n")).unwrap();
    rest.split_once("\n##").map_or(rest, |(section, _)| section)
}

/// The names of all fields, at every depth.
fn names(value: &Value, into: &mut Names) {
    match value {
        Value::Object(fields) => {
            into.extend(fields.keys().cloned());
            fields.values().for_each(|it| names(it, into));
        }
        Value::Array(items) => items.iter().for_each(|it| names(it, into)),
        _ => {}
    }
}

fn fields(value: &Value) -> Names {
    value
        .as_object()
        .unwrap()
        .keys()
        .filter(|it| !["apiVersion", "kind"].contains(&it.as_str()))
        .cloned()
        .collect()
}

/// A cluster in which every part of a ruleset has something in it.
fn cluster(mode: &str) -> Cluster {
    let cluster = Cluster::in_mode(mode);
    let web = Service::new("web", &["10.96.0.80"]).node_port(Protocol::Tcp, 80, 8080, 30080);
    cluster.write_service(&web.endpoints(&["a1", "b1"]).affinity(60));
    cluster
}

#[test]
fn every_kind_is_documented() {
    let page = page();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut kinds = Names::new();
    let mut folders = vec![sources];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let made = text.split("document(").skip(1).filter_map(|rest| rest.trim_start().strip_prefix('"'));
            kinds.extend(made.filter_map(|rest| rest.split('"').next()).map(str::to_owned));
        }
    }
    assert!(kinds.len() > 10, "{kinds:?}");
    for kind in &kinds {
        let is_named = page.contains(&format!("`{kind}`")) || page.contains(&format!("### {kind}\n"));
        assert!(is_named || page.contains(&format!("\"kind\": \"{kind}\"")), "{kind}");
    }
    for title in ["Ruleset", "Diff", "Bundle"] {
        assert!(kinds.contains(title) && page.contains(&format!("\n### {title}\n")), "{title}");
    }
}

#[test]
fn a_ruleset_has_the_documented_fields_in_every_mode() {
    let page = page();
    let section = section(&page, "Ruleset");
    let render = |mode: &str, more: &[&str]| {
        let cluster = cluster(mode);
        let words = cluster.command(&["render", "--output=json"]);
        let done = Done::of(Command::new(FERROXY).args(words).args(more).output().unwrap());
        assert_eq!(done.code, 0, "{mode}: {}", done.stderr);
        let mut value = done.json();
        assert_eq!((&value["kind"], &value["mode"]), (&"Ruleset".into(), &mode.into()));
        value
            .as_object_mut()
            .unwrap()
            .retain(|name, _| !["apiVersion", "kind", "mode"].contains(&name.as_str()));
        let mut found = Names::new();
        names(&value, &mut found);
        found
    };
    for mode in MODES.iter() {
        let row = section.lines().find(|line| line.starts_with(&format!("| `{}` |", mode.name)));
        let (_, described) = row.unwrap().split_once("` |").unwrap();
        let mut documented = quoted(described);
        documented.remove("null");
        assert_eq!(render(mode.name, &[]), documented, "{}", mode.name);
    }
    let sentence = section.lines().find(|line| line.starts_with("With `--accelerate-sockets`")).unwrap();
    let mut documented = quoted(sentence);
    documented.extend(render("nftables", &[]));
    assert_eq!(render("nftables", &["--accelerate-sockets=all"]), documented);
}

/// The first column of the tables in a section.
fn first_column(section: &str) -> Names {
    section
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .flat_map(|row| quoted(&format!("`{}", row.split('|').next().unwrap())))
        .collect()
}

#[test]
fn diff_bundle_and_status_have_the_documented_fields() {
    let Some(node) = support::lonely_node() else { return };
    let (cluster, page) = (cluster("nftables"), page());
    let before = ferroxy(&node, &cluster.command(&["diff", "--output=json"]));
    assert_eq!((before.code, fields(&before.json())), (2, first_column(section(&page, "Diff"))));
    assert!(!before.json()["operations"].as_array().unwrap().is_empty());
    assert_eq!(before.json()["text"], ferroxy(&node, &cluster.command(&["diff"])).stdout.as_str());

    let all = run_arguments(&cluster.manifests(), &cluster.config()).into_iter();
    let arguments: Vec<OsString> = all.chain(["--page-address=127.0.0.1".into()]).collect();
    let _agent = Agent::start_with(&node, arguments);
    let bundle = ferroxy(&node, &["record", "--file=-"]).json();
    let mut documented = first_column(section(&page, "Bundle"));
    documented.insert("kernel".to_owned());
    assert_eq!(fields(&bundle), documented);
    let example = section(&page, "Status").split("```json").nth(1).unwrap().split("```").next().unwrap();
    let example: Value = serde_json::from_str(example).unwrap();
    assert_eq!(fields(&bundle["status"]), fields(&example));
    for part in ["queue", "source", "services", "latency", "process", "journal"] {
        assert_eq!(fields(&bundle["status"][part]), fields(&example[part]), "{part}");
    }
    let same = ferroxy(&node, &cluster.command(&["diff", "--output=yaml"]));
    assert_eq!(same.code, 0, "{}{}", same.stdout, same.stderr);
    assert!(same.stdout.contains("kind: Diff") && same.stdout.contains("operations: []"), "{}", same.stdout);
}
