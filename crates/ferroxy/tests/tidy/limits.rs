//! Rule: docs/limits.md agrees with the code. Every row of its tables has a metric, or says why there is none; every number equals a
//! constant in the code.

use crate::finding::Finding;

/// A row begins with these words and has this number; a file has this text, which has the same number.
type Entry = (&'static str, &'static str, &'static str, &'static str);

const QUESTIONS: &str = "crates/ferroxy/src/agent/questions.rs";
const POLICY: &str = "crates/ferroxy-core/src/policy.rs";
const SERVE: &str = "crates/ferroxy/src/serve/mod.rs";
const PROBE: &str = "crates/ferroxy-core/src/facts/probe.rs";
const SCHEDULE: &str = "crates/ferroxy-probe/src/schedule.rs";
const LINES: &str = "crates/ferroxy-probe/src/schedule/lines.rs";
const REPORT: &str = "crates/ferroxy/src/agent/report.rs";
const LOG: &str = "crates/ferroxy/src/log/limit.rs";
const ENGINE: &str = "crates/ferroxy-proxy/src/config/settings.rs";
const POOL: &str = "crates/ferroxy-proxy/src/config/pool.rs";

/// All rows, in the order of the document. Those whose number is in words or follows from another limit have an empty number.
const ENTRIES: [Entry; 89] = [
    ("frontends of a Service:", "10,000", POLICY, "frontends: 10_000,"),
    ("endpoints of a port of a Service", "20,000", POLICY, "endpoints: 20_000,"),
    ("endpoints of a port of a Service", "65,535", POLICY, "MOST_ENDPOINTS: usize = u16::MAX as usize;"),
    ("frontends × (endpoints + source ranges)", "250,000", POLICY, "entries: 250_000,"),
    ("frontends of a namespace", "200,000", POLICY, "namespace_frontends: 200_000,"),
    ("frontends of a namespace", "first 16", POLICY, "always: 16,"),
    ("frontends of all namespaces", "1,000,000", POLICY, "node_frontends: 1_000_000,"),
    (
        "EndpointSlices of a Service",
        "10,000",
        "crates/ferroxy-core/src/facts.rs",
        "MOST_SLICES: usize = 10_000;",
    ),
    (
        "ports of an EndpointSlice",
        "20,000",
        "crates/ferroxy-core/src/facts/slice/read.rs",
        "MOST_PORTS: usize = 20_000;",
    ),
    (
        "clients with session affinity",
        "1,048,576",
        "crates/ferroxy-nftables/src/program/sets.rs",
        "AFFINITY_CLIENTS: u32 = 1_048_576;",
    ),
    (
        "pods with session affinity",
        "16,384",
        "crates/ferroxy-sockets/src/dataplane/generation.rs",
        "SESSIONS: u32 = 1 << 14;",
    ),
    (
        "addresses on the interface",
        "1,048,576",
        "crates/ferroxy-winuserspace/src/dataplane/journal.rs",
        "MOST: usize = 1_048_576;",
    ),
    (
        "pairs of frontend and endpoint",
        "65,536",
        "crates/ferroxy-sockets/src/dataplane/generation.rs",
        "FLOWS: u32 = 1 << 16;",
    ),
    (
        "any text of an object",
        "256 bytes",
        "crates/ferroxy-core/src/foreign.rs",
        "pub const LONGEST: usize = 256;",
    ),
    ("annotations of an object", "16", "crates/ferroxy-source/src/wire/metadata.rs", "MOST: usize = 16;"),
    (
        "hints of an endpoint",
        "16 each",
        "crates/ferroxy-core/src/facts/slice/read.rs",
        "MOST_HINTS: usize = 16;",
    ),
    (
        "Diagnostics of an object",
        "20, 50, 1,000",
        "crates/ferroxy-core/src/facts/field.rs",
        "MOST_PER_OBJECT: usize = 20;",
    ),
    (
        "Diagnostics of an object",
        "20, 50, 1,000",
        "crates/ferroxy-core/src/resolve.rs",
        "MOST_PER_SERVICE: usize = 50;",
    ),
    (
        "Diagnostics of an object",
        "20, 50, 1,000",
        "crates/ferroxy-core/src/facts.rs",
        "MOST_DIAGNOSTICS: usize = 1_000;",
    ),
    ("objects of a kind", "50", "crates/ferroxy-source/src/kube/inventory.rs", "MOST_TROUBLED: usize = 50;"),
    (
        "an event of a watch",
        "64 MiB",
        "crates/ferroxy-source/src/kube/framer.rs",
        "LONGEST_LINE: usize = 64 << 20;",
    ),
    (
        "entries in all lists",
        "200,000",
        "crates/ferroxy-source/src/wire/room.rs",
        "MOST_ENTRIES: usize = 200_000;",
    ),
    (
        "what is changed of one Service",
        "4,096",
        "crates/ferroxy/src/agent/round.rs",
        "PORTION: usize = 4096;",
    ),
    (
        "what is changed of one Service",
        "a sixteenth",
        "crates/ferroxy/src/agent/round.rs",
        "MOST_PORTIONS: usize = 16;",
    ),
    ("time for a Service", "1,000", "crates/ferroxy/src/agent/courtesy.rs", "LARGE: usize = 1_000;"),
    ("time for a Service", "a hundredth", "crates/ferroxy/src/agent/courtesy.rs", "SHARE: u32 = 100;"),
    (
        "time for a Service",
        "5 s",
        "crates/ferroxy/src/agent/courtesy.rs",
        "LONGEST_REST: Duration = Duration::from_secs(5);",
    ),
    (
        "what is changed of all small",
        "65,536",
        "crates/ferroxy/src/agent/round.rs",
        "ROUND: usize = 16 * PORTION;",
    ),
    (
        "events that wait for the agent",
        "4 MiB",
        "crates/ferroxy/src/agent/inbox.rs",
        "MOST_BYTES: usize = 4 << 20;",
    ),
    ("the present problems", "", "", ""),
    (
        "deleted UDP frontends",
        "100,000",
        "crates/ferroxy/src/agent/sweep.rs",
        "MOST_WAITING: usize = 100_000;",
    ),
    ("entries of the journal", "2,000", "crates/ferroxy/src/journal/mod.rs", "MOST: usize = 2_000;"),
    ("entries of the journal", "300", "crates/ferroxy/src/journal/mod.rs", "LONGEST: usize = 300;"),
    ("Services of one round", "100", "crates/ferroxy/src/agent/notes.rs", "MOST_OF_A_ROUND: usize = 100;"),
    ("what one question looks at", "200", QUESTIONS, "MOST_SERVICES: usize = 200;"),
    ("what one question looks at", "4,096", QUESTIONS, "MOST_WORK: usize = 4_096;"),
    ("questions at a time", "", "", ""),
    ("how long an answer waits", "5 s", "crates/ferroxy/src/page/ask.rs", "Duration::from_secs(5);"),
    ("Services in one answer", "1,000", "crates/ferroxy/src/page/lists.rs", "MOST: usize = 1_000;"),
    ("addresses, and ports,", "20", QUESTIONS, "MOST_LISTED: usize = 20;"),
    ("streams of events", "16", "crates/ferroxy/src/page/events.rs", "MOST_STREAMS: usize = 16;"),
    ("time for counting", "10 s", "crates/ferroxy/src/page/count.rs", "Duration::from_secs(10);"),
    ("connections to the page", "64; 48; 256", SERVE, "service: 64, socket: 64, peer: 48, silent: 256"),
    (
        "endpoints of a Service that are probed",
        "1,000",
        "crates/ferroxy-core/src/facts/lives.rs",
        "MOST_PROBED: usize = 1_000;",
    ),
    ("endpoints that a node probes", "10,000", SCHEDULE, "MOST: usize = 10_000;"),
    ("endpoints that a node probes", "5,000", SCHEDULE, "MOST_OF_NAMESPACE: usize = 5_000;"),
    ("probes in a second", "500", LINES, "MOST_A_SECOND: usize = 500;"),
    ("probes at a time", "64", LINES, "MOST_AT_ONCE: usize = 64;"),
    ("probes at a time", "32", LINES, "MOST_OF_NAMESPACE: usize = 32;"),
    ("interval, timeout", "1 s to 5 min", PROBE, "INTERVALS: Range = Range { least: 1_000, most: 300_000,"),
    ("interval, timeout", "100 ms to 10 s", PROBE, "TIMEOUTS: Range = Range { least: 100, most: 10_000,"),
    ("interval, timeout", "1 to 10", PROBE, "MOST_IN_A_ROW: u32 = 10;"),
    ("path of an HTTP probe", "200 characters", PROBE, "LONGEST_PATH: usize = 200;"),
    ("path of an HTTP probe", "4 KiB", "crates/ferroxy-probe/src/http.rs", "MOST_READ: usize = 4096;"),
    ("endpoints that are taken out", "", "", ""),
    (
        "Events and log lines",
        "10 at once, then one in 30 s",
        "crates/ferroxy/src/agent/probes.rs",
        "Rate { burst: 10.0, per_second: 1.0 / 30.0 };",
    ),
    (
        "Events and log lines",
        "10 min",
        "crates/ferroxy-source/src/kube/recorder.rs",
        "SILENCE: Duration = Duration::from_secs(600);",
    ),
    ("endpoints that are down", "1,000", "crates/ferroxy/src/serve/probes.rs", "MOST_LISTED: usize = 1_000;"),
    ("changes whose trace waits", "2,000", "crates/ferroxy/src/journal/mod.rs", "MOST: usize = 2_000;"),
    ("log lines that wait", "1 MiB", "crates/ferroxy/src/log/backlog.rs", "MOST_BYTES: usize = 1 << 20;"),
    ("one message", "4 KiB", "crates/ferroxy/src/log/fields.rs", "MOST_BYTES: usize = 4096;"),
    (
        "lines of one place",
        "64 KiB at once, then 1 KiB",
        LOG,
        "EACH: Rate = Rate { burst: (64 << 10) as f64, per_second: (1 << 10) as f64 };",
    ),
    (
        "the whole log",
        "384 KiB at once, then 8 KiB",
        LOG,
        "ALL: Rate = Rate { burst: (384 << 10) as f64, per_second: (8 << 10) as f64 };",
    ),
    (
        "lines about one Service",
        "10 at once, then one in 30 s",
        REPORT,
        "SERVICE: Rate = Rate { burst: 10.0, per_second: 1.0 / 30.0 };",
    ),
    (
        "lines about one Service",
        "50 at once, then one in 2 s",
        REPORT,
        "NAMESPACE: Rate = Rate { burst: 50.0, per_second: 0.5 };",
    ),
    ("the log file", "100 MB", "crates/ferroxy/src/log/file.rs", "USUAL_MEGABYTES: u32 = 100;"),
    ("events that wait for the Event Log", "256", "crates/ferroxy/src/log/events.rs", "MOST: usize = 256;"),
    (
        "last lines",
        "1 second",
        "crates/ferroxy/src/log/writer.rs",
        "LAST_WORDS: Duration = Duration::from_secs(1);",
    ),
    ("connections of one peer", "32", SERVE, "METRICS: Limits = Limits { service: 64, socket: 64, peer: 32,"),
    (
        "connections of healthz",
        "128; 64; 128",
        SERVE,
        "HEALTHZ: Limits = Limits { service: 128, socket: 128, peer: 32,",
    ),
    (
        "connections of all health-check",
        "1,024",
        SERVE,
        "NODE_PORTS: Limits = Limits { service: 1024, socket: 128, peer: 32,",
    ),
    ("connections that have sent no byte", "1,024; 256; 1,024", SERVE, "silent: 256 };"),
    (
        "sockets of health-check",
        "half of the open files",
        SERVE,
        "service_health::run(Arc::clone(status), node_ports, files / 2);",
    ),
    (
        "head of an HTTP request",
        "16 KiB",
        "crates/ferroxy/src/serve/http.rs",
        "LARGEST_HEAD: usize = 16 * 1024;",
    ),
    (
        "head of an HTTP request",
        "12 s",
        "crates/ferroxy/src/serve/http.rs",
        "SLOWEST_HEAD: Duration = Duration::from_secs(12);",
    ),
    ("pages of `/metrics`", "256 KiB", "crates/ferroxy/src/serve/contents.rs", "SMALL: usize = 256 * 1024;"),
    ("pages of `/metrics`", "| 8 |", "crates/ferroxy/src/serve/contents.rs", "MOST: usize = 8;"),
    (
        "no free descriptor",
        "100 ms",
        "crates/ferroxy/src/serve/http.rs",
        "PAUSE: Duration = Duration::from_millis(100);",
    ),
    ("agents in one network namespace", "", "", ""),
    ("TCP connections at a time", "512", ENGINE, "spare_descriptors: 512,"),
    ("clients that wait in the kernel's queue", "4,096", ENGINE, "backlog: 4096,"),
    ("a client that arrives while", "", "", ""),
    ("dials at a time", "4,096", POOL, "dials: 4096,"),
    ("connections that wait for an endpoint", "1,024", POOL, "held: 1024,"),
    ("time of all dials", "10 s", POOL, "connect_budget: Duration::from_secs(10),"),
    ("a connection with one closed direction", "300 s", POOL, "half_close: Duration::from_secs(300),"),
    ("UDP sessions, of all Services", "16,384", ENGINE, "sessions: 16_384,"),
    ("UDP sessions of a source address", "1,024", ENGINE, "sessions_per_source: 1024 }"),
    ("session affinity: clients of a pool", "65,536", POOL, "sticky_clients: 65_536 }"),
];

