//! Reads the annotations that request probes. An invalid value disables nothing but itself.
//!
//! ```text
//! ferroxy.io/probe: tcp | tcp:PORT | http:/PATH | http:/PATH:PORT
//! ```
//! The text after the last colon is a port if it consists of digits. So `/v1/pods:batch` and `/a:80/b` are paths as
//! they are, and a path that ends in a colon and digits is written with `%3A`.

use std::sync::Arc;
use std::time::Duration;

use super::field::{self, Notes, quoted};
use super::service::ServicePort;
use crate::duration;
use crate::name::Protocol;
use crate::probe::{ANNOTATION, Check, Probe};

const INTERVAL: &str = "ferroxy.io/probe-interval";
const TIMEOUT: &str = "ferroxy.io/probe-timeout";
const FAILURES: &str = "ferroxy.io/probe-failure-threshold";
const SUCCESSES: &str = "ferroxy.io/probe-success-threshold";
const DETAILS: [&str; 4] = [INTERVAL, TIMEOUT, FAILURES, SUCCESSES];

/// Longer paths are refused, because the text of an annotation is cut at a length that is not much larger.
const LONGEST_PATH: usize = 200;

const INTERVALS: Range = Range { least: 1_000, most: 300_000, default: 5_000 };
const TIMEOUTS: Range = Range { least: 100, most: 10_000, default: 1_000 };

/// Durations, in milliseconds.
struct Range {
    least: u64,
    most: u64,
    default: u64,
}

const MOST_IN_A_ROW: u32 = 10;
const DEFAULT_FAILURES: u32 = 3;
const DEFAULT_SUCCESSES: u32 = 2;

/// The probe that a Service with these annotations and ports requests.
pub(super) fn read(
    annotations: &[(String, String)],
    ports: &[ServicePort],
    notes: &mut Notes,
) -> Option<Arc<Probe>> {
    // Most Services have none.
    if !annotations.iter().any(|(key, _)| key.starts_with(ANNOTATION)) {
        return None;
    }
    for (key, _) in annotations.iter().filter(|(key, _)| key.starts_with(ANNOTATION)) {
        if key != ANNOTATION && !DETAILS.contains(&key.as_str()) {
            notes.add(path(key), format!("there is no such annotation ({})", DETAILS.join(", ")), NO_EFFECT);
        }
    }
    let of = |wanted: &str| annotations.iter().find(|(key, _)| key == wanted).map(|(_, text)| text.as_str());
    let Some(text) = of(ANNOTATION) else {
        for key in DETAILS.into_iter().filter(|key| of(key).is_some()) {
            notes.add(path(key), format!("there is no {ANNOTATION} beside it"), NO_EFFECT);
        }
        return None;
    };
    let (check, port) = notes.keep(check(text), path(ANNOTATION), "its endpoints are not probed")?;
    let interval = time(of(INTERVAL), INTERVAL, &INTERVALS, notes);
    let mut timeout = time(of(TIMEOUT), TIMEOUT, &TIMEOUTS, notes);
    if timeout > interval {
        let (long, short) = (duration::format(timeout), duration::format(interval));
        let reason = format!("the timeout, {long}, is longer than the interval, {short}");
        notes.add(path(TIMEOUT), reason, format_args!("{short} is used"));
        timeout = interval;
    }
    let failures = in_a_row(of(FAILURES), FAILURES, DEFAULT_FAILURES, notes);
    let successes = in_a_row(of(SUCCESSES), SUCCESSES, DEFAULT_SUCCESSES, notes);
    let probe = Probe { check, port, interval, timeout, failures, successes };
    ports.iter().for_each(|port| note_unprobed(&probe, port, notes));
    Some(Arc::new(probe))
}

const NO_EFFECT: &str = "it has no effect";

fn path(key: &str) -> String {
    format!("metadata.annotations[{key}]")
}

