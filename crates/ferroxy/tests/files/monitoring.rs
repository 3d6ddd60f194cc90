//! The alerts and the dashboard of `deploy/prometheus`: Prometheus' own tool accepts them, and they name only metrics
//! that a running agent exposes.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;

use ferroxy_lab::Namespace;
use serde_json::{Value, json};

use crate::support::repository::{documents, output, text, tool};
use crate::support::{self, Agent, Cluster, run_arguments};

/// Words with an underscore in expressions that are not metrics.
const NO_METRICS: [&str; 5] =
    ["__rate_interval", "histogram_quantile", "ip_family", "label_values", "traffic_policy"];

/// Metrics that an agent with manifests does not expose. The unit tests of `serve/metrics.rs` check these names.
const WITH_AN_API_SERVER: [&str; 2] =
    ["ferroxy_watch_alive", "ferroxy_watch_last_activity_timestamp_seconds"];

fn alerts() -> Vec<Value> {
    let file = documents(&text("deploy/prometheus/alerts.yaml")).remove(0);
    let groups = file["groups"].as_array().unwrap().iter();
    groups.flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
}

fn dashboard() -> Value {
    serde_json::from_str(&text("deploy/prometheus/dashboard.json")).unwrap()
}

fn panels() -> Vec<Value> {
    dashboard()["panels"].as_array().unwrap().clone()
}

/// The queries of the panels, as Grafana would send them.
fn questions() -> Vec<String> {
    let targets = panels().into_iter().filter_map(|panel| panel["targets"].as_array().cloned()).flatten();
    let questions = targets.map(|target| target["expr"].as_str().unwrap().replace("$__rate_interval", "5m"));
    questions.collect()
}

/// The metrics that an expression names. All of ours have an underscore; only few other words do.
fn metrics_of(expression: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = expression.split(|c| !is_part(c)).filter(|word| word.contains('_'));
    words.filter(|word| !NO_METRICS.contains(word)).map(str::to_owned).collect()
}

/// The names of metrics in `/metrics` of an agent, also of metrics without any series yet.
fn exposed(node: &Namespace) -> BTreeSet<String> {
    let page = node.run(|| {
        let mut stream = TcpStream::connect("127.0.0.1:10249").unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        page
    });
    let page = page.unwrap();
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.trim().split_once(' '));
    let series = types.flat_map(|(name, kind)| match kind {
        "histogram" => ["_bucket", "_sum", "_count"].map(|end| format!("{name}{end}")).to_vec(),
        _ => vec![name.to_owned()],
    });
    series.collect()
}

/// The same for an agent with all optional metrics switched on.
fn exposed_in_full(node: &Namespace) -> BTreeSet<String> {
    let cluster = Cluster::new();
    let mut arguments = run_arguments(&cluster.manifests(), &cluster.config()).to_vec();
    arguments.push("--traffic-metrics".into());
    let _agent = Agent::start_with(node, arguments);
    exposed(node)
}

#[test]
fn every_metric_in_alerts_and_dashboard_is_exposed() {
    let Some(ka) = support::lonely_node() else { return };
    let mut exposed = exposed_in_full(&ka);
    exposed.extend(WITH_AN_API_SERVER.map(str::to_owned));
    let variables = dashboard()["templating"]["list"].as_array().unwrap().clone();
    let variables = variables.iter().filter(|it| it["type"] == "query").map(|it| it["query"].clone());
    let alerts = alerts().into_iter().map(|alert| alert["expr"].clone());
    let asked = alerts.chain(variables).map(|it| it.as_str().unwrap().to_owned()).chain(questions());
    let mut named = BTreeSet::new();
    for expression in asked {
        let metrics = metrics_of(&expression);
        assert!(!metrics.is_empty(), "no metric in {expression}");
        named.extend(metrics);
    }
    let unknown: Vec<&String> = named.difference(&exposed).collect();
    assert!(unknown.is_empty(), "nobody exposes {unknown:?}; there are {exposed:?}");
}

/// Metrics of ours that the dashboard does not show, by how their names begin.
const NOT_ON_THE_DASHBOARD: [(&str, &str); 3] = [
    (
        "ferroxy_endpoint_",
        "what ferroxy_service_* has, with a series for each endpoint: too many for an overview",
    ),
    ("ferroxy_service_packets_", "bytes and connections show the same"),
    (
        "ferroxy_source_",
        "the API server has a series for each resource, of which the dashboard shows the oldest",
    ),
];

