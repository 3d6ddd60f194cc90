//! Rates from two answers of `traffic`: what passed between them, for each second.

use std::collections::HashMap;

use serde_json::Value;

/// Rates of one Service port, per second.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rate {
    pub connections: f64,
    /// From clients.
    pub bytes: f64,
    /// To clients.
    pub reply_bytes: f64,
    pub packets: f64,
}

impl Rate {
    pub fn add(&mut self, other: &Rate) {
        self.connections += other.connections;
        self.bytes += other.bytes;
        self.reply_bytes += other.reply_bytes;
        self.packets += other.packets;
    }

    /// Bytes in both directions.
    pub fn both(&self) -> f64 {
        self.bytes + self.reply_bytes
    }
}

/// By Service, port and, in the list of endpoints, endpoint.
pub type Rates = HashMap<(String, String, String), Rate>;

/// `list`: `items` or `endpoints`. A row that is new in the second answer counts from zero. If a counter became smaller, it
/// started over (the agent was restarted): its rate is 0.
pub fn rates(before: &Value, after: &Value, list: &str) -> Rates {
    let time = |answer: &Value| answer["monotonicSeconds"].as_f64().unwrap_or(0.0);
    let seconds = time(after) - time(before);
    if seconds <= 0.0 {
        return Rates::new();
    }
    let rows = |answer: &Value| -> HashMap<_, Value> {
        let rows = answer[list].as_array().cloned().unwrap_or_default();
        rows.into_iter().map(|row| (key(&row), row)).collect()
    };
    let earlier = rows(before);
    let rate = |(key, row): (_, Value)| {
        let grown = |name: &str| {
            let number = |row: Option<&Value>| row.and_then(|row| row[name].as_u64()).unwrap_or(0);
            number(Some(&row)).saturating_sub(number(earlier.get(&key))) as f64 / seconds
        };
        let rate = Rate {
            connections: grown("connections"),
            bytes: grown("bytes"),
            reply_bytes: grown("replyBytes"),
            packets: grown("packets") + grown("replyPackets"),
        };
        (key, rate)
    };
    rows(after).into_iter().map(rate).collect()
}

fn key(row: &Value) -> (String, String, String) {
    let text = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
    (text("service"), text("port"), text("endpoint"))
}

/// `0`, `3.2`, `740`, `12k`, `3.4M`, `1.2G`
pub fn short(number: f64) -> String {
    match number {
        it if it < 0.05 => "0".to_owned(),
        it if it < 10.0 => format!("{it:.1}"),
        it if it < 1e3 => format!("{it:.0}"),
        it if it < 1e4 => format!("{:.1}k", it / 1e3),
        it if it < 1e6 => format!("{:.0}k", it / 1e3),
        it if it < 1e9 => format!("{:.1}M", it / 1e6),
        it => format!("{:.1}G", it / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(seconds: f64, rows: &[(&str, u64, u64)]) -> Value {
        let row = |(service, connections, bytes): &(&str, u64, u64)| json!({ "service": service, "port": "http", "connections": connections, "bytes": bytes, "replyBytes": 2 * bytes, "packets": 1, "replyPackets": 1 });
        json!({ "monotonicSeconds": seconds, "items": rows.iter().map(row).collect::<Vec<_>>() })
    }

    #[test]
    fn a_rate_is_the_difference_of_two_answers() {
        let before = answer(10.0, &[("a/web", 5, 1000), ("a/reset", 900, 0)]);
        let after = answer(12.0, &[("a/web", 9, 3000), ("a/reset", 2, 0), ("a/new", 4, 10)]);
        let rates = rates(&before, &after, "items");
        let of = |service: &str| &rates[&(service.to_owned(), "http".to_owned(), String::new())];
        assert_eq!((of("a/web").connections, of("a/web").bytes, of("a/web").both()), (2.0, 1000.0, 3000.0));
        assert_eq!((of("a/reset").connections, of("a/new").connections), (0.0, 2.0));
    }

    #[test]
    fn two_answers_of_one_moment_have_no_rates() {
        let one = answer(10.0, &[("a/web", 5, 1000)]);
        assert!(rates(&one, &one, "items").is_empty());
    }

    #[test]
    fn numbers_are_short() {
        let all = [0.0, 3.21, 740.0, 1234.0, 45_600.0, 3.4e6, 1.2e9].map(short);
        assert_eq!(all, ["0", "3.2", "740", "1.2k", "46k", "3.4M", "1.2G"]);
    }
}