fn check(text: &str) -> Result<(Check, Option<u16>), String> {
    let wrong = || format!("{} is not a probe: tcp, tcp:PORT, http:/PATH or http:/PATH:PORT", quoted(text));
    if text == "tcp" {
        return Ok((Check::Tcp, None));
    }
    if let Some(digits) = text.strip_prefix("tcp:") {
        return Ok((Check::Tcp, Some(port(digits).ok_or_else(wrong)??)));
    }
    let rest = text.strip_prefix("http:").filter(|rest| rest.starts_with('/')).ok_or_else(wrong)?;
    let (path, port) = match rest.rsplit_once(':').map(|(path, digits)| (path, port(digits))) {
        Some((path, Some(port))) => (path, Some(port?)),
        _ => (rest, None),
    };
    if path.len() > LONGEST_PATH {
        return Err(format!("the path is longer than {LONGEST_PATH} characters"));
    }
    // The path is sent as it is: a space would end it, and a fragment is not part of a request.
    if !path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
        return Err(format!("the path {} has characters that must be percent-encoded", quoted(path)));
    }
    Ok((Check::Http { path: path.into() }, port))
}

/// `None` if these are not digits.
fn port(digits: &str) -> Option<Result<u16, String>> {
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| field::port(digits.parse().unwrap_or(i64::MAX)))
}

fn time(text: Option<&str>, key: &str, range: &Range, notes: &mut Notes) -> Duration {
    let [least, most, default] = [range.least, range.most, range.default].map(Duration::from_millis);
    let Some(text) = text else { return default };
    let read = duration::parse(text).ok().and_then(|nanoseconds| u64::try_from(nanoseconds).ok());
    let read = read.map(Duration::from_nanos).filter(|time| (least..=most).contains(time));
    let reason = || {
        let (least, most) = (duration::format(least), duration::format(most));
        format!("{} is not a duration from {least} to {most}", quoted(text))
    };
    let effect = format!("the default of {} is used", duration::format(default));
    notes.keep(read.ok_or_else(reason), path(key), effect).unwrap_or(default)
}

fn in_a_row(text: Option<&str>, key: &str, default: u32, notes: &mut Notes) -> u32 {
    let Some(text) = text else { return default };
    let read = text.parse().ok().filter(|number| (1..=MOST_IN_A_ROW).contains(number));
    let reason = || format!("{} is not a number from 1 to {MOST_IN_A_ROW}", quoted(text));
    let effect = format!("the default of {default} is used");
    notes.keep(read.ok_or_else(reason), path(key), effect).unwrap_or(default)
}

