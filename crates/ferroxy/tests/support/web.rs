//! An HTTP client that reads the bytes itself, and a reader of metrics that takes only what Prometheus would.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use ferroxy_lab::Namespace;
use serde_json::Value;

use super::DEADLINE;

pub const HEALTHZ: &str = "127.0.0.1:10256";
pub const METRICS: &str = "127.0.0.1:10249";

/// An HTTP answer.
#[derive(Debug, PartialEq)]
pub struct Reply {
    pub code: u16,
    /// `Name: value`, sorted, without the date.
    pub headers: Vec<String>,
    pub body: String,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }
}

pub fn get(from: &Namespace, address: &str, path: &str) -> Option<Reply> {
    request(from, address, &format!("GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n"))
}

/// `None` if no server answers.
pub fn request(from: &Namespace, address: &str, text: &str) -> Option<Reply> {
    let address: SocketAddr = address.parse().unwrap();
    let said = from
        .run(|| {
            let mut stream = TcpStream::connect_timeout(&address, DEADLINE).ok()?;
            stream.set_read_timeout(Some(DEADLINE)).unwrap();
            // A server that has read enough may have closed already.
            let _ = stream.write_all(text.as_bytes());
            let mut said = Vec::new();
            let _ = stream.read_to_end(&mut said);
            // Closed without an answer: the connection came while the server was closing its socket.
            (!said.is_empty()).then_some(said)
        })
        .unwrap()?;
    let said = String::from_utf8(said).unwrap();
    let (head, body) = said.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no HTTP: {said:?}"));
    let mut lines = head.split("\r\n");
    let code = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let is_the_same_each_time =
        |line: &&str| !line.starts_with("Date: ") && !line.starts_with("Connection: ");
    let mut headers: Vec<String> = lines.filter(is_the_same_each_time).map(str::to_owned).collect();
    headers.sort();
    Some(Reply { code, headers, body: body.to_owned() })
}

pub fn code(from: &Namespace, address: &str, path: &str) -> Option<u16> {
    get(from, address, path).map(|reply| reply.code)
}

/// Values by name and labels; every line must be one that Prometheus can read.
pub fn metrics(from: &Namespace) -> BTreeMap<String, f64> {
    let reply = get(from, METRICS, "/metrics").unwrap();
    assert_eq!(reply.code, 200);
    let mut values = BTreeMap::new();
    let mut current = "";
    for line in reply.body.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            let (keyword, rest) = comment.split_once(' ').unwrap();
            let (name, words) = rest.split_once(' ').unwrap();
            assert!(keyword == "HELP" || keyword == "TYPE" && name == current, "{line}");
            if keyword == "TYPE" {
                assert!(["counter", "gauge", "histogram"].contains(&words), "{line}");
            }
            current = name;
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
        let name = series.split('{').next().unwrap();
        let valid = |c: char| c.is_ascii_alphanumeric() || c == '_';
        assert!(name.starts_with(current) && name.chars().all(valid), "{line} after {current}");
        if let Some((_, labels)) = series.split_once('{') {
            for label in labels.strip_suffix('}').unwrap_or_else(|| panic!("{line}")).split(',') {
                let (key, value) = label.split_once('=').unwrap_or_else(|| panic!("{line}"));
                assert!(key.chars().all(valid) && value.starts_with('"') && value.ends_with('"'), "{line}");
            }
        }
        let value = value.parse().unwrap_or_else(|error| panic!("{line}: {error}"));
        assert_eq!(values.insert(series.to_owned(), value), None, "twice: {line}");
    }
    values
}
