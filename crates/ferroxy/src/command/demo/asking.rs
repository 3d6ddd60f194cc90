//! Asks a `Question` with real packets, compares the answers, and shows them as rows of a table.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use ferroxy_lab::{ANSWER, Effort, Network, Probe, Protocol, Seen};
use serde::{Serialize, Serializer};

use super::questions::{Expected, PodAndSource, Question};
use crate::output::{Paint, Table};

/// A question and its answers.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    pub from: &'static str,
    pub service: &'static str,
    pub frontend: &'static str,
    #[serde(serialize_with = "as_text")]
    pub protocol: Protocol,
    pub address: &'static str,
    pub answers: Vec<PodAnswer>,
    /// Requests without an answer: `refused`, `timeout` and the like.
    pub failures: Vec<String>,
    pub expected: String,
    pub as_expected: bool,
    pub why: &'static str,
}

#[derive(Debug, Serialize, PartialEq, Eq)]
pub struct PodAnswer {
    pub pod: String,
    /// Where the request came from, as the pod saw it.
    pub source: String,
    pub requests: usize,
}

/// Asks the questions one after another, each of them `requests` times.
pub fn ask(network: &Network, questions: &[Question], requests: usize) -> anyhow::Result<Vec<Row>> {
    let rows = questions.iter().map(|question| {
        // An expected answer may take long on a busy machine. Where no answer is expected, the user should not wait long.
        let timeout = match question.expected {
            Expected::Dropped => Duration::from_millis(700),
            Expected::All(_) | Expected::One(_) | Expected::Refused => ANSWER,
        };
        // One failure is enough: rules that drop or refuse one request do so with all.
        let effort = Effort { replies: requests, failures: 1, timeout };
        Ok(Row::new(question, ask_one(network, question, &effort)?))
    });
    rows.collect()
}

/// The rows as a table; the last column says why the answer is right, or what was expected.
pub fn table(rows: &[Row], paint: Paint) -> Table {
    let mut table = Table::indented(2);
    let titles = ["from", "asks", "", "", "answered by", "source it saw", ""];
    table.row(titles.map(|title| paint.faint(title)));
    for row in rows {
        let mut lines = row.by_source().into_iter();
        let failed = || (paint.doubtful(&row.failed_words()), String::new());
        let (by, source) = lines.next().unwrap_or_else(failed);
        let remark = match row.as_expected {
            true => paint.good(row.why),
            false => paint.bad(&format!("WRONG: expected {}", row.expected)),
        };
        let address = match row.protocol {
            Protocol::Tcp => row.address.to_owned(),
            Protocol::Udp => format!("{}/udp", row.address),
        };
        table.row([row.from.into(), row.service.into(), row.frontend.into(), address, by, source, remark]);
        for (by, source) in lines {
            table.row(["", "", "", "", &by, &source]);
        }
    }
    table
}

fn ask_one(network: &Network, question: &Question, effort: &Effort) -> anyhow::Result<Seen> {
    let target: SocketAddr = question.address.parse().context(question.address)?;
    let (from, protocol) = (question.from.to_owned(), question.protocol);
    let probe = Probe { from, protocol, address: target.ip(), port: target.port() };
    Ok(probe.run(network, effort)?)
}

impl Row {
    fn new(question: &Question, seen: Seen) -> Row {
        let mut answers = Vec::new();
        let mut failures = Vec::new();
        for (line, requests) in seen {
            match pod_and_source(&line) {
                Some((pod, source)) => {
                    answers.push(PodAnswer { pod: pod.into(), source: source.into(), requests });
                }
                None => failures.push(line),
            }
        }
        Row {
            from: question.from,
            service: question.service,
            frontend: question.frontend,
            protocol: question.protocol,
            address: question.address,
            as_expected: question.expected.is_met_by(&answers, &failures),
            expected: question.expected.words(),
            answers,
            failures,
            why: question.why,
        }
    }

    /// Pods that saw the same source share a line.
    fn by_source(&self) -> Vec<(String, String)> {
        let mut lines: Vec<(String, String)> = Vec::new();
        for answer in &self.answers {
            let pod = format!("{} {}", answer.pod, answer.requests);
            match lines.iter_mut().find(|(_, source)| *source == answer.source) {
                Some((pods, _)) => pods.push_str(&format!(", {pod}")),
                None => lines.push((pod, answer.source.clone())),
            }
        }
        lines
    }

