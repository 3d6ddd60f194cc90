//! `make bench`: the nftables dataplane against the `nft` tool doing the same work on the same kernel, in one run.
//!
//! Only ratios count: the machine may be noisy, but both sides are measured within seconds of each other, each in a
//! network namespace of its own. Memory is that of the agent itself, run on the same cluster as a manifest.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroxy::output::Table;
use ferroxy_core::{Facts, Family, Intent, Policy, ServiceIntent, ServiceName, resolve};
use ferroxy_dataplane::{Change, Dataplane};
use ferroxy_lab::Namespace;
use ferroxy_nftables::ledger::Ledger;
use ferroxy_nftables::{Nftables, Settings, render};
use ferroxy_source::manifest::read_str;
use serde_json::json;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const SIZES: [(u32, u32); 3] = [(10_000, 10), (5_000, 50), (44_000, 1)];
const FAMILIES: [Family; 2] = Family::ALL;
const ROUNDS: usize = 3;
const CHANGES: u32 = 60;

fn main() -> Result<()> {
    println!("Ferroxy against nft {}, Linux {}\n", nft_version()?, kernel_release()?);
    loading()?;
    listing()?;
    changing()?;
    memory()
}

/// Applying a whole cluster to an empty kernel.
fn loading() -> Result<()> {
    let mut table = Table::default();
    table.row(["applying a whole cluster", "ours", "nft -f", "ours / nft", "goal", "sent"]);
    for (services, endpoints) in SIZES {
        progress(&format!("applying {services} x {endpoints}"));
        let intent = intent(services, endpoints)?;
        let text = render(&intent, &Settings::default(), &FAMILIES).to_string();
        let (mut ours, mut theirs, mut bytes) = (Vec::new(), Vec::new(), 0);
        for _ in 0..ROUNDS {
            ours.push(in_namespace(|| {
                let mut dataplane = Nftables::open(&FAMILIES, Settings::default())?;
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

/// Reading a whole cluster back, as a restart does: almost all of it is the kernel's work, on this thread.
fn listing() -> Result<()> {
    let mut table = Table::default();
    table.row(["listing a whole cluster (CPU time)", "the first time", "again"]);
    for (services, endpoints) in SIZES {
        progress(&format!("listing {services} x {endpoints}"));
        let intent = intent(services, endpoints)?;
        let (first, again) = in_namespace(|| {
            let mut dataplane = Nftables::open(&FAMILIES, Settings::default())?;
            dataplane.start(&intent)?;
            let mut observe = || {
                let before = thread_cpu()?;
                dataplane.observe()?;
                Ok::<_, Box<dyn Error + Send + Sync>>(thread_cpu()? - before)
            };
            let first = observe()?;
            let again: Result<Vec<Duration>> = (0..ROUNDS).map(|_| observe()).collect();
            Ok((first, median(again?)))
        })?;
        table.row([format!("{services} Services x {endpoints}"), millis(first), millis(again)]);
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
        let intent = intent(services, 3)?;
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
    let mut dataplane = Nftables::open(&FAMILIES, Settings::default())?;
    dataplane.start(intent)?;
    let (name, service) = intent.services.iter().next().ok_or("a Service")?;
    let mut fewer = ServiceIntent::clone(service);
    fewer.ports.iter_mut().for_each(|port| port.cluster.truncate(2));
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
    let mut ledger = Ledger::new(&FAMILIES, intent.node.clone(), Settings::default());
    let one: Vec<Change> =
        intent.services.get_key_value(name).map(|(n, s)| (n.clone(), Some(s.clone()))).into_iter().collect();
    let settlement = ledger.plan(&one).1;
    ledger.settle(settlement);
    [away, back].map(|changes| {
        let (plan, settlement) = ledger.plan(&changes);
        ledger.settle(settlement);
        // The chains for both numbers of endpoints exist already: the loop before left them.
        let lines: Vec<String> =
            plan.ops().filter(|op| op.action.element().is_some()).map(ToString::to_string).collect();
        lines.join("\n")
    })
}

/// The real agent, with the cluster in a manifest, after its first sync.
fn memory() -> Result<()> {
    let mut table = Table::default();
    table.row(["memory of the agent", "resident", "peak", "goal"]);
    for (services, endpoints) in SIZES {
        progress(&format!("memory at {services} x {endpoints}"));
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join("cluster.json"), manifest(services, endpoints))?;
        let (resident, peak) = in_namespace(|| agent_memory(folder.path()))?;
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

fn agent_memory(manifests: &Path) -> Result<(u64, u64)> {
    let mut agent = Command::new(env!("CARGO_BIN_EXE_ferroxy"))
        .args(["run", "--proxy-mode=nftables", "--hostname-override=node-1", "--manifests"])
        .arg(manifests)
        .stderr(Stdio::piped())
        .spawn()?;
    let log = BufReader::new(agent.stderr.take().ok_or("the agent has no log")?);
    let in_sync = log.lines().map_while(|line| line.ok()).any(|line| line.contains("in sync"));
    // The agent returns the memory that the start has freed right after that line.
    std::thread::sleep(Duration::from_millis(500));
    let status = std::fs::read_to_string(format!("/proc/{}/status", agent.id()))?;
    agent.kill()?;
    agent.wait()?;
    if !in_sync {
        return Err("the agent never was in sync".into());
    }
    let megabytes = |field: &str| -> Result<u64> {
        let line = status.lines().find(|line| line.starts_with(field)).ok_or("no such field")?;
        let kilobytes: u64 = line.split_whitespace().nth(1).ok_or("no number")?.parse()?;
        Ok(kilobytes.div_ceil(1024))
    };
    Ok((megabytes("VmRSS:")?, megabytes("VmHWM:")?))
}

// === the cluster ===

fn manifest(services: u32, endpoints: u32) -> String {
    let endpoint = |number: u32, slot: u32| {
        let address = Ipv4Addr::from_bits(0x0b00_0000 + number * endpoints + slot);
        json!({ "addresses": [address], "conditions": { "ready": true }, "nodeName": format!("node-{}", slot % 1_000) })
    };
    let both = |number: u32| {
        let (name, address) = (format!("service-{number}"), Ipv4Addr::from_bits(0x0a60_0000 + number));
        let endpoints: Vec<_> = (0..endpoints).map(|slot| endpoint(number, slot)).collect();
        [
            json!({
                "apiVersion": "v1", "kind": "Service", "metadata": { "namespace": "default", "name": name },
                "spec": {
                    "type": "ClusterIP", "clusterIP": address, "clusterIPs": [address], "ipFamilies": ["IPv4"],
                    "ports": [{ "name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080 }],
                },
            }),
            json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                "metadata": {
                    "namespace": "default", "name": format!("{name}-abcde"),
                    "labels": { "kubernetes.io/service-name": name },
                },
                "ports": [{ "name": "http", "protocol": "TCP", "port": 8080 }],
                "endpoints": endpoints,
            }),
        ]
    };
    let items: Vec<String> = (0..services).flat_map(both).map(|item| item.to_string()).collect();
    format!(r#"{{"apiVersion":"v1","kind":"List","items":[{}]}}"#, items.join(","))
}

fn intent(services: u32, endpoints: u32) -> Result<Intent> {
    let (objects, diagnostics) = read_str("cluster.json", &manifest(services, endpoints));
    if let Some(diagnostic) = diagnostics.first() {
        return Err(diagnostic.to_string().into());
    }
    let mut facts = Facts::new(Policy { node_name: "node-1".into(), ..Policy::default() });
    objects.into_iter().for_each(|object| drop(facts.apply(object.into())));
    Ok(resolve::all(&facts).0)
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

/// What this thread has used so far, in the kernel too.
fn thread_cpu() -> Result<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanoseconds = text.split_whitespace().next().ok_or("an empty schedstat")?;
    Ok(Duration::from_nanos(nanoseconds.parse()?))
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
    format!("{:.3} ms", time.as_secs_f64() * 1e3)
}

fn ratio(ours: Duration, theirs: Duration) -> String {
    format!("{:.2}", ours.as_secs_f64() / theirs.as_secs_f64())
}

fn progress(what: &str) {
    eprintln!("measuring: {what}");
}
