//! `kubectl ferroxy explain SERVICE`: where a Service works and where not, and why. Nodes with the same answer form a group.

use std::collections::BTreeMap;

use clap::Args;
use ferroxy_core::foreign::printable;
use serde_json::{Value, json};

use super::reach::{Reach, Reason, Said};
use super::{nodes, service_name};
use crate::command::Answer;
use crate::command::status::words;
use crate::output::Paint;
use crate::view::document;
use crate::view::explanation::is_note;

/// A Service with thousands of endpoints is below this.
const LARGEST: usize = 8 << 20;

/// The most nodes of a group, and endpoints of a port, that the text names.
const MOST_NODES: usize = 20;
const MOST_ENDPOINTS: usize = 10;

#[derive(Debug, Args)]
pub struct Explain {
    /// The Service: NAME, or NAMESPACE/NAME
    #[arg(value_name = "SERVICE")]
    service: String,
}

impl Explain {
    pub fn run(self, reach: &Reach) -> anyhow::Result<Answer> {
        let agents = reach.open()?;
        let name = service_name(&self.service, &agents.namespace)?;
        let (said, not_listed) = agents.ask_everywhere(&format!("services/{name}"), LARGEST);
        let groups = grouped(said);
        reach.output.print(
            || text(name.as_str(), &groups, Paint::stdout()),
            || {
                let values: Vec<Value> = groups.iter().map(Group::value).collect();
                let fields = json!({ "service": name.as_str(), "groups": values, "notListed": not_listed });
                document("FleetService", fields)
            },
        )?;
        Ok(if groups.iter().all(|group| group.verdict.is_fine()) { Answer::Yes } else { Answer::No })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    /// Shown first, because users look for failures.
    Fails,
    Unknown,
    NoAnswer,
    NoAgent,
    NotHandled,
    Works,
}

impl Verdict {
    /// A Service that is not handled is served by another program.
    fn is_fine(self) -> bool {
        matches!(self, Verdict::Works | Verdict::NotHandled)
    }

    fn words(self) -> &'static str {
        match self {
            Verdict::Works => "works",
            Verdict::Fails => "problem",
            Verdict::Unknown => "unknown",
            Verdict::NotHandled => "not handled",
            Verdict::NoAnswer => "no answer",
            Verdict::NoAgent => "no agent",
        }
    }
}

/// The answer that the nodes of a group have in common.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Seen {
    verdict: Verdict,
    /// Why nodes do not answer, or do not handle the Service; otherwise how much of it is in force.
    reason: String,
    /// `problem` and `fix`
    findings: Vec<(String, String)>,
    notes: Vec<(String, String)>,
    diagnostics: Vec<String>,
    ports: Vec<Port>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Port {
    /// `80/tcp IPv4`
    name: String,
    used: Vec<String>,
    listed: usize,
}

#[derive(Debug)]
struct Group {
    verdict: Verdict,
    seen: Seen,
    nodes: Vec<String>,
}

impl Group {
    fn value(&self) -> Value {
        let seen = &self.seen;
        let finding = |severity: &'static str| move |(problem, fix): &(String, String)| json!({ "severity": severity, "problem": problem, "fix": fix });
        let (findings, notes) =
            (seen.findings.iter().map(finding("problem")), seen.notes.iter().map(finding("note")));
        let port = |port: &Port| json!({ "port": port.name, "used": port.used, "total": port.listed });
        json!({
            "verdict": self.verdict.words(),
            "nodes": self.nodes,
            "reason": seen.reason,
            "findings": findings.chain(notes).collect::<Vec<_>>(),
            "diagnostics": seen.diagnostics,
            "ports": seen.ports.iter().map(port).collect::<Vec<_>>(),
        })
    }
}

fn grouped(said: Vec<Said>) -> Vec<Group> {
    let mut groups: BTreeMap<Seen, Vec<String>> = BTreeMap::new();
    for Said { node, pod, answer } in said {
        groups.entry(Seen::of(answer, !pod.is_empty())).or_default().push(node);
    }
    let group = |(seen, nodes): (Seen, _)| Group { verdict: seen.verdict, seen, nodes };
    groups.into_iter().map(group).collect()
}

