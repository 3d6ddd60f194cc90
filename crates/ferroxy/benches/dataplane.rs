//! `make bench`: the nftables dataplane against the `nft` tool doing the same work on the same kernel, in one run.
//!
//! Ratios are what counts: the machine may be noisy, but both sides are measured within seconds of each other, each in
//! a network namespace of its own. Memory is measured in a process of its own for each size.

use std::error::Error;
use std::io::Write;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroxy::output::Table;
use ferroxy_core::event::{EndpointSlice, Event, Service, ServicePort, SliceEndpoint, SlicePort};
use ferroxy_core::{Facts, Family, Intent, Policy, ServiceIntent, ServiceName, resolve};
use ferroxy_lab::Namespace;
use ferroxy_nftables::ledger::{Change, Ledger};
use ferroxy_nftables::{Dataplane, render};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const SIZES: [(u32, u32); 3] = [(10_000, 10), (5_000, 50), (44_000, 1)];
const FAMILIES: [Family; 2] = Family::ALL;
const ROUNDS: usize = 3;
const CHANGES: u32 = 60;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--memory") {
        let size =
            |offset: usize| -> Result<u32> { Ok(arguments.get(at + offset).ok_or("a size")?.parse()?) };
        return report_memory(size(1)?, size(2)?);
    }
    println!("Ferroxy against nft {}, Linux {}\n", nft_version()?, kernel_release()?);
    loading()?;
    changing()?;
    memory()
}

/// Applying a whole cluster to an empty kernel.
fn loading() -> Result<()> {
    let mut table = Table::default();
    table.row(["applying a whole cluster", "ours", "nft -f", "ours / nft", "goal", "sent"]);
    for (services, endpoints) in SIZES {
        progress(&format!("applying {services} x {endpoints}"));
        let intent = intent(services, endpoints);
        let text = render(&intent, &FAMILIES).to_string();
        let (mut ours, mut theirs, mut bytes) = (Vec::new(), Vec::new(), 0);
        for _ in 0..ROUNDS {
            ours.push(in_namespace(|| {
                let mut dataplane = Dataplane::open(&FAMILIES)?;
                let (time, outcome) = timed(|| Ok(dataplane.start(&intent)?))?;
                bytes = outcome.receipt.bytes;
                Ok(time)
            })?);
            theirs.push(in_namespace(|| Ok(timed(|| nft(&text))?.0))?);
        }
        let (ours, theirs) = (median(ours), median(theirs));
        table.row([
            format!("{services} Services x {endpoints}"),
            millis(ours),
            millis(theirs),
            ratio(ours, theirs),
            "<= 0.50".into(),
            format!("{:.1} MB", bytes as f64 / 1e6),
        ]);
    }
    println!("{table}");
    Ok(())
}

/// One endpoint leaving and coming back, in a small and in a large cluster.
fn changing() -> Result<()> {
    let mut table = Table::default();
    table.row(["one endpoint change", "ours", "nft -f", "ours / nft", "goal", "messages", "goal"]);
    let mut small = None;
    for services in [100, 44_000] {
        progress(&format!("one change among {services}"));
        let intent = intent(services, 3);
        let (ours, messages, theirs) = in_namespace(|| measure_changes(&intent))?;
        table.row([
            format!("among {services} Services"),
            millis(ours),
            millis(theirs),
            ratio(ours, theirs),
            "< 0.10".into(),
            messages.to_string(),
            "<= 10".into(),
        ]);
        match small {
            None => small = Some(ours),
            Some(small) => {
                table.row(["large / small", &ratio(ours, small), "", "", "<= 1.50", "", ""]);
            }
        }
    }
    println!("{table}");
    Ok(())
}

fn measure_changes(intent: &Intent) -> Result<(Duration, usize, Duration)> {
    let mut dataplane = Dataplane::open(&FAMILIES)?;
    dataplane.start(intent)?;
    let (name, service) = intent.services.iter().next().ok_or("a Service")?;
    let mut fewer = ServiceIntent::clone(service);
    fewer.ports.iter_mut().for_each(|port| drop(port.cluster.pop()));
    let (full, fewer) = (service.clone(), Arc::new(fewer));
    let change = |service: &Arc<ServiceIntent>| vec![(name.clone(), Some(service.clone()))];
    let (mut times, mut messages) = (Vec::new(), 0);
    for number in 0..CHANGES {
        let wanted = if number % 2 == 0 { &fewer } else { &full };
        let (time, outcome) = timed(|| Ok(dataplane.change(change(wanted))?))?;
        times.push(time);
        messages = messages.max(outcome.receipt.messages);
    }
    // The same operations as text, for the tool.
    let [away, back] = as_text(intent, name, change(&fewer), change(&full));
    let mut theirs = Vec::new();
    for number in 0..10 {
        theirs.push(timed(|| nft(if number % 2 == 0 { &away } else { &back }))?.0);
    }
    Ok((median(times), messages, median(theirs)))
}

