//! The figures of the fleets as a table and as JSON.

use std::fs;
use std::time::Duration;

use ferroxy::output::Table;
use serde_json::{Value, json};

use super::Result;
use super::measure::Fleet;
use super::options::Options;
use super::quantile::quantile;

pub fn text(options: &Options, fleets: &[Fleet]) -> String {
    let mut text = String::new();
    for (word, says) in setting(options) {
        text.push_str(&format!("{word:14} {says}\n"));
    }
    text.push('\n');
    let mut table = Table::default();
    table.row([
        "agents",
        "of",
        "start: CPU",
        "for each",
        "start: sent",
        "for each",
        "memory",
        "change: CPU",
        "sent for each",
        "delay p50",
        "p99",
    ]);
    for fleet in fleets {
        table.row(row(options, fleet));
    }
    text.push_str(&table.to_string());
    text.push_str(NOTES);
    text
}

const NOTES: &str = "\
CPU, sent, memory: of the API server (of our own test server, memory is that of the whole benchmark)
change: one endpoint moves, and every agent learns it; delay: from the server's answer until a kernel has it, over all agents
";

fn row(options: &Options, fleet: &Fleet) -> [String; 11] {
    let agents = fleet.agents as f64;
    let changes = f64::from(options.changes);
    let cpu = fleet.start.cpu.as_secs_f64();
    let sent = fleet.start.bytes as f64 / 1e6;
    [
        fleet.agents.to_string(),
        fleet.binary.to_owned(),
        format!("{cpu:.2} s"),
        format!("{:.0} ms", cpu / agents * 1e3),
        format!("{sent:.1} MB"),
        format!("{:.2} MB", sent / agents),
        format!("{:.0} MB", fleet.server_memory as f64 / 1e6),
        format!("{:.2} ms", fleet.changes.cpu.as_secs_f64() * 1e3 / changes),
        format!("{:.0} B", fleet.changes.bytes as f64 / changes / agents),
        format!("{:.2} ms", milliseconds(&fleet.delays, 0.5)),
        format!("{:.2} ms", milliseconds(&fleet.delays, 0.99)),
    ]
}

pub fn json(options: &Options, fleets: &[Fleet]) -> Result<String> {
    let setting: serde_json::Map<String, Value> =
        setting(options).into_iter().map(|(word, says)| (word.replace(' ', "_"), json!(says))).collect();
    let fleets: Vec<Value> = fleets.iter().map(|fleet| fleet_as_json(options, fleet)).collect();
    Ok(serde_json::to_string_pretty(&json!({ "setting": setting, "fleets": fleets }))? + "\n")
}

fn fleet_as_json(options: &Options, fleet: &Fleet) -> Value {
    json!({
        "binary": fleet.binary,
        "agents": fleet.agents,
        "start_api_server_cpu_seconds": fleet.start.cpu.as_secs_f64(),
        "start_api_server_bytes": fleet.start.bytes,
        "api_server_memory_bytes": fleet.server_memory,
        "changes": options.changes,
        "changes_api_server_cpu_seconds": fleet.changes.cpu.as_secs_f64(),
        "changes_api_server_bytes": fleet.changes.bytes,
        "change_p50_milliseconds": milliseconds(&fleet.delays, 0.5),
        "change_p99_milliseconds": milliseconds(&fleet.delays, 0.99),
    })
}

fn setting(options: &Options) -> Vec<(&'static str, String)> {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let server =
        if options.assets.is_some() { "kube-apiserver" } else { "ferroxy-lab's, TLS, JSON and protobuf" };
    vec![
        ("cluster", format!("{} Services x {}", options.size.services, options.size.endpoints)),
        ("API server", server.to_owned()),
        ("changes", options.changes.to_string()),
        ("load after", load.split_whitespace().next().unwrap_or("?").to_owned()),
    ]
}

fn milliseconds(delays: &[Duration], share: f64) -> f64 {
    quantile(&mut delays.to_vec(), share).as_secs_f64() * 1e3
}
