//! `make bench-page`: how much CPU and memory the node's page and its journal take while a cluster changes.
//!
//! Three agents run at the same time, each in its own namespace with its own API server, and get the same changes at the same
//! moments: one without a page, one with a page that no browser has open, and one with a page that is open. In each round they
//! change places. So a busy machine slows all of them, and the differences still count.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "it stands on what the tests share, and stops at the first surprise"
)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use clap::Parser;
use ferroxy::output::Table;
use ferroxy_lab::api::cluster::{Cluster, node_name};
use ferroxy_lab::api::{Login, Options as ServerOptions, Server};
use ferroxy_lab::{Namespace, PATIENCE};
use serde_json::Value;
use tempfile::TempDir;

use support::{Agent, configuration, lonely_node, wait_until};

#[derive(Debug, Clone, Parser)]
#[command(name = "bench-page")]
pub struct Options {
    /// Services, each with ten endpoints
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=40_000))]
    pub services: u32,
    /// Changes in each second
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=5_000))]
    pub rate: u32,
    /// How long the changes of one round last, in seconds
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub seconds: u32,
    /// A multiple of three is fair: each agent is in each place equally often
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=30))]
    pub rounds: u32,
    /// The agent
    #[arg(long, default_value = support::FERROXY)]
    pub program: PathBuf,
    /// What cargo passes to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

const ENDPOINTS: usize = 10;
const SECOND: Duration = Duration::from_secs(1);
const MB: f64 = 1e6;
/// The page may take at most this part of a processor, and this much memory.
const GOAL_CORES: f64 = 0.01;
const GOAL_BYTES: f64 = 8.0 * MB;
const PAGE: &str = "127.0.0.1:10261";
/// The page requests this many names at once.
const NAMES: usize = 200;
/// The unit in which the kernel counts the time of a process, on every Linux platform.
const TICKS_PER_SECOND: f64 = 100.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    Off,
    On,
    Open,
}

const VARIANTS: [Variant; 3] = [Variant::Off, Variant::On, Variant::Open];

/// The cost of one agent in one round.
#[derive(Debug, Clone, Copy)]
struct Cost {
    /// Processors that it used while the changes came.
    cores: f64,
    /// Resident memory after them.
    bytes: f64,
}

fn main() {
    let options = Options::parse();
    let mut costs: [Vec<Cost>; 3] = Default::default();
    for round in 0..options.rounds {
        eprintln!("bench-page: round {} of {}", round + 1, options.rounds);
        // The lab prints what this machine lacks.
        let Some(found) = run(&options, round as usize) else { std::process::exit(1) };
        for (variant, cost) in found {
            costs[variant as usize].push(cost);
        }
    }
    print!("{}", text(&options, &costs));
}

/// One round. Which agent is made, notified and measured first differs from round to round.
fn run(options: &Options, round: usize) -> Option<Vec<(Variant, Cost)>> {
    let cluster = Cluster { services: options.services as usize, endpoints: ENDPOINTS, nodes: 3 };
    let mut variants = VARIANTS;
    variants.rotate_left(round % VARIANTS.len());
    let mut places = Vec::new();
    for variant in variants {
        places.push(Place::new(variant, cluster, &options.program)?);
    }
    let before: Vec<f64> = places.iter().map(Place::cpu_seconds).collect();
    let began = Instant::now();
    let total = options.rate * options.seconds;
    for number in 0..total {
        thread::sleep((SECOND * number / options.rate).saturating_sub(began.elapsed()));
        // The Services take turns. Each turn of a Service uses a new address.
        let (service, turn) = (number as usize % cluster.services, number as usize / cluster.services);
        let slice = cluster.moved(service, 0, 1 + turn);
        for place in &places {
            place.server.put_raw(slice.as_bytes()).unwrap();
        }
    }
    let took = began.elapsed().as_secs_f64();
    // If the machine is too busy for the rate, the figures are too good.
    eprintln!("bench-page: {:.0} changes/s", f64::from(total) / took);
    // The time to catch up counts as well.
    thread::sleep(SECOND);
    let found = places.iter().zip(before);
    let found = found.map(|(place, before)| (place.variant, place.cost(before, took))).collect();
    for place in places {
        place.end(total);
    }
    Some(found)
}

/// An agent with its API server and, if its page is open, a reader that sends the same requests as the page in a browser.
struct Place {
    variant: Variant,
    reader: Option<(TcpStream, JoinHandle<usize>)>,
    agent: Agent,
    server: Server,
    node: Namespace,
    _folder: TempDir,
}

impl Place {
    fn new(variant: Variant, cluster: Cluster, program: &Path) -> Option<Place> {
        let (node, folder) = (lonely_node()?, tempfile::tempdir().unwrap());
        let address = "127.0.0.1:6443".parse().unwrap();
        let serve = || Server::start(ServerOptions { address, tls: false, ..ServerOptions::default() });
        let server = node.run(serve).unwrap().unwrap();
        server.put_all(cluster.objects()).unwrap();
        let kubeconfig = server.kubeconfig(folder.path(), Login::Nothing).unwrap();
        let config = folder.path().join("config.yaml");
        let client = format!("clientConnection:\n  kubeconfig: {}\n", kubeconfig.display());
        fs::write(&config, format!("{}\n{client}", configuration())).unwrap();
        let mut arguments: Vec<OsString> = vec!["--config".into(), config.into()];
        arguments.extend(["--hostname-override".into(), node_name(0).into()]);
        arguments.extend((variant != Variant::Off).then(|| format!("--page-address={PAGE}").into()));
        let mut command = Command::new(program);
        command.arg("run");
        let agent = Agent::spawn_as(&node, command, arguments);
        agent.wait_for("in sync");
        let reader = (variant == Variant::Open).then(|| read_events(&node));
        let place = Place { variant, reader, agent, server, node, _folder: folder };
        place.wait_until_idle();
        Some(place)
    }