/// The files with the names of metrics.
const METRICS: [&str; 4] = [
    "crates/ferroxy/src/serve/metrics.rs",
    "crates/ferroxy/src/serve/probes.rs",
    "crates/ferroxy/src/serve/traffic.rs",
    "crates/ferroxy-pools/src/metrics.rs",
];

/// The heading after the limits. Measurements follow.
const END: &str = "## One hostile tenant, measured";

/// `code` is the text of a file, by its path.
pub fn findings<'c>(path: &str, text: &str, code: impl Fn(&str) -> Option<&'c str>) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut known = Vec::new();
    let limits = text.split(END).next().unwrap_or_default();
    let rows = limits
        .lines()
        .enumerate()
        .filter(|(_, line)| line.starts_with("| ") && !line.starts_with("| bounded"));
    for (index, row) in rows {
        let mut say = |what: String| found.push(Finding::new(path, index + 1, "", what));
        let last = row.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
        let is_shown =
            ["`ferroxy_", "`process_", "the same", "no metric: "].iter().any(|it| last.contains(it));
        if !is_shown {
            say("no metric; name one, or say why there is none (`no metric: …`)".to_owned());
        }
        let entries = || ENTRIES.iter().enumerate().filter(|(_, (words, ..))| row[2..].starts_with(words));
        if entries().next().is_none() {
            say("this limit is not compared with the code; add it to tests/tidy/limits.rs".to_owned());
        }
        for (number, (_, value, file, constant)) in entries() {
            known.push(number);
            if !row.contains(value) {
                say(format!("has not {value:?}, which is in tests/tidy/limits.rs; correct one of them"));
            }
            if !file.is_empty() && !code(file).is_some_and(|code| code.contains(constant)) {
                say(format!("{file} has not {constant:?}; correct the document and tests/tidy/limits.rs"));
            }
        }
        for metric in last.split('`').filter(|word| word.starts_with("ferroxy_")) {
            let name = metric.split('{').next().unwrap_or_default();
            let mut pages = METRICS.iter().filter_map(|file| code(file));
            if !pages.any(|page| page.contains(&format!("\"{name}\""))) {
                say(format!("{name} is no metric"));
            }
        }
    }
    let gone = ENTRIES.iter().enumerate().filter(|(number, _)| !known.contains(number));
    found.extend(
        gone.map(|(_, (words, ..))| Finding::new(path, 1, "", format!("no row begins with {words:?}"))),
    );
    found
}

#[test]
fn a_row_must_have_its_metric_and_its_number() {
    let code = |_: &str| Some("frontends: 10_000, \"ferroxy_good\"");
    let of = |row: &str| {
        let found = findings("limits.md", row, code);
        found
            .into_iter()
            .map(|it| it.to_string())
            .filter(|it| !it.contains("no row begins"))
            .collect::<Vec<_>>()
    };
    assert_eq!(of("| frontends of a Service: x | 10,000 | left out | `ferroxy_good` |"), [""; 0]);
    assert!(
        of("| frontends of a Service: x | 10,000 | left out | the Diagnostic |")[0].contains("no metric")
    );
    assert!(
        of("| frontends of a Service: x | 10,000 | left out | `ferroxy_bad` |")[0]
            .contains("ferroxy_bad is no metric")
    );
    assert!(
        of("| frontends of a Service: x | 9,000 | left out | `ferroxy_good` |")[0]
            .contains("has not \"10,000\"")
    );
    assert!(of("| something new | 5 | left out | `ferroxy_good` |")[0].contains("not compared"));
    assert!(
        findings("limits.md", "| frontends of a Service: | 10,000 | x | `ferroxy_good` |", |_| None)[0]
            .to_string()
            .contains("policy.rs has not")
    );
}
