//! `make bench`: iptables mode without a tool, and with the tools of both variants, with our own CPU and the tool's CPU apart; and
//! how much time the nft variant of the tool saves if it gets its input in portions, against one plain restore of the same text.
//!
//! A plain restore of the large cluster takes the nft variant more than ten minutes. So the two are compared at sizes where
//! it is bounded, and at the large one only with `PLAIN=1` in the environment. (The ratio falls as clusters grow.)

use std::error::Error;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroxy::output::Table;
use ferroxy_core::{Endpoint, Family, Intent, NodeIntent, ServiceIntent};
use ferroxy_dataplane::{Dataplane, Verifies};
use ferroxy_iptables::door::Door;
use ferroxy_iptables::tool::portion::Portions;
use ferroxy_iptables::tool::{Limits, Tools, Variant, restore_portions};
use ferroxy_iptables::{Iptables, Parameters, State, diff, render};
use ferroxy_lab::Namespace;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const LARGE: (u32, u32) = (10_000, 10);
/// Sizes at which a plain restore ends soon enough.
const SMALLER: [(u32, u32); 2] = [(1_000, 10), (2_000, 10)];
/// Ferroxy itself, and the tools of each variant.
const WRITERS: [Option<Variant>; 3] = [None, Some(Variant::NfTables), Some(Variant::Legacy)];
const CHANGES: u32 = 10;

fn main() -> Result<()> {
    println!("iptables mode, IPv4\n");
    working()?;
    portions()
}

/// A start, changes, a verification and a restart with a large cluster.
fn working() -> Result<()> {
    let (services, endpoints) = LARGE;
    let mut table = Table::default();
    let large = format!("{services} Services x {endpoints}");
    table.row([&large, "writer", "in all", "our CPU", "goal", "the tool's CPU", "sent"]);
    let intent = intent(services, endpoints);
    let prepared = measure(|| Ok(input(&intent).len()))?;
    table.row([
        "prepared",
        "",
        &seconds(prepared.wall),
        &seconds(prepared.ours),
        "< 1 s",
        "",
        &megabytes(prepared.value),
    ]);
    for writer in WRITERS {
        in_namespace(|| {
            let variant = writer.map_or("builtin".to_owned(), |variant| format!("{variant} tool"));
            let mut row = |what: &str, measured: &Measured<usize>| {
                let Measured { wall, ours, tool, value } = measured;
                let sent = megabytes(*value);
                table.row([what, &variant, &seconds(*wall), &seconds(*ours), "", &seconds(*tool), &sent]);
            };
            progress(&format!("{variant}: applying {large}"));
            let mut dataplane = open(writer)?;
            row("applied to an empty kernel", &measure(|| Ok(dataplane.start(&intent)?.receipt.bytes))?);
            progress(&format!("{variant}: one change"));
            row("one endpoint changed", &changes(&mut dataplane, &intent)?);
            row("verified", &measure(|| Ok(dataplane.verify()?.receipt.bytes))?);
            progress(&format!("{variant}: a restart"));
            let mut again = open(writer)?;
            row("restarted", &measure(|| Ok(again.start(&intent)?.receipt.bytes))?);
            Ok(())
        })?;
    }
    println!("{table}");
    Ok(())
}

fn open(writer: Option<Variant>) -> Result<Iptables> {
    let door = match writer {
        None => Door::nf_tables(Family::V4)?,
        Some(variant) => Door::tool(Tools::find_variant(Family::V4, variant)?),
    };
    Ok(Iptables::through(vec![door], patient()))
}

/// The average cost of removing an endpoint and adding it again.
fn changes(dataplane: &mut Iptables, intent: &Intent) -> Result<Measured<usize>> {
    let (name, full) = intent.services.iter().nth(intent.services.len() / 2).ok_or("no Service")?;
    let mut fewer = ServiceIntent::clone(full);
    for port in &mut fewer.ports {
        port.cluster.pop();
    }
    let fewer = Arc::new(fewer);
    let all = measure(|| {
        let mut bytes = 0;
        for number in 0..CHANGES {
            let wanted = if number % 2 == 0 { &fewer } else { full };
            bytes = dataplane.change(vec![(name.clone(), Some(wanted.clone()))])?.receipt.bytes;
        }
        Ok(bytes)
    })?;
    let Measured { wall, ours, tool, value } = all;
    Ok(Measured { wall: wall / CHANGES, ours: ours / CHANGES, tool: tool / CHANGES, value })
}