fn note_unprobed(probe: &Probe, port: &ServicePort, notes: &mut Notes) {
    if probe.target([0; 4].into(), port.port, port.protocol).is_some() {
        return;
    }
    let reason = match port.protocol {
        Protocol::Sctp => format!("port {} is SCTP: name a TCP port to probe, as in tcp:8080", port.port),
        _ => format!("port {} is UDP: name the port to ask by HTTP, as in http:/path:8080", port.port),
    };
    let effect = format!("the endpoints of port {} are not probed", port.port);
    notes.add(path(ANNOTATION), reason, effect);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event;
    use crate::facts::Service;
    use crate::name::ServiceName;

    /// The probe as it is printed, and the Diagnostics.
    fn read(annotations: &[(&str, &str)], protocol: &str) -> (Option<String>, Vec<String>) {
        let object = event::Service {
            annotations: annotations.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
            cluster_ip: "10.96.0.1".into(),
            ports: vec![event::ServicePort { port: 80, protocol: protocol.into(), ..Default::default() }],
            ..Default::default()
        };
        let (service, faults) = Service::read(ServiceName::new("default", "web"), object);
        let said = faults.iter().map(ToString::to_string).collect();
        (service.probe.map(|probe| probe.to_string()), said)
    }

    const USUAL: &str = "every 5s, timeout 1s, down after 3 failures, up after 2 successes";

    #[test]
    fn the_forms_of_a_probe() {
        for text in ["tcp", "tcp:8080", "http:/", "http:/healthz", "http:/healthz?full=1:8080"] {
            assert_eq!(read(&[(ANNOTATION, text)], "TCP"), (Some(format!("{text} {USUAL}")), vec![]));
        }
        assert_eq!(read(&[("ferroxy.io/scheduler", "lc")], "TCP"), (None, vec![]));
    }

    #[test]
    fn a_colon_in_a_path_is_no_port() {
        let parts = |text: &str| match check(text) {
            Ok((Check::Http { path }, port)) => (path.to_string(), port),
            other => panic!("{other:?}"),
        };
        assert_eq!(parts("http:/v1/pods:batch"), ("/v1/pods:batch".into(), None));
        assert_eq!(parts("http:/a:80/b"), ("/a:80/b".into(), None));
        assert_eq!(parts("http:/a:80/b:8080"), ("/a:80/b".into(), Some(8080)));
        assert_eq!(parts("http:/a:b:8080"), ("/a:b".into(), Some(8080)));
        assert_eq!(parts("http:/a:"), ("/a:".into(), None));
        assert_eq!(parts("http:/a%3A80"), ("/a%3A80".into(), None));
    }

    #[test]
    fn what_is_no_probe_is_reported_and_asks_for_nothing() {
        let long = format!("http:/{}", "a".repeat(LONGEST_PATH));
        let wrong = [
            "",
            "TCP",
            "tcp:",
            "tcp:x",
            "tcp:0",
            "tcp:70000",
            "http",
            "http:",
            "http:path",
            "http:/a b",
            "http:/ä",
            "http:/a#b",
            "http:/:0",
            "http:/a:65536",
            "http:/a:99999999999999999999",
            "https:/",
            " tcp",
            "udp",
            &long,
        ];
        for text in wrong {
            let (probe, said) = read(&[(ANNOTATION, text)], "TCP");
            assert_eq!(probe, None, "{text}");
            assert_eq!(said.len(), 1, "{text}: {said:?}");
            assert!(said[0].starts_with("Service default/web: metadata.annotations[ferroxy.io/probe]: "));
            assert!(said[0].ends_with("; its endpoints are not probed"), "{said:?}");
        }
        assert!(check("http:/a:65536").unwrap_err().contains("65536"));
    }

    #[test]
    fn details_are_read_and_wrong_ones_keep_their_defaults() {
        let details = [
            (ANNOTATION, "tcp"),
            (INTERVAL, "1m30s"),
            (TIMEOUT, "250ms"),
            (FAILURES, "1"),
            (SUCCESSES, "10"),
        ];
        let words = "tcp every 1m30s, timeout 250ms, down after 1 failures, up after 10 successes";
        assert_eq!(read(&details, "TCP"), (Some(words.into()), vec![]));
        let wrong = [
            (INTERVAL, ["", "5", "0s", "999ms", "-5s", "301s", "1h", "soon"], "the default of 5s is used"),
            (TIMEOUT, ["", "1", "0s", "99ms", "-1s", "10.1s", "1h", "soon"], "the default of 1s is used"),
            (
                FAILURES,
                ["", "0", "-1", "11", "1.5", "three", "+ 1", "99999999999"],
                "the default of 3 is used",
            ),
            (SUCCESSES, ["", "0", "-1", "11", "1.5", "two", " 2", "99999999999"], "the default of 2 is used"),
        ];
        for (key, values, effect) in wrong {
            for value in values {
                let (probe, said) = read(&[(ANNOTATION, "tcp"), (key, value)], "TCP");
                assert_eq!(probe, Some(format!("tcp {USUAL}")), "{key}: {value}");
                assert_eq!(said.len(), 1, "{key}: {value}");
                assert!(said[0].contains(key) && said[0].ends_with(effect), "{said:?}");
            }
        }
    }

    #[test]
    fn a_timeout_is_no_longer_than_the_interval() {
        let (probe, said) = read(&[(ANNOTATION, "tcp"), (INTERVAL, "2s"), (TIMEOUT, "3s")], "TCP");
        assert!(probe.unwrap().starts_with("tcp every 2s, timeout 2s"));
        assert!(
            said[0].ends_with("the timeout, 3s, is longer than the interval, 2s; 2s is used"),
            "{said:?}"
        );
    }

    #[test]
    fn what_has_no_effect_is_reported() {
        let (probe, said) = read(&[(INTERVAL, "2s"), ("ferroxy.io/probe-threshold", "2")], "TCP");
        assert_eq!((probe, said.len()), (None, 2));
        assert!(said.iter().all(|line| line.ends_with("it has no effect")), "{said:?}");
    }

    #[test]
    fn ports_that_cannot_be_probed_are_reported() {
        let said = |text, protocol| read(&[(ANNOTATION, text)], protocol).1;
        assert_eq!(said("tcp", "UDP"), [""; 0]);
        assert!(said("http:/", "UDP")[0].ends_with("the endpoints of port 80 are not probed"));
        assert!(said("tcp", "SCTP")[0].contains("port 80 is SCTP: name a TCP port"));
        assert_eq!(said("tcp:8080", "SCTP"), [""; 0]);
        assert_eq!(said("http:/:8080", "UDP"), [""; 0]);
    }
}
