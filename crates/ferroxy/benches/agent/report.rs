//! The figures as a table with ratios, and as JSON. Beside our figures are those of the peer or, if none was measured, the
//! published figures of kube-proxy, marked as such.

use std::fmt::Write;

use ferroxy::output::Table;
use serde_json::{Map, Value, json};

use super::Result;
use super::figures::{Figure, Figures, Results, Run, Unit};

pub fn text(results: &Results) -> String {
    let mut text = String::new();
    for (word, says) in &results.setting {
        text.push_str(&format!("{word:14} {says}\n"));
    }
    text.push('\n');
    let other = if results.has_peer() { "peer" } else { "published" };
    let mut table = Table::default();
    for run in &results.runs {
        let size = format!("{} Services x {}", run.size.services, run.size.endpoints);
        table.row([size.as_str(), "ours", other, &format!("ours / {other}"), "goal", ""]);
        for figure in Figure::ALL {
            if let Some(ours) = run.ours.get(figure) {
                table.row(row(results, run, figure, ours));
            }
        }
        table.row([""; 6]);
    }
    text.push_str(&table.to_string());
    text.push_str(NOTES);
    if !results.has_peer() {
        text.push_str(PUBLISHED);
    }
    text
}

const NOTES: &str = "\
messages: what the kernel announces of its rules, one message for each element, rule, chain or set that came or went;
  a number with + is too small, because more was announced than could be counted
load before: the load average; where it is not near zero, times are too long, and CPU, memory and messages still good
API server: what it spent meanwhile. Its CPU includes accepting the changes; bytes are all that left its interface
API to kernel: from the API's answer to a change until the kernel announces it; p99 of few is the longest of them
";
const PUBLISHED: &str = "\
published: kube-proxy 1.37 in nftables mode on a machine with two cores (10000 x 10), and what its users have reported
  of other machines (13 minutes at 5000 x 50, 16 minutes at 44000 Services). PEER=/path/to/kube-proxy measures it here
";

fn row(results: &Results, run: &Run, figure: Figure, ours: f64) -> [String; 6] {
    let other = results.other(run, figure);
    let ratio = other.filter(|other| *other > 0.0 && figure.is_of_the_proxy()).map(|other| ours / other);
    let goal = results.goal(run, figure);
    let verdict = goal.map(|goal| if ours <= goal { "met" } else { "MISSED" });
    let at_least = |figures: &Figures| if figures.at_least.contains(&figure) { "+" } else { "" };
    [
        format!("  {}", figure.title()),
        show(figure, ours) + at_least(&run.ours),
        other.map(|other| show(figure, other)).unwrap_or_default() + run.peer.as_ref().map_or("", at_least),
        ratio.map(show_ratio).unwrap_or_default(),
        goal.map(|goal| format!("<= {}", show(figure, goal))).unwrap_or_default(),
        verdict.unwrap_or_default().to_owned(),
    ]
}

/// The value with its unit, and with a useful number of digits.
pub fn show(figure: Figure, value: f64) -> String {
    match figure.unit() {
        Unit::Seconds if value >= 100.0 => format!("{value:.0} s"),
        Unit::Seconds => format!("{value:.2} s"),
        Unit::Milliseconds if value >= 100.0 => format!("{value:.0} ms"),
        Unit::Milliseconds => format!("{value:.2} ms"),
        Unit::Microseconds => format!("{value:.1} us"),
        Unit::Megabytes => format!("{value:.1} MB"),
        Unit::Cores => format!("{value:.2} cores"),
        Unit::Count if value.fract() == 0.0 => format!("{value:.0}"),
        Unit::Count => format!("{value:.1}"),
        Unit::Bytes => format!("{value:.0} B"),
        Unit::Ratio => format!("{value:.3}"),
    }
}

fn show_ratio(ratio: f64) -> String {
    if ratio < 0.1 { format!("{ratio:.4}") } else { format!("{ratio:.2}") }
}

pub fn json(results: &Results) -> Result<String> {
    let setting: Map<String, Value> =
        results.setting.iter().map(|(word, says)| (word.replace(' ', "_"), json!(says))).collect();
    let runs: Vec<Value> = results.runs.iter().map(|run| run_as_json(results, run)).collect();
    let mut text = serde_json::to_string_pretty(&json!({ "setting": setting, "runs": runs }))?;
    writeln!(text)?;
    Ok(text)
}

fn run_as_json(results: &Results, run: &Run) -> Value {
    let published: Map<String, Value> = Figure::ALL
        .into_iter()
        .filter_map(|figure| Some((figure.key().to_owned(), json!(results.published(run, figure)?))))
        .collect();
    json!({
        "services": run.size.services,
        "endpoints": run.size.endpoints,
        "ours": figures_as_json(&run.ours),
        "peer": run.peer.as_ref().map(figures_as_json),
        "published": published,
    })
}

fn figures_as_json(figures: &Figures) -> Value {
    let mut values: Map<String, Value> = Figure::ALL
        .into_iter()
        .filter_map(|figure| Some((figure.key().to_owned(), json!(figures.get(figure)?))))
        .collect();
    let at_least: Vec<&str> = figures.at_least.iter().map(|figure| figure.key()).collect();
    values.insert("at_least".to_owned(), json!(at_least));
    Value::Object(values)
}
