//! The annotations by which a Service configures the proxy: how endpoints are chosen and how connections are treated.

use std::time::Duration;

use ferroxy_core::ServiceIntent;
use ferroxy_core::policy::Annotation;
use ferroxy_proxy::{Ejection, Policy, Pool, SlowStart};

const POLICY: &str = "ferroxy.io/policy";
const ATTEMPTS: &str = "ferroxy.io/attempts";
const CONNECT_TIMEOUT: &str = "ferroxy.io/connect-timeout";
const IDLE_TIMEOUT: &str = "ferroxy.io/idle-timeout";
const EJECTION: &str = "ferroxy.io/eject-after";
const SLOW_START: &str = "ferroxy.io/slow-start";
const PROXY_PROTOCOL: &str = "ferroxy.io/proxy-protocol";
const HOLD: &str = "ferroxy.io/hold-until-ready";
const MAX_CONNECTIONS: &str = "ferroxy.io/max-connections";

/// The annotations that this mode reads. `docs/userspace.md` has them for users.
pub static ANNOTATIONS: [Annotation; 9] = [
    Annotation { key: POLICY, check: |text| policy(text).map(drop), otherwise: "endpoints are used in turn" },
    Annotation {
        key: ATTEMPTS,
        check: |text| number(text, ATTEMPTS_RANGE).map(drop),
        otherwise: "up to 4 endpoints are tried",
    },
    Annotation {
        key: CONNECT_TIMEOUT,
        check: |text| duration(text, CONNECT_RANGE).map(drop),
        otherwise: "a dial may take 1s",
    },
    Annotation {
        key: IDLE_TIMEOUT,
        check: |text| duration(text, IDLE_RANGE).map(drop),
        otherwise: "idle connections stay open",
    },
    Annotation {
        key: EJECTION,
        check: |text| ejection(text).map(drop),
        otherwise: "an endpoint is left out after 5 failed dials in a row",
    },
    Annotation {
        key: SLOW_START,
        check: |text| duration(text, SLOW_START_RANGE).map(drop),
        otherwise: "new endpoints get their full share at once",
    },
    Annotation {
        key: PROXY_PROTOCOL,
        check: |text| if text == "v2" { Ok(()) } else { Err("is not v2".to_owned()) },
        otherwise: "endpoints get no PROXY protocol header",
    },
    Annotation {
        key: HOLD,
        check: |text| duration(text, HOLD_RANGE).map(drop),
        otherwise: "connections are refused while there is no endpoint",
    },
    Annotation {
        key: MAX_CONNECTIONS,
        check: |text| number(text, CONNECTIONS_RANGE).map(drop),
        otherwise: "the number of connections is not limited",
    },
];

const ATTEMPTS_RANGE: (u32, u32) = (1, 16);
const CONNECTIONS_RANGE: (u32, u32) = (1, 10_000_000);
const EJECTION_RANGE: (u32, u32) = (1, 1_000);

type Range = (Duration, Duration);
const CONNECT_RANGE: Range = (Duration::from_millis(10), Duration::from_secs(60));
const IDLE_RANGE: Range = (Duration::from_secs(1), Duration::from_secs(7 * 86_400));
const SLOW_START_RANGE: Range = (Duration::from_secs(1), Duration::from_secs(3_600));
/// Short, because a held connection takes memory on this node.
const HOLD_RANGE: Range = (Duration::from_millis(100), Duration::from_secs(30));

/// How long connections wait for an endpoint, if the Service requests it.
pub fn hold(service: &ServiceIntent) -> Option<Duration> {
    duration(service.annotation(HOLD)?, HOLD_RANGE).ok()
}

/// A pool without endpoints, configured by the annotations of the Service.
pub fn pool(service: &ServiceIntent) -> Pool {
    let mut pool = Pool::default();
    let text = |key| service.annotation(key);
    pool.policy = text(POLICY).and_then(|it| policy(it).ok()).unwrap_or_default();
    if let Some(attempts) = text(ATTEMPTS).and_then(|it| number(it, ATTEMPTS_RANGE).ok()) {
        pool.timeouts.attempts = attempts;
    }
    if let Some(connect) = text(CONNECT_TIMEOUT).and_then(|it| duration(it, CONNECT_RANGE).ok()) {
        pool.timeouts.connect = connect;
        pool.timeouts.connect_budget = pool.timeouts.connect_budget.max(connect);
    }
    pool.timeouts.idle = text(IDLE_TIMEOUT).and_then(|it| duration(it, IDLE_RANGE).ok());
    if let Some(wanted) = text(EJECTION).and_then(|it| ejection(it).ok()) {
        pool.ejection = wanted;
    }
    let window = text(SLOW_START).and_then(|it| duration(it, SLOW_START_RANGE).ok());
    pool.slow_start = window.map(|window| SlowStart { window });
    pool.proxy_protocol = text(PROXY_PROTOCOL).is_some();
    pool.timeouts.hold = hold(service);
    pool.limits.connections = text(MAX_CONNECTIONS).and_then(|it| number(it, CONNECTIONS_RANGE).ok());
    pool
}

