//! Measures the host's iptables tools with the rules of a cluster, in one plain commit and in portions: `cargo bench -p
//! ferroxy-iptables --bench restore -- [services] [seconds]`. Runs in network namespaces of its own, and needs root.
//!
//! A plain restore of 10,000 Services by the nft variant takes hours: it is stopped after `seconds` (60).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a bench that cannot go on should stop at once"
)]

use std::fmt::Write as _;
use std::fs;
use std::time::{Duration, Instant};

use ferroxy_iptables::tool::portion::{CHAINS, Portions};
use ferroxy_iptables::tool::{
    Error, Family, Limits, Tools, Variant, fingerprint, restore, restore_portions, save,
};
use ferroxy_lab::Namespace;

const ENDPOINTS: usize = 10;

fn main() {
    let mut numbers = std::env::args().filter_map(|argument| argument.parse::<u64>().ok());
    let services = numbers.next().unwrap_or(1000) as usize;
    let limits = Limits { run: Duration::from_secs(numbers.next().unwrap_or(60)), ..Limits::default() };
    let text = cluster(services);
    println!(
        "{services} Services x {ENDPOINTS} endpoints: {} lines, {} bytes",
        text.lines().count(),
        text.len()
    );
    let nft = Tools::find_variant(Family::V4, Variant::NfTables).unwrap();
    let legacy = Tools::find_variant(Family::V4, Variant::Legacy).unwrap();

    for chains in [CHAINS / 2, CHAINS, CHAINS * 2] {
        let started = Instant::now();
        let portions = Portions::with_limit(&text, chains);
        let ours = started.elapsed();
        let commits = portions.commits();
        println!("nft, up to {chains} chains in each of {commits} commits, arranged in {ours:.1?}");
        Namespace::new("portions")
            .unwrap()
            .run(|| {
                measure("  to an empty table", || restore_portions(&nft, &portions, &limits));
                let rewrite = without_jumps(&text);
                measure("  all of it again, in use", || {
                    restore_portions(&nft, &Portions::with_limit(&rewrite, chains), &limits)
                });
                if chains == CHAINS {
                    follow_up(&nft, &limits);
                }
            })
            .unwrap();
    }
    Namespace::new("plain")
        .unwrap()
        .run(|| {
            measure("nft, one commit", || restore_portions(&nft, &Portions::as_given(&text), &limits));
        })
        .unwrap();
    Namespace::new("legacy")
        .unwrap()
        .run(|| {
            measure("legacy, to an empty table", || restore(&legacy, &text, &limits));
            measure("legacy, all of it again", || restore(&legacy, &without_jumps(&text), &limits));
            follow_up(&legacy, &limits);
        })
        .unwrap();
}

/// Measures operations on a table that is already full.
fn follow_up(tools: &Tools, limits: &Limits) {
    let one = "*nat\n:KUBE-SEP-X - [0:0]\n-A KUBE-SEP-X -p tcp -j RETURN\nCOMMIT\n";
    measure("  one chain more", || restore(tools, one, limits));
    measure("  save", || save(tools, Some("nat"), limits, &mut |_| std::ops::ControlFlow::Continue(())));
    measure("  fingerprint", || fingerprint(tools.family, tools.variant, "nat"));
}

fn without_jumps(text: &str) -> String {
    text.lines().filter(|line| !line.starts_with("-I ")).fold(String::new(), |text, line| text + line + "\n")
}

fn measure<T>(what: &str, work: impl FnOnce() -> Result<T, Error>) {
    let (started, before) = (Instant::now(), cpu_of_children());
    let outcome = work();
    let (took, cpu) = (started.elapsed(), cpu_of_children() - before);
    let outcome = match outcome {
        Ok(_) => String::new(),
        Err(error) => format!(" ({error})"),
    };
    println!("{what}: {took:.2?}, {cpu:.2?} of CPU in the tool and the kernel{outcome}");
}

/// The CPU time of ended child processes. Unlike wall-clock time, it can be compared on a busy machine.
fn cpu_of_children() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    // `cutime` and `cstime`, in hundredths of a second.
    let ticks: u64 = fields.split(' ').skip(13).take(2).map(|field| field.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}

/// Restore input as the original writes it, for Services with a cluster IP.
fn cluster(services: usize) -> String {
    let mut text =
        String::from("*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-NODEPORTS - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n");
    // Chain names are hashes, so they are in no order.
    let service = |s: usize| format!("KUBE-SVC-{:016X}", scramble(s));
    let endpoint = |s: usize, e: usize| format!("KUBE-SEP-{:016X}", scramble(s * ENDPOINTS + e));
    for s in 0..services {
        writeln!(text, ":{} - [0:0]", service(s)).unwrap();
        (0..ENDPOINTS).for_each(|e| writeln!(text, ":{} - [0:0]", endpoint(s, e)).unwrap());
    }
    text += "-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\n";
    for s in 0..services {
        let name = service(s);
        let to = format!("-d 10.{}.{}.{}/32 -p tcp -m tcp --dport 80", 96 + (s >> 16), s >> 8 & 255, s & 255);
        let comment = format!("-m comment --comment \"namespace/service-{s}:http cluster IP\"");
        writeln!(text, "-A KUBE-SERVICES {to} {comment} -j {name}").unwrap();
        writeln!(text, "-A {name} ! -s 10.128.0.0/9 {to} {comment} -j KUBE-MARK-MASQ").unwrap();
        for e in 0..ENDPOINTS {
            let chance =
                format!("-m statistic --mode random --probability {:.11} ", 1.0 / (ENDPOINTS - e) as f64);
            let chance = if e + 1 < ENDPOINTS { &chance } else { "" };
            writeln!(text, "-A {name} {chance}-j {}", endpoint(s, e)).unwrap();
        }
        for e in 0..ENDPOINTS {
            let (name, number) = (endpoint(s, e), s * ENDPOINTS + e);
            let ip = format!("10.{}.{}.{}", 128 + (number >> 16), number >> 8 & 255, number & 255);
            writeln!(text, "-A {name} -s {ip}/32 -j KUBE-MARK-MASQ").unwrap();
            writeln!(text, "-A {name} -p tcp -m tcp -j DNAT --to-destination {ip}:8080").unwrap();
        }
    }
    text + "-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS\n\
            -I PREROUTING -j KUBE-SERVICES\n-I OUTPUT -j KUBE-SERVICES\nCOMMIT\n"
}

fn scramble(number: usize) -> u64 {
    (number as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}