impl Seen {
    fn of(answer: Result<Value, Reason>, has_agent: bool) -> Seen {
        let nothing = |verdict, reason: &str| Seen {
            verdict,
            reason: printable(reason).into_owned(),
            findings: Vec::new(),
            notes: Vec::new(),
            diagnostics: Vec::new(),
            ports: Vec::new(),
        };
        let service = match answer {
            Ok(service) => service,
            // Other nodes may know the Service.
            Err(Reason { words, code: Some(404) }) => return nothing(Verdict::Unknown, &words),
            Err(reason) if has_agent => return nothing(Verdict::NoAnswer, &reason.words),
            Err(reason) => return nothing(Verdict::NoAgent, &reason.words),
        };
        let list = |name: &str| service[name].as_array().cloned().unwrap_or_default();
        let finding = |it: &Value| (words(&it["problem"]), words(&it["fix"]));
        if let Some(why) = service["standing"]["not handled"].as_str() {
            let is_wrong = list("findings").iter().any(|it| it["severity"] == "problem");
            return nothing(if is_wrong { Verdict::Fails } else { Verdict::NotHandled }, why);
        }
        let (notes, findings): (Vec<Value>, Vec<Value>) = list("findings").into_iter().partition(is_note);
        let (notes, findings): (Vec<_>, Vec<_>) =
            (notes.iter().map(finding).collect(), findings.iter().map(finding).collect());
        let diagnostics: Vec<_> = list("diagnostics").iter().map(words).collect();
        let is_fine = findings.is_empty() && diagnostics.is_empty();
        Seen {
            verdict: if is_fine { Verdict::Works } else { Verdict::Fails },
            reason: service["programmed"].as_str().map(|it| printable(it).into_owned()).unwrap_or_default(),
            findings,
            notes,
            diagnostics,
            ports: list("ports").iter().map(Port::of).collect(),
        }
    }
}

impl Port {
    fn of(port: &Value) -> Port {
        let endpoints = port["endpoints"].as_array().map(Vec::as_slice).unwrap_or_default();
        let is_used = |it: &&Value| it["usedForCluster"] == true || it["usedForLocal"] == true;
        let mut used: Vec<String> =
            endpoints.iter().filter(is_used).map(|it| words(&it["address"])).collect();
        used.sort();
        let number = port["port"].as_u64().unwrap_or(0);
        Port {
            name: format!("{number}/{} {}", words(&port["protocol"]), words(&port["family"])),
            used,
            listed: endpoints.len(),
        }
    }
}

fn text(name: &str, groups: &[Group], paint: Paint) -> String {
    let all = groups.iter().map(|group| group.nodes.len()).sum();
    let mut text = format!("{} {name} on {}\n", paint.strong("service"), nodes(all));
    for group in groups {
        let verdict = match group.verdict {
            Verdict::Works => paint.good(group.verdict.words()),
            Verdict::NotHandled => paint.doubtful(group.verdict.words()),
            Verdict::Fails | Verdict::Unknown | Verdict::NoAnswer | Verdict::NoAgent => {
                paint.bad(group.verdict.words())
            }
        };
        let listed = listed(&group.nodes, MOST_NODES);
        text.push_str(&format!("\n{verdict} on {}: {listed}\n", nodes(group.nodes.len())));
        text.push_str(&details(&group.seen, paint));
    }
    text
}

fn details(seen: &Seen, paint: Paint) -> String {
    let mut text = String::new();
    if !seen.reason.is_empty() {
        let title = if seen.ports.is_empty() { "why" } else { "in force" };
        text.push_str(&format!("  {} {}\n", paint.faint(title), seen.reason));
    }
    for port in &seen.ports {
        let used = if port.used.is_empty() { "none".to_owned() } else { listed(&port.used, MOST_ENDPOINTS) };
        let of = format!("{} of {} endpoints used", port.used.len(), port.listed);
        text.push_str(&format!("  {} {}: {of}: {used}\n", paint.faint("port"), port.name));
    }
    for (problem, fix) in &seen.findings {
        text.push_str(&format!("  {} {problem}\n  {} {fix}\n", paint.bad("problem"), paint.faint("try")));
    }
    for (note, fix) in &seen.notes {
        text.push_str(&format!("  {} {note}\n  {} {fix}\n", paint.strong("note"), paint.faint("try")));
    }
    for diagnostic in &seen.diagnostics {
        text.push_str(&format!("  {} {diagnostic}\n", paint.doubtful("warning")));
    }
    text
}

