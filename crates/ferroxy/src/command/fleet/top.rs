//! `kubectl ferroxy top`: the traffic of Services, summed over all nodes, between two answers of each.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::Duration;

use clap::{Args, ValueEnum};
use ferroxy_core::foreign::printable;
use serde_json::{Value, json};

use super::nodes;
use super::reach::{Reach, Said};
use crate::client::rates::{Rate, rates, short};
use crate::command::Answer;
use crate::modes::MODES;
use crate::output::{Paint, Table};
use crate::progress::while_waiting;
use crate::view::document;

/// 10,000 Services with a few ports each are below this.
const LARGEST: usize = 16 << 20;

#[derive(Debug, Args)]
pub struct Top {
    /// Seconds between the two answers
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=60))]
    interval: u64,
    /// How many Services to show
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,
    /// What comes first
    #[arg(long, value_enum, default_value_t)]
    sort: Sort,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Sort {
    /// Most bytes, in both directions
    #[default]
    Bytes,
    /// Most new connections
    Connections,
    /// By namespace and name
    Name,
}

impl Top {
    pub fn run(self, reach: &Reach) -> anyhow::Result<Answer> {
        let agents = reach.open()?;
        let before = agents.ask("traffic", LARGEST);
        while_waiting("measuring", || thread::sleep(Duration::from_secs(self.interval)));
        let after = agents.ask("traffic", LARGEST);
        let mut sum = Sum::of(&before, &after);
        sum.only_in(reach.named_namespace());
        sum.sort(self.sort);
        sum.rows.truncate(self.limit);
        reach.output.print(|| sum.text(Paint::stdout()), || sum.value())?;
        Ok(if sum.missing.is_empty() && sum.counting > 0 { Answer::Yes } else { Answer::No })
    }
}

#[derive(Debug, Default)]
struct Sum {
    rows: Vec<Row>,
    /// The selected namespace; `None` for all.
    namespace: Option<String>,
    /// Nodes that count traffic, and nodes that answer but do not count.
    counting: usize,
    not_counting: Vec<String>,
    /// Nodes without two answers, and why.
    missing: Vec<(String, String)>,
}

#[derive(Debug)]
struct Row {
    service: String,
    port: String,
    rate: Rate,
    /// The number of nodes with traffic.
    nodes: usize,
}

impl Sum {
    fn of(before: &[Said], after: &[Said]) -> Sum {
        let mut sum = Sum::default();
        let mut rows: BTreeMap<(String, String), (Rate, BTreeSet<usize>)> = BTreeMap::new();
        for (index, (before, after)) in before.iter().zip(after).enumerate() {
            let (first, second) = match (&before.answer, &after.answer) {
                (Ok(first), Ok(second)) => (first, second),
                (Err(reason), _) | (_, Err(reason)) => {
                    sum.missing.push((after.node.clone(), reason.words.clone()));
                    continue;
                }
            };
            if second["counted"] != true {
                sum.not_counting.push(after.node.clone());
                continue;
            }
            sum.counting += 1;
            for ((service, port, _), rate) in rates(first, second, "items") {
                let (total, nodes) = rows.entry((service, port)).or_default();
                total.add(&rate);
                if rate.packets > 0.0 || rate.connections > 0.0 {
                    nodes.insert(index);
                }
            }
        }
        let row = |((service, port), (rate, nodes)): (_, (Rate, BTreeSet<usize>))| Row {
            service,
            port,
            rate,
            nodes: nodes.len(),
        };
        sum.rows = rows.into_iter().map(row).collect();
        sum
    }

    /// Leaves out other namespaces.
    fn only_in(&mut self, namespace: Option<&str>) {
        let Some(namespace) = namespace else { return };
        let is_meant = |row: &Row| row.service.split_once('/').is_some_and(|(of, _)| of == namespace);
        self.rows.retain(is_meant);
        self.namespace = Some(namespace.to_owned());
    }

    /// The rows are sorted by name already.
    fn sort(&mut self, by: Sort) {
        let of = |row: &Row| match by {
            Sort::Bytes => row.rate.both(),
            Sort::Connections => row.rate.connections,
            Sort::Name => 0.0,
        };
        self.rows.sort_by(|a, b| of(b).total_cmp(&of(a)));
    }

