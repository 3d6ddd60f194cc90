//! Entries of the journal as spans: one trace for each change, from the API to the kernel. Sends nothing.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::journal::{Entry, What};

/// The attributes that all spans have in common.
#[derive(Debug, Clone)]
pub struct About {
    pub node: String,
    pub mode: &'static str,
}

/// The body of a request; `None` if no entry is about a change.
pub fn request(entries: &[Entry], about: &About) -> Option<Value> {
    let spans: Vec<Value> = entries.iter().flat_map(spans).collect();
    let resource = [
        text("service.name", "ferroxy"),
        text("service.version", env!("CARGO_PKG_VERSION")),
        text("k8s.node.name", &about.node),
        text("ferroxy.mode", about.mode),
    ];
    let scope = json!({ "name": "ferroxy", "version": env!("CARGO_PKG_VERSION") });
    (!spans.is_empty()).then(|| {
        json!({ "resourceSpans": [{
            "resource": { "attributes": resource },
            "scopeSpans": [{ "scope": scope, "spans": spans }],
        }] })
    })
}

/// A change with its parts, as far as their times are known: `received` (from the change of the pod until the agent begins with it),
/// `resolved`, and `programmed` (in the kernel).
fn spans(entry: &Entry) -> Vec<Value> {
    let took = match (entry.what, entry.took) {
        (What::Changed | What::Removed | What::Node | What::Started, Some(took)) => seconds(took),
        _ => return Vec::new(),
    };
    let end = entry.time.wall.duration_since(UNIX_EPOCH).unwrap_or_default();
    let in_kernel = entry.in_kernel.map(seconds).filter(|it| *it <= took);
    let begun = end.saturating_sub(took);
    let changed = entry.api_to_kernel.map(|it| end.saturating_sub(seconds(it))).filter(|it| *it <= begun);
    let trace = identity(entry.number);
    let root = identity(entry.number);
    let mut attributes = vec![
        text("ferroxy.change", entry.what.word()),
        number("ferroxy.operations", entry.operations),
        number("ferroxy.together", entry.together),
    ];
    if let Some(service) = &entry.service {
        attributes.push(text("k8s.namespace.name", service.namespace()));
        attributes.push(text("k8s.service.name", service.name()));
    }
    let span = |name: &str, is_root: bool, from: Duration, to: Duration| {
        let own = if is_root { root.1 } else { identity(entry.number).1 };
        json!({
            "traceId": format!("{:016x}{:016x}", trace.0, trace.1),
            "spanId": format!("{own:016x}"),
            "parentSpanId": if is_root { String::new() } else { format!("{:016x}", root.1) },
            "name": name,
            "kind": 1,
            "startTimeUnixNano": from.as_nanos().to_string(),
            "endTimeUnixNano": to.as_nanos().to_string(),
            "attributes": if is_root { attributes.clone() } else { Vec::new() },
        })
    };
    let mut spans = vec![span("change", true, changed.unwrap_or(begun), end)];
    spans.extend(changed.map(|changed| span("received", false, changed, begun)));
    if let Some(in_kernel) = in_kernel {
        let handed = end.saturating_sub(in_kernel);
        spans.push(span("resolved", false, begun, handed));
        spans.push(span("programmed", false, handed, end));
    }
    spans
}

fn seconds(number: f64) -> Duration {
    Duration::try_from_secs_f64(number).unwrap_or_default()
}

fn text(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

/// Integers are text in OTLP's JSON.
fn number(key: &str, value: usize) -> Value {
    json!({ "key": key, "value": { "intValue": value.to_string() } })
}

/// Two random numbers that are not zero. The keys of a hasher are random, and each hasher has others.
fn identity(number: u64) -> (u64, u64) {
    let one = || RandomState::new().hash_one(number).max(1);
    (one(), one())
}

#[cfg(test)]
mod tests {
    use ferroxy_core::ServiceName;

    use super::*;

    fn entry() -> Entry {
        Entry {
            service: Some(ServiceName::new("default", "web")),
            api_to_kernel: Some(0.5),
            took: Some(0.02),
            in_kernel: Some(0.005),
            operations: 3,
            together: 1,
            ..Entry::new(What::Changed, "")
        }
    }

    fn nanoseconds(span: &Value, name: &str) -> u128 {
        span[name].as_str().unwrap().parse().unwrap()
    }

    #[test]
    fn a_change_has_three_parts_without_gaps() {
        let spans = spans(&entry());
        let names: Vec<&str> = spans.iter().map(|span| span["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["change", "received", "resolved", "programmed"]);
        let (start, end) = ("startTimeUnixNano", "endTimeUnixNano");
        assert_eq!(nanoseconds(&spans[0], end) - nanoseconds(&spans[0], start), 500_000_000);
        assert_eq!(nanoseconds(&spans[3], end) - nanoseconds(&spans[3], start), 5_000_000);
        assert_eq!(spans[1][start], spans[0][start]);
        assert_eq!(
            (&spans[1][end], &spans[2][end], &spans[3][end]),
            (&spans[2][start], &spans[3][start], &spans[0][end])
        );
        for part in &spans[1..] {
            assert_eq!(
                (&part["traceId"], &part["parentSpanId"]),
                (&spans[0]["traceId"], &spans[0]["spanId"])
            );
            assert_ne!(part["spanId"], spans[0]["spanId"]);
        }
        let id = |name: &str| spans[0][name].as_str().unwrap().len();
        assert_eq!((id("traceId"), id("spanId"), id("parentSpanId")), (32, 16, 0));
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        let names = |entry: Entry| -> Vec<String> {
            spans(&entry).iter().map(|span| span["name"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(names(Entry { api_to_kernel: None, ..entry() }), ["change", "resolved", "programmed"]);
        assert_eq!(names(Entry { api_to_kernel: None, in_kernel: None, ..entry() }), ["change"]);
        // The clock of another machine is ahead.
        assert_eq!(
            names(Entry { api_to_kernel: Some(0.001), ..entry() }),
            ["change", "resolved", "programmed"]
        );
        assert!(names(Entry::new(What::Verdict, "")).is_empty());
        let about = About { node: "ka".into(), mode: "nftables" };
        assert!(request(&[Entry::new(What::Verdict, "")], &about).is_none());
        let request = request(&[entry()], &about).unwrap();
        assert_eq!(request["resourceSpans"][0]["resource"]["attributes"][2]["value"]["stringValue"], "ka");
    }
}