#[test]
fn every_metric_of_ours_is_on_the_dashboard_or_has_a_reason_not_to_be() {
    let Some(ka) = support::lonely_node() else { return };
    let mut exposed = exposed_in_full(&ka);
    exposed.extend(WITH_AN_API_SERVER.map(str::to_owned));
    let shown: BTreeSet<String> = questions().iter().flat_map(|question| metrics_of(question)).collect();
    // One series of a histogram is enough.
    let base = |name: &str| {
        let ends = ["_bucket", "_sum", "_count"];
        ends.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name).to_owned()
    };
    let shown: BTreeSet<String> = shown.iter().map(|name| base(name)).collect();
    let ours: BTreeSet<String> =
        exposed.iter().filter(|it| it.starts_with("ferroxy_")).map(|it| base(it)).collect();
    let excused = |name: &String| NOT_ON_THE_DASHBOARD.iter().any(|(begin, _)| name.starts_with(begin));
    let missing: Vec<&String> = ours.difference(&shown).filter(|name| !excused(name)).collect();
    assert!(missing.is_empty(), "the dashboard shows nothing of {missing:?}");
    for (begin, why) in NOT_ON_THE_DASHBOARD {
        assert!(ours.iter().any(|name| name.starts_with(begin)), "nothing begins with {begin} ({why})");
        assert!(!shown.iter().any(|name| name.starts_with(begin)), "the dashboard shows {begin} ({why})");
    }
}

#[test]
fn metrics_are_found_in_expressions() {
    let found = metrics_of("sum by (ip_family) (rate(a_total{job=\"x\"}[$__rate_interval])) > b_c / d");
    assert_eq!(found, BTreeSet::from(["a_total".to_owned(), "b_c".to_owned()]));
}

#[test]
fn promtool_accepts_the_alerts_and_their_tests() {
    let Some(mut check) = tool("promtool") else { return };
    output(check.args(["check", "rules", "--lint-fatal", "deploy/prometheus/alerts.yaml"]), "");
    let mut test = tool("promtool").unwrap();
    output(test.args(["test", "rules", "deploy/prometheus/alerts.test.yaml"]), "");
}

#[test]
fn every_alert_is_tested_both_ways() {
    let tests = documents(&text("deploy/prometheus/alerts.test.yaml")).remove(0);
    let tests = tests["tests"].as_array().unwrap().iter();
    let cases: Vec<&Value> = tests.flat_map(|it| it["alert_rule_test"].as_array().unwrap()).collect();
    for alert in alerts() {
        let of_alert: Vec<&&Value> =
            cases.iter().filter(|case| case["alertname"] == alert["alert"]).collect();
        let firing = of_alert.iter().filter(|case| case.get("exp_alerts").is_some()).count();
        assert!(firing > 0, "{} is never seen firing", alert["alert"]);
        assert!(firing < of_alert.len(), "{} is never seen silent", alert["alert"]);
    }
}

#[test]
fn promtool_reads_what_the_dashboard_asks() {
    let Some(mut promtool) = tool("promtool") else { return };
    let rules: Vec<Value> = questions()
        .iter()
        .enumerate()
        .map(|(i, question)| json!({ "record": format!("question:{i}"), "expr": question }))
        .collect();
    assert!(rules.len() > 20);
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    let groups = json!({ "groups": [{ "name": "dashboard", "rules": rules }] });
    serde_json::to_writer(&file, &groups).unwrap();
    output(promtool.args(["check", "rules"]).arg(file.path()), "");
}

#[test]
fn panels_have_their_own_place_and_number() {
    let mut numbers = BTreeSet::new();
    let mut places = BTreeSet::new();
    for panel in panels() {
        assert!(numbers.insert(panel["id"].as_u64().unwrap()), "the number of {} is taken", panel["title"]);
        let side = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        assert!(side("x") + side("w") <= 24, "{} is too wide", panel["title"]);
        for x in side("x")..side("x") + side("w") {
            for y in side("y")..side("y") + side("h") {
                assert!(places.insert((x, y)), "{} is drawn over another", panel["title"]);
            }
        }
    }
}