    fn text(&self, paint: Paint) -> String {
        let mut table = Table::default();
        table.row(["SERVICE", "PORT", "CONN/S", "IN B/S", "OUT B/S", "NODES"].map(|it| paint.strong(it)));
        for row in &self.rows {
            table.row([
                printable(&row.service).into_owned(),
                printable(&row.port).into_owned(),
                short(row.rate.connections),
                short(row.rate.bytes),
                short(row.rate.reply_bytes),
                row.nodes.to_string(),
            ]);
        }
        let mut text = table.to_string();
        if self.rows.is_empty() && self.counting > 0 {
            let of = self.namespace.as_ref().map(|it| format!(" of namespace {it}")).unwrap_or_default();
            let verb = if self.counting == 1 { "counts" } else { "count" };
            text = format!("no Service{of} has had traffic on the {} that {verb} it\n", nodes(self.counting));
        }
        if !self.not_counting.is_empty() {
            let (count, verb) =
                (self.not_counting.len(), if self.not_counting.len() == 1 { "counts" } else { "count" });
            let words = format!(
                "{} {verb} no traffic: start the agents with --traffic-metrics ({} mode)",
                nodes(count),
                MODES.counting("or"),
            );
            text.push_str(&format!("\n{words}\n"));
        }
        for (node, reason) in &self.missing {
            text.push_str(&format!("\n{} {node}: {reason}\n", paint.bad("no answer")));
        }
        text
    }

    fn value(&self) -> Value {
        let row = |row: &Row| {
            json!({
                "service": row.service,
                "port": row.port,
                "connectionsPerSecond": row.rate.connections,
                "bytesPerSecond": row.rate.bytes,
                "replyBytesPerSecond": row.rate.reply_bytes,
                "packetsPerSecond": row.rate.packets,
                "nodes": row.nodes,
            })
        };
        let missing = |(node, reason): &(String, String)| json!({ "node": node, "reason": reason });
        document(
            "FleetTraffic",
            json!({
                "items": self.rows.iter().map(row).collect::<Vec<_>>(),
                "counting": self.counting,
                "notCounting": self.not_counting,
                "noAnswer": self.missing.iter().map(missing).collect::<Vec<_>>(),
            }),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(node: &str, seconds: f64, connections: u64) -> Said {
        let row = |service: &str, connections| json!({ "service": service, "port": "", "connections": connections, "packets": connections, "bytes": 10 * connections });
        let items = json!([row("a/idle", 7), row("a/web", connections)]);
        let answer = json!({ "counted": true, "monotonicSeconds": seconds, "items": items });
        Said { node: node.into(), pod: node.into(), answer: Ok(answer) }
    }

    #[test]
    fn rates_of_all_nodes_are_summed() {
        let silent = || Said { node: "c".into(), pod: "c".into(), answer: Err("refused".into()) };
        let other = || Said { node: "d".into(), pod: "d".into(), answer: Ok(json!({ "counted": false })) };
        let before = [said("a", 1.0, 10), said("b", 50.0, 0), silent(), other()];
        let after = [said("a", 3.0, 20), said("b", 51.0, 3), silent(), other()];
        let mut sum = Sum::of(&before, &after);
        sum.sort(Sort::Bytes);
        let rows: Vec<_> =
            sum.rows.iter().map(|row| (row.service.as_str(), row.rate.connections, row.nodes)).collect();
        assert_eq!(rows, [("a/web", 8.0, 2), ("a/idle", 0.0, 0)]);
        let text = sum.text(Paint::off());
        assert!(text.contains("no answer c: refused") && text.contains("1 node counts no traffic"), "{text}");
        assert_eq!(sum.value()["counting"], 2);
        sum.sort(Sort::Name);
        sum.only_in(Some("a"));
        assert_eq!(sum.rows.len(), 2);
        sum.only_in(Some("b"));
        let text = sum.text(Paint::off());
        assert!(
            text.starts_with("no Service of namespace b has had traffic on the 2 nodes that count"),
            "{text}"
        );
    }
}
