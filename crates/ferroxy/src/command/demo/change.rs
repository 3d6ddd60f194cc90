//! An endpoint leaves a Service and returns while requests arrive: counts failed requests, and measures the delay of the
//! change. The pod keeps serving meanwhile, like a pod that shuts down gracefully.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use ferroxy_lab::load::{LoadPlan, LoadReport};
use ferroxy_lab::{Load, LongConnection, Network, Protocol};
use serde::Serialize;

use super::asking::pod_and_source;
use super::network::NODES;
use super::shop;
use crate::output::{Paint, Table};

/// The results, from before the change until after it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    pub service: &'static str,
    pub pod: &'static str,
    pub phases: Vec<Phase>,
    pub requests: usize,
    pub failed_requests: Vec<String>,
    /// Lines that were echoed on a connection to the pod that was opened before the pod left.
    pub echoes: usize,
    pub connection_broken: Option<String>,
    pub removed_within_ms: u128,
    pub returned_within_ms: u128,
}

/// Which pods answered in one phase.
#[derive(Debug, Serialize)]
pub struct Phase {
    pub name: &'static str,
    pub answers: Answers,
}

/// Requests by pod.
type Answers = BTreeMap<String, usize>;

const SERVICE: &str = "shop/api";
const CLUSTER_IP: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 96, 0, 30)), 80);
const ALL: [&str; 3] = ["api-1", "api-2", "api-3"];
const STAYING: [&str; 2] = ["api-1", "api-2"];
const LEAVING: &str = "api-3";
const TAKEN_AWAY: &str = "taken away";
const PUT_BACK: &str = "put back";

/// The chance that this many requests in a row miss one of three endpoints is (2/3)^150, which is practically zero.
const ENOUGH: usize = 150;
/// The pause between requests of a burst: without it, a fast machine would fill the kernel's connection tracking table.
const PACE: Duration = Duration::from_micros(300);
/// How long each phase lasts.
const HOLD: Duration = Duration::from_millis(600);
/// A change that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(120);

pub fn take_away_and_put_back(network: &Network, manifests: &Path) -> anyhow::Result<Change> {
    let background = background_load(network)?;
    let connection = connect_to_leaving(network)?;
    let mut bursts = Bursts { network, total: LoadReport::default() };

    let before = bursts.ask_for(HOLD)?;
    let began = Instant::now();
    shop::write_api_endpoints(manifests, &STAYING)?;
    let removed_within = bursts.until(|pods| !pods.contains(&LEAVING))?.began - began;
    let without = bursts.ask_for(HOLD)?;
    let began = Instant::now();
    shop::write_api_endpoints(manifests, &ALL)?;
    let returned_within = bursts.until(|pods| pods.contains(&LEAVING))?.ended - began;
    let after = bursts.ask_for(HOLD)?;

    let long = connection.close()?;
    let reports = [bursts.total, background.stop()?];
    let failures = reports.iter().flat_map(|report| &report.failures);
    let phases = [("before", before), (TAKEN_AWAY, without), (PUT_BACK, after)];
    Ok(Change {
        service: SERVICE,
        pod: LEAVING,
        phases: phases.map(|(name, answers)| Phase { name, answers }).into(),
        requests: reports.iter().map(|report| report.successes() + report.failures.len()).sum(),
        failed_requests: failures.map(|failure| failure.answer.to_string()).collect(),
        echoes: long.echoes,
        connection_broken: long.broken,
        removed_within_ms: removed_within.as_millis(),
        returned_within_ms: returned_within.as_millis(),
    })
}

impl Change {
    /// The problems, in words.
    pub fn wrong(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        if !self.failed_requests.is_empty() {
            wrong.push(format!("{} of {} requests failed", self.failed_requests.len(), self.requests));
        }
        if let Some(how) = &self.connection_broken {
            wrong.push(format!("the connection to {} broke: {how}", self.pod));
        }
        for phase in &self.phases {
            let should = phase.name != TAKEN_AWAY;
            if phase.answers.contains_key(self.pod) != should {
                let verb = if should { "did not answer" } else { "still answered" };
                wrong.push(format!("{}: {} {verb}", phase.name, self.pod));
            }
        }
        wrong
    }

