//! `make bench-hostile`: how much one hostile tenant slows another one down, compared with a quiet phase of the same run.
//!
//! Endpoints of Services move from pod to pod, one after the other, first in peace, then while a tenant writes every object of
//! `tests/support/hostile.rs` again and again and holds hundreds of connections to the health and metrics ports. The time of a
//! change is from its write to the API server until a packet arrives at the new pod. Both phases have the same length and the
//! same number of changes, so on a busy machine the ratio still counts.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "it stands on what the tests share, and stops at the first surprise"
)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use ferroxy::output::Table;
use ferroxy_lab::api::Server;
use ferroxy_lab::api::cluster::Cluster;
use ferroxy_lab::{ANSWER, Answer, Namespace, PATIENCE, Protocol, ask};
use serde_json::{Value, json};

use support::web::{HEALTHZ, METRICS};
use support::{Agent, Service, Setting, Stage, hostile, pod_of};

#[derive(Debug, Clone, Parser)]
#[command(name = "bench-hostile")]
pub struct Options {
    /// Services of the cluster around the two tenants
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=50_000))]
    pub services: u32,
    /// Changes of the other tenant in each phase
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=2_000))]
    pub changes: u32,
    /// How long each of the two phases lasts, in seconds
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub seconds: u32,
    /// How often the hostile tenant writes all of its objects, in milliseconds
    #[arg(long, default_value_t = 3_000, value_parser = clap::value_parser!(u32).range(100..=60_000))]
    pub every: u32,
    /// Print a table for people, or JSON
    #[arg(long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
    /// What cargo passes to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    Text,
    Json,
}

/// The number of Services, so large that the rate limit of a Service (`minSyncPeriod`) is never reached.
const VICTIMS: usize = 50;
const HOMES: [&str; 4] = ["a1", "a2", "b1", "b2"];
/// Connections to each of the ports of the agent, opened again in every round of the attack.
const IDLE: usize = 300;
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const MIB: f64 = 1024.0 * 1024.0;

fn main() {
    let options = Options::parse();
    // The lab prints what this machine lacks.
    let Some(figures) = measure(&options) else { std::process::exit(1) };
    match options.output {
        Output::Text => print!("{}", figures.text()),
        Output::Json => println!("{:#}", figures.json()),
    }
}

#[derive(Debug, Clone)]
pub struct Figures {
    pub quiet: Phase,
    pub attacked: Phase,
    /// How often the hostile tenant wrote all of its objects.
    pub rounds: usize,
}

/// The measurements of the quiet phase, or of the phase under attack.
#[derive(Debug, Clone)]
pub struct Phase {
    /// How long each change took, the shortest first.
    pub changes: Vec<Duration>,
    /// How long each answer of /livez took, the shortest first.
    pub livez: Vec<Duration>,
    /// Requests of /livez without a good answer within a second.
    pub unanswered: usize,
    /// The most memory of the agent at any moment.
    pub peak_bytes: u64,
    /// The most log of any minute.
    pub log_bytes: usize,
}

/// `None` if this machine does not support it.
pub fn measure(options: &Options) -> Option<Figures> {
    let stage = Stage::new(Setting::default())?;
    let cluster = Cluster { services: options.services as usize, endpoints: 4, nodes: 0 };
    // The stage has created the ServiceCIDR already.
    stage.server.put_all(cluster.objects().filter(|object| !object.contains("ServiceCIDR"))).unwrap();
    (0..VICTIMS).for_each(|number| stage.put_service(&victim(number, 0)));
    let agent = stage.start();
    agent.settle(stage.ka());
    let bench = Bench { stage: &stage, agent: &agent, options };

    eprintln!("bench-hostile: {} changes in peace", options.changes);
    let quiet = bench.phase(0);
    eprintln!("bench-hostile: {} changes under attack", options.changes);
    let (over, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (server, node, every) = (&stage.server, stage.ka(), Duration::from_millis(options.every.into()));
    let attacked = thread::scope(|scope| {
        let attack = scope.spawn(|| attack(server, node, every, &over, &rounds));
        let phase = bench.phase(options.changes as usize);
        over.store(true, Ordering::Relaxed);
        attack.thread().unpark();
        phase
    });
    agent.terminate();
    Some(Figures { quiet, attacked, rounds: rounds.into_inner() })
}

/// The attack of the hostile tenant: repeats all of it until `over`.
fn attack(server: &Server, node: &Namespace, every: Duration, over: &AtomicBool, rounds: &AtomicUsize) {
    let mut crowd = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let began = Instant::now();
        let round = rounds.fetch_add(1, Ordering::Relaxed);
        let objects: Vec<String> =
            hostile::objects(&["10.96.0.80", "10.96.0.81"], round).iter().map(Value::to_string).collect();
        for object in objects {
            server.put_raw(object.as_bytes()).unwrap();
        }
        // The connections of the last round close only when the new ones are open.
        crowd = [HEALTHZ, METRICS].into_iter().flat_map(|port| gather(node, port, crowd.len())).collect();
        while !over.load(Ordering::Relaxed) && began.elapsed() < every {
            thread::park_timeout(every.saturating_sub(began.elapsed()));
        }
    }
}

