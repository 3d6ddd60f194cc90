//! `ferroxy status`: how the agent on this node is doing, on one screen; the exit code is for scripts.

use clap::Args;
use ferroxy_core::foreign::printable;
use serde_json::Value;

use super::{Answer, Output};
use crate::client::{AgentAddress, Api};
use crate::output::{Paint, Table};
use crate::progress::while_waiting;

#[derive(Debug, Args)]
pub struct Status {
    #[command(flatten)]
    agent: AgentAddress,
    /// How to print it
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

impl Status {
    pub fn run(self) -> anyhow::Result<Answer> {
        let agent = self.agent.open()?;
        let status = while_waiting("asking the agent", || agent.get("status"))?;
        self.output.print(|| text(&status, Paint::stdout()), || status.clone())?;
        Ok(if troubles(&status).is_empty() { Answer::Yes } else { Answer::No })
    }
}

/// The problems, one sentence each; empty if there are none.
pub(super) fn troubles(status: &Value) -> Vec<String> {
    let mut found = Vec::new();
    if status["healthy"] == false {
        found.push("not healthy: changes are not programmed; see the agent's log".to_owned());
    }
    if let Some(why) = status["source"]["ended"].as_str() {
        found.push(format!("changes are no longer received: {why}; restart the agent"));
    } else if status["source"]["alive"] == false {
        found.push(
            "the API server (or the manifests) cannot be read: rules stay as they are; see the agent's log"
                .to_owned(),
        );
    }
    if status["ready"] == false && found.is_empty() {
        found.push("not ready: the first sync is not done".to_owned());
    }
    for step in status["failing"].as_array().into_iter().flatten() {
        found.push(format!("{} fails: {}", words(&step["step"]), words(&step["reason"])));
    }
    for refused in status["refused"].as_array().into_iter().flatten().take(MOST) {
        found.push(format!(
            "Service {} is refused: {}",
            words(&refused["service"]),
            words(&refused["reason"])
        ));
    }
    let refused = status["services"]["refused"].as_u64().unwrap_or(0);
    if refused > MOST as u64 {
        found.push(format!("{} more Services are refused", refused - MOST as u64));
    }
    found
}

/// The most refused Services that the screen names.
const MOST: usize = 5;

fn text(status: &Value, paint: Paint) -> String {
    let number = |value: &Value| value.as_u64().map_or("unknown".to_owned(), |number| number.to_string());
    let sign = |is_good: bool, good: &str, bad: &str| if is_good { paint.good(good) } else { paint.bad(bad) };
    let mut text = format!(
        "{} {}, {} mode, ferroxy {}, up {}\n\n",
        paint.strong("node"),
        words(&status["node"]),
        words(&status["mode"]),
        words(&status["version"]),
        duration(status["uptimeSeconds"].as_f64().unwrap_or(0.0)),
    );
    let mut table = Table::indented(2);
    let in_sync = status["inSync"] == true;
    let waiting = number(&status["queue"]["services"]);
    table.row(["in sync".into(), sign(in_sync, "yes", "no"), format!("{waiting} Services wait")]);
    table.row(["ready".into(), sign(status["ready"] == true, "yes", "no"), String::new()]);
    table.row(["healthy".into(), sign(status["healthy"] == true, "yes", "no"), String::new()]);
    table.row(["source".into(), sign(status["source"]["alive"] == true, "alive", "silent"), watches(status)]);
    let services = &status["services"];
    let problems = services["problems"].as_u64();
    table.row([
        "Services".into(),
        format!("{} programmed", number(&services["programmed"])),
        other_services(status),
    ]);
    let problems_words = match problems {
        None => "not counted yet".to_owned(),
        Some(0) => paint.good("none"),
        Some(1) => paint.doubtful("1 Service"),
        Some(problems) => paint.doubtful(&format!("{problems} Services")),
    };
    table.row(["problems".into(), problems_words, hint(problems.unwrap_or(0)).into()]);
    let repairs = match status["driftRepairs"].as_u64() {
        Some(1) => "1 repair".to_owned(),
        _ => format!("{} repairs", number(&status["driftRepairs"])),
    };
    table.row(["drift".into(), repairs, "of changes by other programs".into()]);
    table.row(["latency".into(), latency(&status["latency"]), "from the API to the kernel".into()]);
    table.row(["memory".into(), megabytes(&status["process"]["memoryBytes"]), String::new()]);
    text.push_str(&table.to_string());
    for trouble in troubles(status) {
        text.push_str(&format!("\n{} {trouble}\n", paint.bad("problem")));
    }
    text
}

/// `of 120 known; the kernel refused 1`, and how many need no rules on this node, if that is known.
fn other_services(status: &Value) -> String {
    let services = &status["services"];
    let number = |value: &Value| value.as_u64();
    let (Some(known), Some(programmed), Some(refused)) =
        (number(&services["known"]), number(&services["programmed"]), number(&services["refused"]))
    else {
        return "not counted yet".to_owned();
    };
    let mut text = format!("of {known} known; the kernel refused {refused}");
    let rest = known.saturating_sub(programmed);
    if rest > 0 && refused == 0 && status["queue"]["services"] == 0 {
        let need = if rest == 1 { "needs" } else { "need" };
        text.push_str(&format!("; {rest} {need} no rules: headless, ExternalName, or of another proxy"));
    }
    text
}

fn hint(problems: u64) -> &'static str {
    if problems == 0 {
        ""
    } else if cfg!(feature = "top") {
        "`ferroxy top` lists them, `ferroxy explain NAMESPACE/SERVICE` says what to do"
    } else {
        "`ferroxy explain NAMESPACE/SERVICE` says what to do"
    }
}