fn as_text(intent: &Intent, name: &ServiceName, away: Vec<Change>, back: Vec<Change>) -> [String; 2] {
    let mut ledger = Ledger::new(&FAMILIES, intent.node.clone());
    let one: Vec<Change> =
        intent.services.get_key_value(name).map(|(n, s)| (n.clone(), Some(s.clone()))).into_iter().collect();
    let settlement = ledger.plan(&one).1;
    ledger.settle(settlement);
    [away, back].map(|changes| {
        let (plan, settlement) = ledger.plan(&changes);
        ledger.settle(settlement);
        // The chains for both numbers of endpoints are there already: the loop before left them.
        let lines: Vec<String> =
            plan.ops().filter(|op| op.action.element().is_some()).map(ToString::to_string).collect();
        lines.join("\n")
    })
}

fn memory() -> Result<()> {
    let mut table = Table::default();
    table.row(["memory of the agent's data", "resident", "peak", "goal"]);
    for (services, endpoints) in SIZES {
        progress(&format!("memory at {services} x {endpoints}"));
        let output = Command::new(std::env::current_exe()?)
            .args(["--memory", &services.to_string(), &endpoints.to_string()])
            .stderr(Stdio::inherit())
            .output()?;
        let text = String::from_utf8(output.stdout)?;
        let (resident, peak) = text.trim().split_once(' ').ok_or("the child said nothing")?;
        let goal = if (services, endpoints) == (10_000, 10) { "< 60 MB resident" } else { "" };
        table.row([
            format!("{services} Services x {endpoints}"),
            format!("{resident} MB"),
            format!("{peak} MB"),
            goal.into(),
        ]);
    }
    println!("{table}");
    Ok(())
}

/// In a process of its own: what the agent keeps (facts and ledger), after the kernel has been programmed.
fn report_memory(services: u32, endpoints: u32) -> Result<()> {
    let facts = facts(services, endpoints);
    let dataplane = in_namespace(|| {
        let mut dataplane = Dataplane::open(&FAMILIES)?;
        dataplane.start(&resolve::all(&facts).0)?;
        Ok(dataplane)
    })?;
    ferroxy::agent::give_memory_back();
    let status = std::fs::read_to_string("/proc/self/status")?;
    let megabytes = |field: &str| -> Result<u64> {
        let line = status.lines().find(|line| line.starts_with(field)).ok_or("no such field")?;
        let kilobytes: u64 = line.split_whitespace().nth(1).ok_or("no number")?.parse()?;
        Ok(kilobytes.div_ceil(1024))
    };
    println!("{} {}", megabytes("VmRSS:")?, megabytes("VmHWM:")?);
    drop((facts, dataplane));
    Ok(())
}

// === the cluster ===

fn facts(services: u32, endpoints: u32) -> Facts {
    let mut facts = Facts::new(Policy { node_name: "node-1".into(), ..Policy::default() });
    for number in 0..services {
        let name = format!("service-{number}");
        facts.apply(Event::Service(Service {
            namespace: "default".into(),
            name: name.clone(),
            kind: "ClusterIP".into(),
            cluster_ip: Ipv4Addr::from_bits(0x0a60_0000 + number).to_string(),
            cluster_ips: vec![Ipv4Addr::from_bits(0x0a60_0000 + number).to_string()],
            ip_families: vec!["IPv4".into()],
            ports: vec![ServicePort {
                name: "http".into(),
                protocol: "TCP".into(),
                port: 80,
                ..ServicePort::default()
            }],
            ..Service::default()
        }));
        let endpoint = |slot: u32| SliceEndpoint {
            addresses: vec![Ipv4Addr::from_bits(0x0b00_0000 + number * endpoints + slot).to_string()],
            ready: Some(true),
            node_name: Some(format!("node-{}", slot % 1_000)),
            ..SliceEndpoint::default()
        };
        facts.apply(Event::Slice(EndpointSlice {
            namespace: "default".into(),
            name: format!("{name}-abcde"),
            service: Some(name),
            address_type: "IPv4".into(),
            ports: vec![SlicePort { name: Some("http".into()), protocol: "TCP".into(), port: Some(8080) }],
            endpoints: (0..endpoints).map(endpoint).collect(),
        }));
    }
    facts
}

fn intent(services: u32, endpoints: u32) -> Intent {
    resolve::all(&facts(services, endpoints)).0
}

// === tools ===

fn in_namespace<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    Namespace::new("bench")?.run(work)?
}

fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<(Duration, T)> {
    let start = Instant::now();
    let value = work()?;
    Ok((start.elapsed(), value))
}

fn nft(commands: &str) -> Result<()> {
    let mut child = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn()?;
    child.stdin.take().ok_or("nft has no input")?.write_all(commands.as_bytes())?;
    if child.wait()?.success() { Ok(()) } else { Err("nft refused what Ferroxy printed".into()) }
}

fn nft_version() -> Result<String> {
    let output = Command::new("nft").arg("--version").output()?;
    Ok(String::from_utf8(output.stdout)?.split_whitespace().nth(1).unwrap_or("?").to_owned())
}

fn kernel_release() -> Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn millis(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

fn ratio(ours: Duration, theirs: Duration) -> String {
    format!("{:.2}", ours.as_secs_f64() / theirs.as_secs_f64())
}

fn progress(what: &str) {
    eprintln!("measuring: {what}");
}