/// Connections that send nothing, or half of a request.
fn gather(node: &Namespace, port: &str, before: usize) -> Vec<TcpStream> {
    let address: SocketAddr = port.parse().unwrap();
    let join = |number: usize| {
        let mut stream = TcpStream::connect_timeout(&address, SECOND).ok()?;
        if (before + number).is_multiple_of(2) {
            // The server may have closed it already.
            let _ = stream.write_all(b"GET /livez HTTP/1.1\r\nHost: n");
        }
        Some(stream)
    };
    node.run(|| (0..IDLE).filter_map(join).collect()).unwrap()
}

struct Bench<'a> {
    stage: &'a Stage,
    agent: &'a Agent,
    options: &'a Options,
}

impl Bench<'_> {
    /// Changes at an even pace, with a request of /livez after each. Changes are numbered from `first` on.
    fn phase(&self, first: usize) -> Phase {
        let (mut changes, mut livez, mut log) = (Vec::new(), Vec::new(), vec![self.log_now()]);
        let (began, pace) = (Instant::now(), SECOND * self.options.seconds / self.options.changes);
        forget_peak(self.agent.pid());
        for number in 0..self.options.changes {
            thread::sleep((pace * number).saturating_sub(began.elapsed()));
            changes.push(self.change(first + number as usize));
            livez.push(self.livez());
            log.push(self.log_now());
        }
        let answers = livez.iter().flatten().filter(|time| **time <= SECOND);
        let mut answers: Vec<Duration> = answers.copied().collect();
        changes.sort();
        answers.sort();
        Phase {
            changes,
            unanswered: livez.len() - answers.len(),
            livez: answers,
            peak_bytes: peak(self.agent.pid()),
            log_bytes: most_in_a_minute(&log),
        }
    }

    /// Moves the endpoint of one Service. Returns how long it took until packets arrived there.
    fn change(&self, number: usize) -> Duration {
        // Each turn of the Services goes to another pod.
        let service = victim(number % VICTIMS, 1 + number / VICTIMS);
        let home = service.endpoints[0].as_str();
        let slice = service.objects()[1].to_string();
        let target: SocketAddr = format!("{}:80", service.cluster_ips[0]).parse().unwrap();
        let client = self.stage.network.namespace("a1").unwrap();
        let arrived = |began: Instant| {
            loop {
                match ask(Protocol::Tcp, target, ANSWER) {
                    Ok(Answer::Reply(line)) if pod_of(&line) == home => return began.elapsed(),
                    Ok(Answer::Reply(_)) => {}
                    lost => panic!("a request to {target}: {lost:?}"),
                }
                assert!(began.elapsed() < PATIENCE, "{target} does not lead to {home}");
                thread::sleep(Duration::from_micros(200));
            }
        };
        let began = Instant::now();
        self.stage.server.put_raw(slice.as_bytes()).unwrap();
        client.run(|| arrived(began)).unwrap()
    }

    /// How long a good answer took, if there was one.
    fn livez(&self) -> Option<Duration> {
        let address: SocketAddr = HEALTHZ.parse().unwrap();
        let answer = || {
            let began = Instant::now();
            let mut stream = TcpStream::connect_timeout(&address, SECOND).ok()?;
            stream.set_read_timeout(Some(SECOND)).ok()?;
            stream.write_all(b"GET /livez HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n").ok()?;
            let mut said = String::new();
            stream.read_to_string(&mut said).ok()?;
            said.starts_with("HTTP/1.1 200 ").then(|| began.elapsed())
        };
        self.stage.ka().run(answer).unwrap()
    }

    fn log_now(&self) -> (Instant, usize) {
        (Instant::now(), self.agent.log().len())
    }
}