/// `services, endpointslices`; watches that are not alive have a mark.
fn watches(status: &Value) -> String {
    let watches = status["source"]["watches"].as_array().into_iter().flatten();
    let one = |watch: &Value| {
        let mark = if watch["alive"] == false { " (not alive)" } else { "" };
        format!("{}{mark}", words(&watch["resource"]))
    };
    watches.map(one).collect::<Vec<_>>().join(", ")
}

fn latency(latency: &Value) -> String {
    match (latency["p50Seconds"].as_f64(), latency["p99Seconds"].as_f64()) {
        (Some(median), Some(p99)) => format!("p50 {}, p99 {}", milliseconds(median), milliseconds(p99)),
        _ => "not known yet".to_owned(),
    }
}

/// `0.8 ms`, `12 ms`, `1.4 s`
pub(super) fn milliseconds(seconds: f64) -> String {
    match seconds {
        it if it < 0.01 => format!("{:.1} ms", it * 1e3),
        it if it < 1.0 => format!("{:.0} ms", it * 1e3),
        it => format!("{it:.1} s"),
    }
}

fn megabytes(bytes: &Value) -> String {
    bytes.as_u64().map_or("unknown".to_owned(), |bytes| format!("{:.1} MB", bytes as f64 / 1e6))
}

/// `3d 4h`, `2h 5m`, `5m 10s`, `12s`
fn duration(seconds: f64) -> String {
    let all = seconds as u64;
    let (days, hours, minutes) = (all / 86_400, all / 3600 % 24, all / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{all}s"),
        (0, 0, _) => format!("{minutes}m {}s", all % 60),
        (0, ..) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}

/// Text of an answer, without control characters for the terminal.
pub(super) fn words(value: &Value) -> String {
    printable(value.as_str().unwrap_or("unknown")).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fine() -> Value {
        json!({
            "node": "ka", "mode": "nftables", "version": "0.1.0", "uptimeSeconds": 3725.0,
            "ready": true, "healthy": true, "inSync": true, "queue": { "services": 0 },
            "source": { "alive": true, "ended": null, "watches": [
                { "resource": "services", "alive": true }, { "resource": "nodes", "alive": false }] },
            "services": { "known": 120, "programmed": 118, "refused": 0, "problems": 2 },
            "refused": [], "failing": [], "driftRepairs": 3,
            "latency": { "p50Seconds": 0.0012, "p99Seconds": 1.44 }, "process": { "memoryBytes": 23_400_000 },
        })
    }

    #[test]
    fn one_screen_has_everything_and_nothing_is_wrong() {
        let text = text(&fine(), Paint::off());
        let without_columns = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in [
            "node ka, nftables mode, ferroxy 0.1.0, up 1h 2m",
            "source alive services, nodes (not alive)",
            "Services 118 programmed of 120 known; the kernel refused 0; 2 need no rules: headless, ExternalName",
            "problems 2 Services `ferroxy",
            "drift 3 repairs of changes by other programs",
            "latency p50 1.2 ms, p99 1.4 s",
            "23.4 MB",
        ] {
            assert!(without_columns.contains(part), "{part} in\n{text}");
        }
        assert!(text.lines().count() < 24 && !text.contains("problem "), "{text}");
        assert!(troubles(&fine()).is_empty(), "problems of Services are not the agent's");
    }

    #[test]
    fn each_trouble_is_a_sentence() {
        let with = |change: fn(&mut Value)| {
            let mut status = fine();
            change(&mut status);
            troubles(&status)
        };
        assert_eq!(with(|it| it["healthy"] = false.into()).len(), 1);
        assert_eq!(with(|it| it["ready"] = false.into()), ["not ready: the first sync is not done"]);
        let ended = with(|it| it["source"] = json!({ "alive": false, "ended": "the thread has ended" }));
        assert!(ended[0].contains("the thread has ended") && ended.len() == 1, "{ended:?}");
        let refused = with(|it| {
            it["services"]["refused"] = 7.into();
            it["refused"] =
                (0..7).map(|n| json!({ "service": format!("a/{n}"), "reason": "\x1b[2J" })).collect();
        });
        assert_eq!(refused.len(), 6);
        assert!(refused.iter().all(|it| !it.contains('\x1b')), "{refused:?}");
    }

    #[test]
    fn durations_are_short() {
        let all = [12.9, 310.0, 7500.0, 273_600.0].map(duration);
        assert_eq!(all, ["12s", "5m 10s", "2h 5m", "3d 4h"]);
    }
}
