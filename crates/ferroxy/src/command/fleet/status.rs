//! `kubectl ferroxy status`: one line for each node, problems below, and an exit code for scripts.

use std::collections::BTreeMap;

use anyhow::ensure;
use clap::Args;
use ferroxy_core::foreign::printable;
use serde_json::{Value, json};

use super::nodes;
use super::reach::{Reach, Said};
use crate::command::Answer;
use crate::command::status::{milliseconds, troubles, words};
use crate::output::{Paint, Table};
use crate::view::document;

/// A status names at most 100 refused Services.
const LARGEST: usize = 1 << 20;

#[derive(Debug, Args)]
pub struct Status {}

impl Status {
    pub fn run(self, reach: &Reach) -> anyhow::Result<Answer> {
        ensure!(
            reach.named_namespace().is_none(),
            "--namespace: `status` is about nodes, which belong to no namespace; `top` and `explain` take one"
        );
        let (said, not_listed) = reach.open()?.ask_everywhere("status", LARGEST);
        let rows = judged(said);
        reach.output.print(|| text(&rows, Paint::stdout()), || value(&rows, not_listed.as_deref()))?;
        Ok(if rows.iter().all(|row| row.state.is_fine()) { Answer::Yes } else { Answer::No })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Ok,
    Syncing,
    Differs,
    Problem,
    NoAnswer,
    NoAgent,
}

impl State {
    const ALL: [State; 6] =
        [State::Ok, State::Syncing, State::Differs, State::Problem, State::NoAnswer, State::NoAgent];

    fn words(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Syncing => "syncing",
            State::Differs => "differs",
            State::Problem => "problem",
            State::NoAnswer => "no answer",
            State::NoAgent => "no agent",
        }
    }

    /// The state of `count` nodes in words: `1 is ok`, `2 do not answer`.
    fn sentence(self, count: usize) -> String {
        let (one, many) = match self {
            State::Ok => ("is ok", "are ok"),
            State::Syncing => ("is syncing", "are syncing"),
            State::Differs => ("differs from most", "differ from most"),
            State::Problem => ("has a problem", "have a problem"),
            State::NoAnswer => ("does not answer", "do not answer"),
            State::NoAgent => ("has no agent", "have no agent"),
        };
        format!("{count} {}", if count == 1 { one } else { many })
    }

    fn is_fine(self) -> bool {
        matches!(self, State::Ok | State::Syncing)
    }
}

#[derive(Debug)]
struct Row {
    node: String,
    /// Empty if the node has no agent.
    pod: String,
    state: State,
    /// Problems, one sentence each.
    reasons: Vec<String>,
    /// Null without an answer.
    status: Value,
}

/// Compares the answer of each node with the most frequent values.
fn judged(said: Vec<Said>) -> Vec<Row> {
    let version = usual(&said, |status| status["version"].as_str().map(str::to_owned));
    let known = usual(&said, |status| status["services"]["known"].as_u64());
    let judge = |said: Said| {
        let Said { node, pod, answer } = said;
        let (state, reasons, status) = match answer {
            Err(reason) if pod.is_empty() => (State::NoAgent, vec![reason.words], Value::Null),
            Err(reason) => (State::NoAnswer, vec![reason.words], Value::Null),
            Ok(status) => {
                let (state, reasons) = judge(&status, version.as_deref(), known);
                (state, reasons, status)
            }
        };
        Row { node, pod, state, reasons, status }
    };
    said.into_iter().map(judge).collect()
}

fn judge(status: &Value, version: Option<&str>, known: Option<u64>) -> (State, Vec<String>) {
    let wrong = troubles(status);
    if !wrong.is_empty() {
        return (State::Problem, wrong);
    }
    let mut differences = Vec::new();
    if status["version"].as_str() != version {
        let (own, most) = (words(&status["version"]), version.unwrap_or_default());
        differences.push(format!("it runs version {own}; most nodes run {}", printable(most)));
    }
    let is_in_sync = status["inSync"] == true;
    if let (Some(own), Some(most)) = (status["services"]["known"].as_u64(), known)
        && own != most
        && is_in_sync
    {
        differences.push(format!("it knows {own} Services; most nodes know {most}"));
    }
    match (differences.is_empty(), is_in_sync) {
        (false, _) => (State::Differs, differences),
        (true, true) => (State::Ok, Vec::new()),
        (true, false) => (State::Syncing, Vec::new()),
    }
}

/// The most frequent value; if several are equally frequent, the greatest.
fn usual<T: Ord>(said: &[Said], of: impl Fn(&Value) -> Option<T>) -> Option<T> {
    let mut counts: BTreeMap<T, usize> = BTreeMap::new();
    for value in said.iter().filter_map(|it| of(it.answer.as_ref().ok()?)) {
        *counts.entry(value).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(value, _)| value)
}

/// Services that are known and not in force: refused, or waiting.
fn not_in_force(status: &Value) -> Option<u64> {
    Some(status["services"]["refused"].as_u64()? + status["queue"]["services"].as_u64()?)
}