    fn wait_until_idle(&self) {
        wait_until("the agent is idle", PATIENCE, || {
            let before = self.cpu_seconds();
            thread::sleep(SECOND);
            self.cpu_seconds() - before < 0.05
        });
    }

    /// User and system time of the process.
    fn cpu_seconds(&self) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.agent.pid())).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks = |index: usize| fields[index].parse::<f64>().unwrap();
        (ticks(11) + ticks(12)) / TICKS_PER_SECOND
    }

    fn cost(&self, cpu_before: f64, seconds: f64) -> Cost {
        let cores = (self.cpu_seconds() - cpu_before) / seconds;
        Cost { cores, bytes: self.agent.resident() as f64 * 1024.0 }
    }

    /// Ends the agent. The journal must have the changes, and an open page must have received them: else the figures mean nothing.
    fn end(self, changes: u32) {
        if self.variant != Variant::Off {
            let address: SocketAddr = PAGE.parse().unwrap();
            let status: Value =
                serde_json::from_str(&self.node.run(|| ask(address, "status")).unwrap()).unwrap();
            assert!(status["journal"]["last"].as_u64().unwrap() >= u64::from(changes) / 2, "{status}");
        }
        if let Some((stream, reader)) = self.reader {
            stream.shutdown(Shutdown::Both).unwrap();
            assert!(reader.join().unwrap() >= changes as usize / 2);
        }
        self.agent.terminate();
    }
}

/// Reads the stream of events, and once a second the Services that changed, as `store.js` does. The thread returns the number of
/// events.
fn read_events(node: &Namespace) -> (TcpStream, JoinHandle<usize>) {
    let address: SocketAddr = PAGE.parse().unwrap();
    let mut stream = node.run(|| TcpStream::connect_timeout(&address, PATIENCE)).unwrap().unwrap();
    stream.write_all(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let read = move || {
        let (mut names, mut received, mut asked) = (BTreeSet::new(), 0, Instant::now());
        // An error means that the stream was shut down.
        for line in lines.map_while(Result::ok) {
            let event = line.strip_prefix("data:").and_then(|data| serde_json::from_str::<Value>(data).ok());
            if let Some(name) = event.as_ref().and_then(|event| event["service"].as_str()) {
                received += 1;
                names.insert(name.replace('/', "%2F"));
            }
            if asked.elapsed() >= SECOND && !names.is_empty() {
                let rest =
                    names.iter().nth(NAMES).map_or_else(BTreeSet::new, |name| names.clone().split_off(name));
                let query: Vec<String> = names.difference(&rest).map(|name| format!("name={name}")).collect();
                ask(address, &format!("services?{}", query.join("&")));
                names = rest;
                asked = Instant::now();
            }
        }
        received
    };
    let reader = node.spawn(read).unwrap();
    (stream, thread::spawn(move || reader.join().unwrap().unwrap()))
}

/// The body of an answer of the API.
fn ask(address: SocketAddr, path: &str) -> String {
    let request = format!("GET /api/v1/{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

fn text(options: &Options, costs: &[Vec<Cost>; 3]) -> String {
    let [off, ..] = costs.each_ref().map(|it| median(it));
    let mut table = Table::default();
    table.row(["", "of a core", "more than off", "goal", "memory", "more than off", "goal"]);
    for (variant, costs) in VARIANTS.into_iter().zip(costs) {
        let cost = median(costs);
        let name = match variant {
            Variant::Off => "no page",
            Variant::On => "page",
            Variant::Open => "page, open in a browser",
        };
        let (cores, bytes) = (cost.cores - off.cores, cost.bytes - off.bytes);
        let mut row = [
            name.to_owned(),
            percent(cost.cores),
            String::new(),
            String::new(),
            megabytes(cost.bytes),
            String::new(),
            String::new(),
        ];
        if variant != Variant::Off {
            (row[2], row[5]) = (format!("{:+.2} %", cores * 100.0), format!("{:+.1} MB", bytes / MB));
            let verdict = |goal: &str, is_met| format!("{goal} {}", if is_met { "met" } else { "MISSED" });
            row[3] = verdict("< 1 %", cores < GOAL_CORES);
            row[6] = verdict("< 8 MB", bytes < GOAL_BYTES);
        }
        table.row(row);
    }
    format!(
        "{table}medians of {} rounds: {} changes/s for {} s among {} Services with {ENDPOINTS} endpoints each\n",
        options.rounds, options.rate, options.seconds, options.services
    )
}

fn median(costs: &[Cost]) -> Cost {
    let middle = |value: fn(&Cost) -> f64| {
        let mut values: Vec<f64> = costs.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    Cost { cores: middle(|cost| cost.cores), bytes: middle(|cost| cost.bytes) }
}

fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

fn megabytes(bytes: f64) -> String {
    format!("{:.1} MB", bytes / MB)
}