/// Compares the same text in portions and as one plain restore, each to an empty kernel.
fn portions() -> Result<()> {
    let mut table = Table::default();
    table.row(["nft variant", "ours in all", "one plain restore", "ours / plain", "goal"]);
    let with_large = std::env::var_os("PLAIN").is_some();
    for (services, endpoints) in SMALLER.into_iter().chain(with_large.then_some(LARGE)) {
        let intent = intent(services, endpoints);
        let tools = Tools::find_variant(Family::V4, Variant::NfTables)?;
        progress(&format!("{services} x {endpoints} in portions"));
        let ours = in_namespace(|| {
            let mut dataplane = Iptables::with_tools(vec![tools.clone()], patient());
            measure(|| Ok(dataplane.start(&intent)?.receipt.commits))
        })?;
        progress(&format!("{services} x {endpoints} plain"));
        let text = input(&intent);
        let plain = in_namespace(|| {
            measure(|| Ok(restore_portions(&tools, &Portions::as_given(&text), &patient())?.commits))
        })?;
        table.row([
            format!("{services} Services x {endpoints}"),
            seconds(ours.wall),
            seconds(plain.wall),
            format!("{:.2}", ours.wall.as_secs_f64() / plain.wall.as_secs_f64()),
            "<= 0.10 at 10000".into(),
        ]);
    }
    println!("{table}");
    if !with_large {
        println!("The plain restore of {} Services is left out: PLAIN=1 makes it part of this.", LARGE.0);
    }
    Ok(())
}

/// The input of the tool for an empty kernel.
fn input(intent: &Intent) -> String {
    let wanted = render(intent, Parameters::default(), &[Family::V4]);
    diff(&State::default(), &wanted).restore_input(Family::V4)
}

// === the cluster ===

fn intent(services: u32, endpoints: u32) -> Intent {
    let service = |number: u32| {
        let endpoint = |slot: u32| Endpoint {
            ip: std::net::Ipv4Addr::from_bits(0x0b00_0000 + number * endpoints + slot).into(),
            port: 8080,
            is_local: false,
        };
        let (name, service) = ferroxy_core::testing::service(number as u16, [0]);
        let mut intent = Arc::unwrap_or_clone(service);
        intent.ports[0].size = endpoints;
        intent.ports[0].cluster = (0..endpoints).map(endpoint).collect();
        (name, Arc::new(intent))
    };
    let node = NodeIntent::default();
    Intent { node, services: (0..services).map(service).collect() }
}

// === measuring ===

#[derive(Debug)]
struct Measured<T> {
    wall: Duration,
    /// CPU of this process.
    ours: Duration,
    /// CPU of the programs it ran, the kernel's work for them included.
    tool: Duration,
    value: T,
}

fn measure<T>(work: impl FnOnce() -> Result<T>) -> Result<Measured<T>> {
    let (started, (ours, tool)) = (Instant::now(), cpu()?);
    let value = work()?;
    let (wall, after) = (started.elapsed(), cpu()?);
    Ok(Measured { wall, ours: after.0 - ours, tool: after.1 - tool, value })
}

/// The CPU time of this process, and of its children that have ended, to a hundredth of a second.
fn cpu() -> Result<(Duration, Duration)> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(") ").ok_or("no such field")?;
    // `utime`, `stime`, `cutime`, `cstime`.
    let ticks: Vec<u64> =
        fields.split(' ').skip(11).take(4).map(str::parse).collect::<std::result::Result<_, _>>()?;
    let time = |ticks: &[u64]| Duration::from_millis(ticks.iter().sum::<u64>() * 10);
    Ok((time(ticks.get(..2).ok_or("no times")?), time(ticks.get(2..).ok_or("no times")?)))
}

fn in_namespace<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    Namespace::new("bench")?.run(work)?
}

fn patient() -> Limits {
    Limits { run: Duration::from_secs(6 * 3600), ..Limits::default() }
}

fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}

fn megabytes(bytes: usize) -> String {
    if bytes < 100_000 { format!("{bytes} bytes") } else { format!("{:.1} MB", bytes as f64 / 1e6) }
}

fn progress(what: &str) {
    eprintln!("measuring: {what}");
}
