//! Namespaces, processes and rounds: each phase is run with every contestant in turn, several times.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use ferroxy_lab::{Namespace, Network, prefixes};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::changes;
use crate::contestants::{ALL, Contestant, Running};
use crate::picture;
use crate::report::{self, Sample};
use crate::server::{DATAGRAMS, ECHO, SOURCE};

const NODE: &str = "10.244.9.1";
const SERVER: &str = "10.244.9.3";

/// Name of the phase, port, seconds.
const PHASES: [(&str, u16, f64); 6] = [
    ("connects", ECHO, 1.0),
    ("requests", ECHO, 1.0),
    ("latency", ECHO, 1.0),
    ("bytes-1", SOURCE, 1.0),
    ("bytes-64", SOURCE, 1.0),
    ("datagrams", DATAGRAMS, 1.0),
];

pub fn run(arguments: &[&str]) {
    let rounds = option(arguments, "--rounds=").map_or(5, |it| it.parse().unwrap());
    let only = option(arguments, "--only=");
    raise_descriptors();
    let network = network();
    let folder = tempfile::tempdir().unwrap();
    let namespace = |name: &str| network.namespace(name).unwrap();
    for name in ["node", "client", "server"] {
        namespace(name).set_sysctl("net/ipv4/ip_local_port_range", "1024 65000").unwrap();
        namespace(name).set_sysctl("net/ipv4/tcp_tw_reuse", "1").unwrap();
    }
    let server = Process(spawn(namespace("server"), &["server"]));
    let contestants: Vec<(Contestant, Option<Running>)> = ALL
        .iter()
        .zip(0..)
        .map(|(it, index)| (*it, it.start(namespace("node"), &listen(index), SERVER, folder.path())))
        .collect();
    sleep(Duration::from_millis(500));
    let mut samples = Vec::new();
    for (phase, port, seconds) in
        PHASES.into_iter().filter(|it| only.is_none_or(|only| it.0.starts_with(only)))
    {
        let gathered = (phase == "latency").then(|| {
            let proxies = contestants.iter().filter_map(|(_, running)| running.as_ref());
            Gathered::on_one_processor(proxies.flat_map(Running::processes).chain([server.0.id()]))
        });
        for _ in 0..rounds {
            for ((contestant, running), index) in contestants.iter().zip(0..) {
                if port == DATAGRAMS && !contestant.has_datagrams() {
                    continue;
                }
                let address =
                    if *contestant == Contestant::Direct { SERVER.to_owned() } else { listen(index) };
                let before = running.as_ref().map_or(0.0, Running::cpu);
                let numbers = client(namespace("client"), phase, &format!("{address}:{port}"), seconds);
                let cpu = running.as_ref().map_or(0.0, Running::cpu) - before;
                samples.push(Sample { phase, contestant: *contestant, numbers, cpu, seconds });
            }
        }
        drop(gathered);
    }
    if only.is_none_or(|only| "idle".starts_with(only)) {
        for ((contestant, running), index) in contestants.iter().zip(0..) {
            let Some(running) = running else { continue };
            samples.push(idle(namespace("client"), *contestant, running, &listen(index)));
        }
    }
    report::print(&samples);
    if let Some(path) = option(arguments, "--picture=") {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap();
        let load = load.split(' ').next().unwrap().to_owned();
        let note = format!("medians of {rounds} rounds · two threads each · load {load}");
        std::fs::write(path, picture::svg(&report::lines(&samples), &note)).unwrap();
    }
    if only.is_none_or(|only| "changes".starts_with(only)) {
        changes::run();
    }
}

/// Raises the limit of open files as far as the machine permits. With a lower limit, fewer idle connections are opened.
fn raise_descriptors() {
    let wanted = Rlimit { current: Some(100_000), maximum: Some(100_000) };
    if setrlimit(Resource::Nofile, wanted).is_err() {
        let most = getrlimit(Resource::Nofile).maximum;
        setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).unwrap();
    }
}

/// The number of idle connections: a proxy needs two descriptors for each.
pub fn idle_connections() -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    (descriptors.saturating_sub(1_000) / 2).min(20_000) as usize
}

fn option<'a>(arguments: &[&'a str], name: &str) -> Option<&'a str> {
    arguments.iter().find_map(|it| it.strip_prefix(name))
}

/// Each contestant listens on its own address of the node.
fn listen(index: u8) -> String {
    format!("10.244.9.{}", 10 + index)
}

fn network() -> Network {
    let mut network = Network::new().unwrap();
    let bridge = prefixes([&format!("{NODE}/24")]).unwrap();
    network.add_node("node", &prefixes(["192.168.9.1/24"]).unwrap(), &bridge).unwrap();
    for index in 0..ALL.len() as u8 {
        let address = format!("{}/32", listen(index));
        let add = || Command::new("ip").args(["address", "add", &address, "dev", "lo"]).status();
        assert!(network.namespace("node").unwrap().run(add).unwrap().unwrap().success());
    }
    network.add_pod("client", "node", &prefixes(["10.244.9.2/24"]).unwrap()).unwrap();
    network.add_pod("server", "node", &prefixes([&format!("{SERVER}/24")]).unwrap()).unwrap();
    network
}

/// Pins client, proxies and server to one processor. Otherwise the choice of processes that share a processor, and the
/// time that a virtual processor takes to wake up, would affect the results more than the proxies do.
struct Gathered {
    threads: Vec<Option<Pid>>,
    before: CpuSet,
}

impl Gathered {
    fn on_one_processor(processes: impl Iterator<Item = u32>) -> Gathered {
        let before = sched_getaffinity(None).unwrap();
        let last = (0..CpuSet::MAX_CPU).rev().find(|number| before.is_set(*number)).unwrap();
        let mut only = CpuSet::new();
        only.set(last);
        // This thread, whose children inherit the affinity, and all threads of the other processes.
        let threads = std::iter::once(None).chain(processes.flat_map(threads).map(Pid::from_raw)).collect();
        let gathered = Gathered { threads, before };
        gathered.set(&only);
        gathered
    }

    fn set(&self, processors: &CpuSet) {
        for thread in &self.threads {
            // The thread may have ended.
            let _ = sched_setaffinity(*thread, processors);
        }
    }
}

impl Drop for Gathered {
    fn drop(&mut self) {
        self.set(&self.before);
    }
}

fn threads(process: u32) -> Vec<i32> {
    let listed = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    listed.filter_map(|thread| thread.file_name().to_str()?.parse().ok()).collect()
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn spawn(namespace: &Namespace, arguments: &[&str]) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    namespace.run(|| command.spawn()).unwrap().unwrap()
}

fn client(namespace: &Namespace, phase: &str, address: &str, seconds: f64) -> Vec<f64> {
    let child = spawn(namespace, &["client", phase, address, &seconds.to_string()]);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{phase} at {address}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().map(|it| it.parse().unwrap()).collect()
}

/// Measures the memory of each idle connection.
fn idle(namespace: &Namespace, contestant: Contestant, running: &Running, address: &str) -> Sample {
    let before = running.memory();
    let mut child = spawn(
        namespace,
        &["client", "idle", &format!("{address}:{ECHO}"), &contestant.idle_connections().to_string()],
    );
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let count: f64 = line.trim().parse().unwrap();
    let numbers = vec![(running.memory() - before) / count, count];
    drop(child.stdin.take());
    child.wait().unwrap();
    Sample { phase: "idle", contestant, numbers, cpu: 0.0, seconds: 1.0 }
}