/// `a, b and 3 more`
fn listed(names: &[String], most: usize) -> String {
    let shown = names.iter().take(most).cloned().collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(most).filter(|more| *more > 0) {
        Some(more) => format!("{shown} and {more} more"),
        None => shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(node: &str, endpoints: &[(&str, bool)], problem: Option<&str>) -> Said {
        let endpoint = |(address, is_used): &(&str, bool)| json!({ "address": address, "usedForCluster": is_used, "local": node == "a" });
        let findings: Vec<Value> =
            problem.iter().map(|it| json!({ "problem": it, "fix": "Check." })).collect();
        let service = json!({
            "standing": "handled", "programmed": "yes", "findings": findings, "diagnostics": [],
            "ports": [{ "port": 80, "protocol": "tcp", "family": "IPv4",
                        "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>() }],
        });
        Said { node: node.into(), pod: node.into(), answer: Ok(service) }
    }

    #[test]
    fn nodes_that_agree_are_grouped_and_problems_come_first() {
        let both = [("10.0.0.1:80", true), ("10.0.0.2:80", true)];
        let none = [("10.0.0.1:80", false), ("10.0.0.2:80", false)];
        let groups = grouped(vec![
            said("a", &both, None),
            said("b", &both, None),
            said("c", &none, Some("No endpoint is ready\x1b.")),
            Said { node: "d".into(), pod: "d".into(), answer: Err("connection refused".into()) },
            Said { node: "e".into(), pod: "e".into(), answer: Err("connection refused".into()) },
            Said {
                node: "f".into(),
                pod: "f".into(),
                answer: Ok(json!({ "standing": { "not handled": "headless" } })),
            },
            Said { node: "g".into(), pod: String::new(), answer: Err("no pod is on it".into()) },
        ]);
        let nodes: Vec<String> = groups.iter().map(|group| group.nodes.concat()).collect();
        assert_eq!(nodes, ["c", "de", "g", "f", "ab"]);
        let text = text("default/web", &groups, Paint::off());
        for part in [
            "service default/web on 7 nodes\n\nproblem on 1 node: c\n",
            "  port 80/tcp IPv4: 0 of 2 endpoints used: none\n  problem No endpoint is ready",
            "no answer on 2 nodes: d, e\n  why connection refused\n",
            "no agent on 1 node: g\n  why no pod is on it\n",
            "not handled on 1 node: f\n  why headless\n",
            "works on 2 nodes: a, b\n  in force yes\n  port 80/tcp IPv4: 2 of 2 endpoints used: 10.0.0.1:80, 10.0.0.2:80\n",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(!text.contains('\x1b'));
        assert_eq!(groups.last().unwrap().value()["ports"][0]["total"], 2);
    }

    #[test]
    fn what_is_by_design_is_a_note_and_no_problem() {
        let mut local = said("a", &[("10.0.0.1:80", false)], Some("Dropped: the policy is Local."));
        local.answer.as_mut().unwrap()["findings"][0]["severity"] = "note".into();
        let standing = json!({ "not handled": "no cluster IP" });
        let wrong = json!({ "standing": standing, "findings": [{ "severity": "problem", "problem": "", "fix": "" }] });
        let groups = grouped(vec![local, Said { node: "b".into(), pod: "b".into(), answer: Ok(wrong) }]);
        let verdicts: Vec<Verdict> = groups.iter().map(|group| group.verdict).collect();
        assert_eq!(verdicts, [Verdict::Fails, Verdict::Works]);
        let text = text("default/web", &groups, Paint::off());
        assert!(
            text.contains("works on 1 node: a\n") && text.contains("  note Dropped: the policy"),
            "{text}"
        );
        assert_eq!(groups[1].value()["findings"][0]["severity"], "note");
    }

    #[test]
    fn long_lists_are_cut() {
        let names: Vec<String> = (0..5).map(|it| it.to_string()).collect();
        assert_eq!(
            (listed(&names, 5), listed(&names, 2)),
            ("0, 1, 2, 3, 4".into(), "0, 1 and 3 more".into())
        );
    }
}