    pub fn text(&self, paint: Paint) -> String {
        let mut phases = Table::indented(2);
        for phase in &self.phases {
            let answers = phase.answers.iter().map(|(pod, requests)| format!("{pod} {requests}"));
            let within = match phase.name {
                TAKEN_AWAY => Some(self.removed_within_ms),
                PUT_BACK => Some(self.returned_within_ms),
                _ => None,
            };
            let within = within.map(|ms| format!("on both nodes within {ms} ms of the manifest's change"));
            let answers = answers.collect::<Vec<_>>().join(", ");
            phases.row([phase.name, &answers, &paint.faint(&within.unwrap_or_default())]);
        }
        let wrong = self.wrong();
        let verdict = match wrong.is_empty() {
            true => paint.good(&format!(
                "{} requests, 0 failed; a connection made to {} before lived on ({} lines echoed)",
                self.requests, self.pod, self.echoes
            )),
            false => paint.bad(&format!("WRONG: {}", wrong.join("; "))),
        };
        format!("{phases}\n  {verdict}\n")
    }
}

/// Requests without a pause, from before the change until after it.
fn background_load(network: &Network) -> anyhow::Result<Load> {
    let plan = LoadPlan::back_to_back(Protocol::Tcp, node_port());
    Ok(Load::start(network.namespace("visitor")?, LoadPlan { interval: Duration::from_millis(2), ..plan })?)
}

/// Many requests through both nodes at once: one burst shows which pods are endpoints on each node.
struct Bursts<'a> {
    network: &'a Network,
    total: LoadReport,
}

struct Burst {
    began: Instant,
    ended: Instant,
    through_nodes: [LoadReport; 2],
}

impl Bursts<'_> {
    fn ask(&mut self) -> anyhow::Result<Burst> {
        let began = Instant::now();
        let start = |from, target| {
            let plan = LoadPlan::back_to_back(Protocol::Tcp, target);
            let plan = LoadPlan { max_requests: ENOUGH, interval: PACE, ..plan };
            Load::start(self.network.namespace(from)?, plan)
        };
        let (one, two) = (start("cart-1", CLUSTER_IP)?, start("office", node_port())?);
        let through_nodes = [one.finish()?, two.finish()?];
        for report in &through_nodes {
            for (line, requests) in &report.replies {
                *self.total.replies.entry(line.clone()).or_default() += requests;
            }
            self.total.failures.extend(report.failures.iter().cloned());
        }
        Ok(Burst { began, ended: Instant::now(), through_nodes })
    }

    /// Asks for `time`; returns which pods answered.
    fn ask_for(&mut self, time: Duration) -> anyhow::Result<Answers> {
        let deadline = Instant::now() + time;
        let mut answers = Answers::new();
        while Instant::now() < deadline {
            for (pod, requests) in self.ask()?.through_nodes.iter().flat_map(pods) {
                *answers.entry(pod.to_owned()).or_default() += requests;
            }
        }
        Ok(answers)
    }

    /// Asks until the answers of one burst meet the condition on both nodes.
    fn until(&mut self, awaited: impl Fn(&BTreeSet<&str>) -> bool) -> anyhow::Result<Burst> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let burst = self.ask()?;
            if burst.through_nodes.iter().all(|report| awaited(&pods(report).map(|(pod, _)| pod).collect())) {
                return Ok(burst);
            }
            if burst.ended > deadline {
                bail!(
                    "the endpoints of {SERVICE} changed in the manifests {PATIENCE:?} ago, and nothing followed"
                );
            }
        }
    }
}

fn pods(report: &LoadReport) -> impl Iterator<Item = (&str, usize)> {
    report.replies.iter().filter_map(|(line, requests)| Some((pod_and_source(line)?.0, *requests)))
}

fn node_port() -> SocketAddr {
    SocketAddr::from((NODES[1].ipv4(), 30080))
}

/// Connects until the Service picks the pod that is about to leave.
fn connect_to_leaving(network: &Network) -> anyhow::Result<LongConnection> {
    let stream = SocketAddr::new(CLUSTER_IP.ip(), 7);
    for _ in 0..ENOUGH {
        let (interval, patience) = (Duration::from_millis(20), ferroxy_lab::ANSWER);
        let connection = LongConnection::open(network.namespace("web-1")?, stream, interval, patience)?;
        if pod_and_source(connection.greeting()).is_some_and(|(pod, _)| pod == LEAVING) {
            return Ok(connection);
        }
    }
    Err(anyhow::anyhow!("{LEAVING} never answered")).context(SERVICE)
}