fn text(rows: &[Row], paint: Paint) -> String {
    let mut table = Table::default();
    let titles = ["NODE", "VERSION", "MODE", "STATE", "SERVICES", "NOT IN FORCE", "WITH PROBLEMS", "LAG"];
    table.row(titles.map(|title| paint.strong(title)));
    let number = |value: Option<u64>| value.map_or("-".to_owned(), |number| number.to_string());
    for row in rows {
        let status = &row.status;
        let known = |value: &Value| if value.is_null() { "-".to_owned() } else { words(value) };
        table.row([
            row.node.clone(),
            known(&status["version"]),
            known(&status["mode"]),
            painted(row.state, paint),
            number(status["services"]["known"].as_u64()),
            number(not_in_force(status)),
            number(status["services"]["problems"].as_u64()),
            lag(status),
        ]);
    }
    let mut text = table.to_string();
    let reasons = rows.iter().flat_map(|row| row.reasons.iter().map(move |reason| (row, reason)));
    for (index, (row, reason)) in reasons.enumerate() {
        let gap = if index == 0 { "\n" } else { "" };
        text.push_str(&format!("{gap}{} {}: {reason}\n", painted(row.state, paint), row.node));
    }
    let count = |state| rows.iter().filter(|row| row.state == state).count();
    let counts = State::ALL.into_iter().map(|state| (count(state), state));
    let counts: Vec<String> =
        counts.filter(|(count, _)| *count > 0).map(|(count, state)| state.sentence(count)).collect();
    text.push_str(&format!("\n{}: {}\n", nodes(rows.len()), counts.join(", ")));
    text
}

fn painted(state: State, paint: Paint) -> String {
    match state {
        State::Ok => paint.good(state.words()),
        State::Syncing | State::Differs => paint.doubtful(state.words()),
        State::Problem | State::NoAnswer | State::NoAgent => paint.bad(state.words()),
    }
}

/// How far a node is behind the API.
fn lag(status: &Value) -> String {
    let waiting = status["queue"]["services"].as_u64().unwrap_or(0);
    let silent = status["source"]["lastActivitySeconds"].as_f64().unwrap_or(0.0);
    match status["latency"]["p99Seconds"].as_f64() {
        _ if status["source"]["alive"] == false => format!("silent for {silent:.0} s"),
        _ if waiting == 1 => "1 Service waits".to_owned(),
        _ if waiting > 0 => format!("{waiting} Services wait"),
        Some(p99) => format!("p99 {}", milliseconds(p99)),
        None => "-".to_owned(),
    }
}

fn value(rows: &[Row], not_listed: Option<&str>) -> Value {
    let row = |row: &Row| {
        json!({
            "node": row.node,
            "pod": Some(&row.pod).filter(|pod| !pod.is_empty()),
            "state": row.state.words(),
            "reasons": row.reasons,
            "notInForce": not_in_force(&row.status),
            "status": row.status,
        })
    };
    let nodes: Vec<Value> = rows.iter().map(row).collect();
    document("FleetStatus", json!({ "nodes": nodes, "notListed": not_listed }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::fleet::reach::Reason;

    fn said(node: &str, version: &str, known: u64) -> Said {
        let answer = json!({
            "version": version, "mode": "nftables", "ready": true, "healthy": true, "inSync": true,
            "source": { "alive": true, "ended": null }, "queue": { "services": 0 },
            "services": { "known": known, "refused": 1, "problems": 2 }, "latency": { "p99Seconds": 0.012 },
        });
        Said { node: node.to_owned(), pod: format!("kube-proxy-{node}"), answer: Ok(answer) }
    }

    fn change(said: Said, change: impl Fn(&mut Value)) -> Said {
        let mut answer = said.answer.unwrap();
        change(&mut answer);
        Said { answer: Ok(answer), ..said }
    }

    #[test]
    fn nodes_are_compared_with_most_of_them() {
        let rows = judged(vec![
            said("a", "0.2.0", 120),
            said("b", "0.2.0", 120),
            said("c", "0.1.0", 120),
            said("d", "0.2.0", 118),
            change(said("e", "0.2.0", 7), |it| it["inSync"] = false.into()),
            change(said("f", "0.2.0", 120), |it| it["healthy"] = false.into()),
            Said { node: "g".into(), pod: "p".into(), answer: Err(Reason::from("refused\x1b[2J")) },
            Said { node: "h".into(), pod: String::new(), answer: Err(Reason::from("nobody")) },
        ]);
        let states: Vec<State> = rows.iter().map(|row| row.state).collect();
        use State::{Differs, NoAgent, NoAnswer, Ok, Problem, Syncing};
        assert_eq!(states, [Ok, Ok, Differs, Differs, Syncing, Problem, NoAnswer, NoAgent]);
        let text = text(&rows, Paint::off());
        let lines: Vec<String> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(lines[0], "NODE VERSION MODE STATE SERVICES NOT IN FORCE WITH PROBLEMS LAG");
        assert_eq!(lines[1], "a 0.2.0 nftables ok 120 1 2 p99 12 ms");
        assert_eq!(lines[7], "g - - no answer - - - -");
        assert_eq!(
            lines.last().unwrap(),
            "8 nodes: 2 are ok, 1 is syncing, 2 differ from most, 1 has a problem, 1 does not answer, 1 has no agent"
        );
        assert!(text.contains("differs c: it runs version 0.1.0; most nodes run 0.2.0"), "{text}");
        assert!(text.contains("differs d: it knows 118 Services; most nodes know 120"), "{text}");
        assert!(text.contains(r"no answer g: refused\u{1b}[2J") && !text.contains('\x1b'), "{text}");
        assert_eq!(lines[8], "h - - no agent - - - -");
        let value = value(&rows, None);
        assert_eq!((&value["nodes"][6]["status"], &value["nodes"][6]["pod"]), (&Value::Null, &json!("p")));
        assert_eq!((&value["nodes"][7]["status"], &value["nodes"][7]["pod"]), (&Value::Null, &Value::Null));
    }

    #[test]
    fn a_silent_node_lags_for_as_long() {
        let status = |change_it: fn(&mut Value)| change(said("a", "1", 1), change_it).answer.unwrap();
        let silent = status(|it| it["source"] = json!({ "alive": false, "lastActivitySeconds": 35.2 }));
        assert_eq!(lag(&silent), "silent for 35 s");
        assert_eq!(lag(&status(|it| it["queue"]["services"] = 3.into())), "3 Services wait");
    }
}
