//! The table: medians over the rounds, ratios to a direct connection, and whether the goals are met.

use crate::contestants::{ALL, Contestant};

#[derive(Debug)]
pub struct Sample {
    pub phase: &'static str,
    pub contestant: Contestant,
    pub numbers: Vec<f64>,
    /// CPU time of the proxy, in seconds.
    pub cpu: f64,
    pub seconds: f64,
}

/// Title, phase, which number, unit, factor, whether more is better.
type Row = (&'static str, &'static str, Number, &'static str, f64, bool);

#[derive(Debug, Clone, Copy)]
enum Number {
    /// A number that the client printed.
    Printed(usize),
    /// CPU time of the proxy for each unit of the first number.
    CpuPerUnit,
    /// A number that the client printed, minus that of the direct connection.
    Added(usize),
}

const ROWS: &[Row] = &[
    ("new connections", "connects", Number::Printed(0), "1/s", 1.0, true),
    ("CPU of a new connection", "connects", Number::CpuPerUnit, "µs", 1e6, false),
    ("requests on kept connections", "requests", Number::Printed(0), "1/s", 1.0, true),
    ("CPU of a request", "requests", Number::CpuPerUnit, "µs", 1e6, false),
    ("added latency, p50", "latency", Number::Added(0), "µs", 1.0, false),
    ("added latency, p99", "latency", Number::Added(1), "µs", 1.0, false),
    ("bytes, 1 connection", "bytes-1", Number::Printed(0), "GB/s", 1e-9, true),
    ("CPU per GB, 1 connection", "bytes-1", Number::CpuPerUnit, "ms", 1e12, false),
    ("bytes, 64 connections", "bytes-64", Number::Printed(0), "GB/s", 1e-9, true),
    ("CPU per GB, 64 connections", "bytes-64", Number::CpuPerUnit, "ms", 1e12, false),
    ("datagrams", "datagrams", Number::Printed(0), "1/s", 1.0, true),
    ("CPU of a datagram", "datagrams", Number::CpuPerUnit, "µs", 1e6, false),
    ("memory of an idle connection", "idle", Number::Printed(0), "bytes", 1.0, false),
];

/// A row that was measured, with the values of all contestants.
#[derive(Debug)]
pub struct Line {
    pub title: &'static str,
    pub unit: &'static str,
    pub values: [Option<f64>; ALL.len()],
    pub more_is_better: bool,
}

pub fn lines(samples: &[Sample]) -> Vec<Line> {
    let measured = ROWS.iter().filter(|(_, phase, ..)| samples.iter().any(|it| it.phase == *phase));
    let line = |row: &Row| {
        let (title, .., unit, _, more_is_better) = *row;
        let values = ALL.map(|contestant| value(samples, row, contestant));
        Line { title, unit, values, more_is_better }
    };
    measured.map(line).collect()
}

pub fn print(samples: &[Sample]) {
    println!(
        "{:30} {:>6} {:>12} {:>12} {:>12} {:>12} {:>12}  ahead of both",
        "", "", "direct", "ferroxy", "haproxy", "nginx", "original"
    );
    for Line { title, unit, values, more_is_better } in lines(samples) {
        let cells = values.map(|it| it.map_or("-".to_owned(), |it| format!("{it:.2}")));
        let ours = values[1].unwrap_or(f64::NAN);
        // HAProxy and nginx are the goal. The shape of the original moves bytes in the same way, and is shown for comparison.
        let is_ahead = values[2..4]
            .iter()
            .flatten()
            .all(|other| if more_is_better { ours >= *other } else { ours <= *other });
        let [direct, ferroxy, haproxy, nginx, original] = cells;
        let verdict = if is_ahead { "met" } else { "missed" };
        println!(
            "{title:30} {unit:>6} {direct:>12} {ferroxy:>12} {haproxy:>12} {nginx:>12} {original:>12}  {verdict}"
        );
    }
    goal(samples, "added p50 latency under 25 µs", &ROWS[4], 25.0);
    let idle = samples.iter().find(|it| it.phase == "idle").map_or(0.0, |it| it.numbers[1]);
    println!("idle connections at a time: {idle}");
    goal(samples, "an idle connection below 10 KB", &ROWS[12], 10_000.0);
}

fn goal(samples: &[Sample], title: &str, row: &Row, bound: f64) {
    if let Some(ours) = value(samples, row, Contestant::Ferroxy) {
        println!("{title}: {ours:.1}, {}", if ours < bound { "met" } else { "missed" });
    }
}

/// The median over the rounds.
fn value(samples: &[Sample], row: &Row, contestant: Contestant) -> Option<f64> {
    let (_, phase, number, _, factor, _) = row;
    let median_of = |contestant: Contestant| {
        let of_phase = samples.iter().filter(|it| it.phase == *phase && it.contestant == contestant);
        median(of_phase.map(|it| match number {
            Number::Printed(index) | Number::Added(index) => it.numbers[*index],
            Number::CpuPerUnit => it.cpu / (it.numbers[0] * it.seconds),
        }))
    };
    let own = median_of(contestant)?;
    let has_meaning = contestant != Contestant::Direct || matches!(number, Number::Printed(_));
    let base = if matches!(number, Number::Added(_)) { median_of(Contestant::Direct)? } else { 0.0 };
    has_meaning.then_some((own - base) * factor)
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