    fn failed_words(&self) -> String {
        self.failures.iter().map(|word| failure_words(word)).collect::<Vec<_>>().join(", ")
    }
}

impl Expected {
    fn is_met_by(&self, answers: &[PodAnswer], failures: &[String]) -> bool {
        let seen: BTreeSet<(&str, &str)> =
            answers.iter().map(|answer| (answer.pod.as_str(), answer.source.as_str())).collect();
        let only = |word: &str| answers.is_empty() && failures.iter().all(|it| it == word);
        match self {
            Expected::All(pods) => failures.is_empty() && seen == pods.iter().copied().collect(),
            Expected::One(pods) => {
                failures.is_empty() && seen.len() == 1 && seen.iter().all(|it| pods.contains(it))
            }
            Expected::Refused => only("refused"),
            Expected::Dropped => only("timeout"),
        }
    }

    fn words(&self) -> String {
        let list = |pods: &[PodAndSource], between: &str| {
            pods.iter()
                .map(|(pod, source)| format!("{pod} seeing {source}"))
                .collect::<Vec<_>>()
                .join(between)
        };
        match self {
            Expected::All(pods) => list(pods, " and "),
            Expected::One(pods) => format!("only one of {}", list(pods, ", ")),
            Expected::Refused => "refused".into(),
            Expected::Dropped => "dropped".into(),
        }
    }
}

/// Parses a pod's answer, `web-1:8080 10.244.1.21`.
pub fn pod_and_source(line: &str) -> Option<(&str, &str)> {
    let (pod, source) = line.split_once(' ')?;
    let (pod, port) = pod.split_once(':')?;
    port.parse::<u16>().ok().map(|_| (pod, source))
}

fn as_text<S: Serializer>(protocol: &Protocol, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(protocol)
}

fn failure_words(word: &str) -> &str {
    match word {
        "timeout" => "no answer: dropped",
        "refused" => "no answer: refused",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PODS: &[PodAndSource] = &[("a", "10.0.0.1"), ("b", "10.0.0.1")];

    fn met(expected: Expected, answers: &[PodAndSource], failures: &[&str]) -> bool {
        let answers: Vec<PodAnswer> = answers
            .iter()
            .map(|(pod, source)| PodAnswer { pod: (*pod).into(), source: (*source).into(), requests: 1 })
            .collect();
        expected.is_met_by(&answers, &failures.iter().map(|word| (*word).into()).collect::<Vec<_>>())
    }

    #[test]
    fn all_means_each_of_them_with_the_right_source_and_no_failure() {
        assert!(met(Expected::All(PODS), PODS, &[]));
        assert!(!met(Expected::All(PODS), &PODS[..1], &[]));
        assert!(!met(Expected::All(PODS), PODS, &["timeout"]));
        assert!(!met(Expected::All(PODS), &[("a", "10.0.0.1"), ("b", "10.0.0.2")], &[]));
        assert!(!met(Expected::All(&PODS[..1]), PODS, &[]));
    }

    #[test]
    fn one_means_the_same_every_time() {
        assert!(met(Expected::One(PODS), &PODS[1..], &[]));
        assert!(!met(Expected::One(PODS), PODS, &[]));
        assert!(!met(Expected::One(PODS), &[("c", "10.0.0.1")], &[]));
        assert!(!met(Expected::One(PODS), &[], &["refused"]));
    }

    #[test]
    fn refused_is_not_dropped() {
        assert!(met(Expected::Refused, &[], &["refused"]));
        assert!(!met(Expected::Refused, &[], &["timeout"]));
        assert!(met(Expected::Dropped, &[], &["timeout"]));
        assert!(!met(Expected::Dropped, &PODS[..1], &["timeout"]));
    }

    #[test]
    fn what_pods_say_and_what_probes_say() {
        assert_eq!(pod_and_source("web-1:8080 fd00::1"), Some(("web-1", "fd00::1")));
        assert_eq!(pod_and_source("timeout"), None);
        assert_eq!(pod_and_source("broken: closed before the answer"), None);
    }
}
