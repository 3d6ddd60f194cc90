//! The state of the agent, as JSON: kind `Status`.

use ferroxy_core::ServiceName;
use ferroxy_platform::process;
use serde_json::{Value, json};

use super::document;
use crate::config::KUBERNETES_VERSION;
use crate::serve::Moment;
use crate::serve::health::Progress;
use crate::serve::status::{Now, Status, Watch};

/// The most refused Services that are named.
const MOST_REFUSED: usize = 100;

/// Values that do not change while the agent runs, and values that only the server knows.
#[derive(Debug, Clone, Copy)]
pub struct About<'a> {
    pub node: &'a str,
    pub mode: &'static str,
    pub started: Moment,
    /// Services with problems; `None` until they are counted.
    pub problems: Option<usize>,
    /// The report about sockets, or null.
    pub sockets: &'a Value,
}

pub fn status(status: &Status, about: &About<'_>) -> Value {
    let moment = Moment::now();
    let figures = process::figures();
    let journal = status.journal.as_ref().map(|it| (it.bounds(), it.latencies()));
    let now = status.refreshed();
    let bounds = journal.map(|((first, last), _)| json!({ "first": first, "last": last }));
    let latency =
        journal.map(|(_, it)| json!({ "count": it.count, "p50Seconds": it.median, "p99Seconds": it.p99 }));
    document(
        "Status",
        json!({
            "node": about.node,
            "mode": about.mode,
            "version": env!("CARGO_PKG_VERSION"),
            "kubernetesVersion": KUBERNETES_VERSION,
            "clusterVersion": now.cluster_version,
            "started": about.started.rfc3339(),
            "uptimeSeconds": about.started.age(moment).as_secs_f64(),
            "ready": now.is_ready(moment),
            "healthy": now.is_healthy(moment),
            "inSync": is_in_sync(&now),
            "queue": {
                "services": now.progress.waiting,
                "large": now.progress.large,
                "inputs": now.inputs.events,
            },
            "source": source(&now, moment),
            "services": {
                "known": now.progress.known,
                "programmed": now.progress.programmed,
                "refused": now.refused.len(),
                "problems": about.problems,
            },
            "refused": now.refused.iter().take(MOST_REFUSED).map(refused).collect::<Vec<_>>(),
            "failing": now.health.failing().iter()
                .map(|(step, it)| json!({ "step": step.words(), "reason": it.reason, "since": it.since.rfc3339() }))
                .collect::<Vec<_>>(),
            "driftRepairs": now.counts.drift_repairs,
            "lastSync": now.counts.last_sync.map(|it| it.rfc3339()),
            "latency": latency,
            "process": { "memoryBytes": figures.resident_bytes, "cpuSeconds": figures.cpu_seconds },
            "journal": bounds,
            "trafficCounted": now.frontends.is_some(),
            "sockets": about.sockets,
        }),
    )
}

/// The first sync is done, and no change waits.
fn is_in_sync(now: &Now) -> bool {
    now.health.first_sync_done() && now.progress.waiting == 0 && now.inputs.events == 0
}

/// A summary of everything that can change without an entry in the journal. If it differs, followers get the status again.
#[derive(Debug, PartialEq, Eq)]
pub struct Outline {
    progress: Progress,
    watches: Vec<bool>,
    flags: [bool; 5],
    refused: usize,
}

pub fn outline(status: &Status) -> Outline {
    let (now, moment) = (status.refreshed(), Moment::now());
    Outline {
        progress: now.progress,
        watches: now.source.state.watches.iter().map(|watch| watch.alive).collect(),
        flags: [
            now.is_ready(moment),
            now.is_healthy(moment),
            is_in_sync(&now),
            now.source.is_alive(moment),
            now.frontends.is_some(),
        ],
        refused: now.refused.len(),
    }
}

fn source(now: &Now, moment: Moment) -> Value {
    let seconds = |since: Moment| since.age(moment).as_secs_f64();
    let watch = |watch: &Watch| {
        json!({
            "resource": watch.resource,
            "alive": watch.alive,
            "lastActivitySeconds": watch.last_activity.map(seconds),
        })
    };
    json!({
        "alive": now.source.is_alive(moment),
        "ended": now.source.ended,
        "lastActivitySeconds": now.source.state.last_sign.map(seconds),
        "watches": now.source.state.watches.iter().map(watch).collect::<Vec<_>>(),
    })
}

fn refused((service, reason): (&ServiceName, &String)) -> Value {
    json!({ "service": service.to_string(), "reason": reason })
}