fn policy(text: &str) -> Result<Policy, String> {
    match text {
        "round-robin" => Ok(Policy::RoundRobin),
        "random" => Ok(Policy::Random),
        "least-connections" => Ok(Policy::LeastConnections),
        "latency" => Ok(Policy::Latency),
        _ => Err("is none of round-robin, random, least-connections, latency".to_owned()),
    }
}

/// `off`, or a number of failed dials.
fn ejection(text: &str) -> Result<Option<Ejection>, String> {
    if text == "off" {
        return Ok(None);
    }
    let failures = number(text, EJECTION_RANGE).map_err(|reason| format!("is not off, and {reason}"))?;
    Ok(Some(Ejection { failures, ..Ejection::default() }))
}

fn number(text: &str, (least, most): (u32, u32)) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("is not a number from {least} to {most}"))
}

/// A whole number with a unit: `500ms`, `10s`, `5m`, `1h`.
fn duration(text: &str, (least, most): Range) -> Result<Duration, String> {
    let wrong =
        || format!("is not a time from {} to {}, like 500ms, 10s, 5m or 1h", words(least), words(most));
    let digits = text.len() - text.trim_start_matches(|it: char| it.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let milliseconds = match unit {
        "ms" => Some(number),
        "s" => number.checked_mul(1_000),
        "m" => number.checked_mul(60_000),
        "h" => number.checked_mul(3_600_000),
        _ => None,
    };
    let duration = milliseconds.map(Duration::from_millis).filter(|it| (least..=most).contains(it));
    duration.ok_or_else(wrong)
}

fn words(duration: Duration) -> String {
    match duration.as_millis() {
        it if it % 3_600_000 == 0 => format!("{}h", it / 3_600_000),
        it if it % 60_000 == 0 => format!("{}m", it / 60_000),
        it if it % 1_000 == 0 => format!("{}s", it / 1_000),
        it => format!("{it}ms"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ferroxy_core::ServiceName;

    use super::*;

    fn service(annotations: &[(&'static str, &str)]) -> ServiceIntent {
        ServiceIntent {
            name: ServiceName::new("default", "web"),
            cluster_ips: Vec::new(),
            ports: Vec::new(),
            health_check: None,
            annotations: annotations.iter().map(|(key, value)| (*key, Arc::from(*value))).collect(),
            left_out: Default::default(),
        }
    }

    #[test]
    fn every_annotation_changes_the_pool() {
        let asked = service(&[
            (POLICY, "latency"),
            (ATTEMPTS, "2"),
            (CONNECT_TIMEOUT, "250ms"),
            (IDLE_TIMEOUT, "10m"),
            (EJECTION, "3"),
            (SLOW_START, "30s"),
            (PROXY_PROTOCOL, "v2"),
            (HOLD, "20s"),
            (MAX_CONNECTIONS, "100"),
        ]);
        let pool = pool(&asked);
        assert_eq!((pool.policy, pool.timeouts.attempts), (Policy::Latency, 2));
        assert_eq!(pool.timeouts.connect, Duration::from_millis(250));
        assert_eq!(pool.timeouts.idle, Some(Duration::from_secs(600)));
        assert_eq!(pool.ejection.map(|it| it.failures), Some(3));
        assert_eq!(pool.slow_start.map(|it| it.window), Some(Duration::from_secs(30)));
        assert!(pool.proxy_protocol);
        assert_eq!(pool.timeouts.hold, Some(Duration::from_secs(20)));
        assert_eq!(pool.limits.connections, Some(100));
    }

    #[test]
    fn nothing_asked_for_is_the_engines_default() {
        assert_eq!(pool(&service(&[])), Pool::default());
        assert_eq!(pool(&service(&[(EJECTION, "off")])).ejection, None);
    }

    #[test]
    fn bad_values_say_what_is_allowed() {
        let complaint = |key: &str, value: &str| {
            let annotation = ANNOTATIONS.iter().find(|it| it.key == key).unwrap();
            (annotation.check)(value).unwrap_err()
        };
        assert_eq!(complaint(ATTEMPTS, "0"), "is not a number from 1 to 16");
        let time = "is not a time from 100ms to 30s, like 500ms, 10s, 5m or 1h";
        for value in ["31s", "10", "1d", "", "-1s", "99999999999999999999h", "99999999999999999h"] {
            assert_eq!(complaint(HOLD, value), time, "{value}");
        }
        assert_eq!(complaint(EJECTION, "x"), "is not off, and is not a number from 1 to 1000");
        assert_eq!(complaint(PROXY_PROTOCOL, "v1"), "is not v2");
        assert!(complaint(POLICY, "best").contains("least-connections"));
    }
}