/// A Service whose one endpoint is at the home of this turn.
fn victim(number: usize, turn: usize) -> Service {
    let address = format!("10.96.255.{}", 1 + number);
    let home = HOMES[(number + turn) % HOMES.len()];
    Service::new(&format!("victim-{number}"), &[&address]).port(Protocol::Tcp, 80, 80).endpoints(&[home])
}

/// Resets the peak of memory.
fn forget_peak(pid: u32) {
    fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
}

fn peak(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// The most bytes logged within a minute, from the lengths of the log at these times.
fn most_in_a_minute(log: &[(Instant, usize)]) -> usize {
    let since = |(index, (now, length)): (usize, &(Instant, usize))| {
        let first = log[..index].iter().find(|(then, _)| now.duration_since(*then) <= MINUTE);
        first.map_or(0, |(_, before)| length - before)
    };
    log.iter().enumerate().map(since).max().unwrap_or_default()
}

/// A percentile of sorted times. If there are only few times, it is the longest of them.
fn percentile(times: &[Duration], percent: usize) -> Duration {
    let index = (times.len() * percent).div_ceil(100).saturating_sub(1);
    times.get(index).copied().unwrap_or_default()
}

impl Figures {
    fn ratio(&self, percent: usize) -> f64 {
        percentile(&self.attacked.changes, percent).as_secs_f64()
            / percentile(&self.quiet.changes, percent).as_secs_f64()
    }

    fn grown(&self) -> f64 {
        self.attacked.peak_bytes as f64 - self.quiet.peak_bytes as f64
    }

    pub fn text(&self) -> String {
        let (quiet, attacked) = (&self.quiet, &self.attacked);
        let time = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3);
        let change = |phase: &Phase, percent| time(percentile(&phase.changes, percent));
        let verdict = |is_met: bool| if is_met { "met" } else { "MISSED" };
        let answers =
            |phase: &Phase| format!("{} of {}", phase.livez.len(), phase.livez.len() + phase.unanswered);
        let slowest = |phase: &Phase| time(percentile(&phase.livez, 100));
        let memory = |phase: &Phase| format!("{:.1} MiB", phase.peak_bytes as f64 / MIB);
        let log = |phase: &Phase| format!("{} B", phase.log_bytes);
        let mut table = Table::default();
        table.row(["", "quiet", "under attack", "", "goal", ""]);
        for percent in [50, 99] {
            let ratio = self.ratio(percent);
            let (goal, is_met) = if percent == 99 { ("<= 2.0 x", verdict(ratio <= 2.0)) } else { ("", "") };
            let (name, quiet, attacked) =
                (format!("a change, p{percent}"), change(quiet, percent), change(attacked, percent));
            table.row([name, quiet, attacked, format!("{ratio:.2} x"), goal.into(), is_met.into()]);
        }
        let (grown, goal) = (self.grown() / MIB, verdict(self.grown() <= 64.0 * MIB));
        let row = [
            "most memory",
            &memory(quiet),
            &memory(attacked),
            &format!("{grown:+.1} MiB"),
            "<= +64 MiB",
            goal,
        ];
        table.row(row);
        let goal = verdict(attacked.log_bytes < 1_000_000);
        table.row(["log, most in a minute", &log(quiet), &log(attacked), "", "< 1000000 B", goal]);
        let goal = verdict(attacked.unanswered == 0);
        table.row(["/livez within a second", &answers(quiet), &answers(attacked), "", "all", goal]);
        table.row(["/livez, slowest answer", &slowest(quiet), &slowest(attacked), "", "", ""]);
        format!(
            "{table}{} rounds of the attack, {} changes in each phase\n",
            self.rounds,
            quiet.changes.len()
        )
    }

    pub fn json(&self) -> Value {
        let phase = |phase: &Phase| {
            json!({
                "change_p50_seconds": percentile(&phase.changes, 50).as_secs_f64(),
                "change_p99_seconds": percentile(&phase.changes, 99).as_secs_f64(),
                "changes": phase.changes.len(),
                "peak_memory_bytes": phase.peak_bytes,
                "log_bytes_per_minute": phase.log_bytes,
                "livez_answers": phase.livez.len(),
                "livez_unanswered": phase.unanswered,
                "livez_slowest_seconds": percentile(&phase.livez, 100).as_secs_f64(),
            })
        };
        json!({
            "quiet": phase(&self.quiet),
            "attacked": phase(&self.attacked),
            "change_p99_ratio": self.ratio(99),
            "rounds": self.rounds,
        })
    }
}
