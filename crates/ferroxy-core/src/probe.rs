//! Active health checks of endpoints: the probe that a Service requests by annotation, its targets and its results.
//! Types only: the annotations are read in `facts/probe.rs`, the rule is `resolve/probes.rs`, and `ferroxy-probe` sends
//! the probes.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::duration;
use crate::name::Protocol;

/// The annotation that requests probes.
pub const ANNOTATION: &str = "ferroxy.io/probe";

/// The probe that a Service requests for its endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    pub check: Check,
    /// The port to probe instead of the port of each endpoint.
    pub port: Option<u16>,
    pub interval: Duration,
    pub timeout: Duration,
    /// After this many failures in a row, an endpoint is down.
    pub failures: u32,
    /// After this many successes in a row, it is up again.
    pub successes: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Check {
    /// A connection can be established. (For a UDP port: no answer says that nothing listens on it.)
    Tcp,
    /// `GET` is answered with a status from 200 to 399.
    Http { path: Arc<str> },
}

/// The address and protocol that a probe of an endpoint uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    pub address: SocketAddr,
    /// TCP or UDP.
    pub protocol: Protocol,
}

/// One period in which an endpoint is ready. It ends when the endpoint is removed, turns unready or becomes another
/// pod. Results from one life do not count in the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Life(pub u64);

/// An endpoint that fails its probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Down {
    /// Seconds since 1970; for people.
    pub since: i64,
    pub fault: Fault,
}

/// Why a probe failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    Refused,
    TimedOut,
    Reset,
    Unreachable,
    /// Closed before there was an answer.
    Closed,
    /// The HTTP status is not in the range 200 to 399.
    Status(u16),
    NotHttp,
}

impl Probe {
    /// The target for an endpoint of a Service port; `None` if the check cannot be done over the protocol of the port.
    pub fn target(&self, ip: IpAddr, port: u16, protocol: Protocol) -> Option<Target> {
        if let Some(named) = self.port {
            return Some(Target { address: SocketAddr::new(ip, named), protocol: Protocol::Tcp });
        }
        let is_possible = match (protocol, &self.check) {
            (Protocol::Tcp, _) | (Protocol::Udp, Check::Tcp) => true,
            (Protocol::Udp, Check::Http { .. }) | (Protocol::Sctp, _) => false,
        };
        is_possible.then_some(Target { address: SocketAddr::new(ip, port), protocol })
    }
}

/// `http:/healthz:8080 every 5s, timeout 1s, down after 3 failures, up after 2 successes`
impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.check {
            Check::Tcp => f.write_str("tcp")?,
            Check::Http { path } => write!(f, "http:{path}")?,
        }
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        let (interval, timeout) = (duration::format(self.interval), duration::format(self.timeout));
        let (failures, successes) = (self.failures, self.successes);
        write!(
            f,
            " every {interval}, timeout {timeout}, down after {failures} failures, up after {successes} successes"
        )
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.protocol)
    }
}

impl Target {
    /// `10.244.1.5:8080/tcp`
    pub fn parse(text: &str) -> Option<Target> {
        let (address, protocol) = text.rsplit_once('/')?;
        Some(Target { address: address.parse().ok()?, protocol: Protocol::parse(protocol)? })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Refused => "connection refused",
            Fault::TimedOut => "no answer in time",
            Fault::Reset => "connection reset",
            Fault::Unreachable => "unreachable",
            Fault::Closed => "connection closed without an answer",
            Fault::Status(code) => return write!(f, "HTTP status {code}"),
            Fault::NotHttp => "the answer is not HTTP/1",
        })
    }
}

impl Fault {
    /// Reads the text that `Display` prints.
    pub fn parse(text: &str) -> Option<Fault> {
        const FIXED: [Fault; 6] = [
            Fault::Refused,
            Fault::TimedOut,
            Fault::Reset,
            Fault::Unreachable,
            Fault::Closed,
            Fault::NotHttp,
        ];
        let status = text.strip_prefix("HTTP status ").and_then(|code| code.parse().ok());
        let fixed = || FIXED.into_iter().find(|fault| fault.to_string() == text);
        status.map(Fault::Status).or_else(fixed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(check: Check, port: Option<u16>) -> Probe {
        let (interval, timeout) = (Duration::from_secs(5), Duration::from_secs(1));
        Probe { check, port, interval, timeout, failures: 3, successes: 2 }
    }

    fn http() -> Check {
        Check::Http { path: "/healthz".into() }
    }

    #[test]
    fn what_is_probed_depends_on_the_protocol_unless_a_port_is_named() {
        let target = |probe: Probe, protocol| {
            probe.target([10, 0, 0, 1].into(), 80, protocol).map(|target| target.to_string())
        };
        assert_eq!(target(probe(Check::Tcp, None), Protocol::Tcp).unwrap(), "10.0.0.1:80/tcp");
        assert_eq!(target(probe(Check::Tcp, None), Protocol::Udp).unwrap(), "10.0.0.1:80/udp");
        assert_eq!(target(probe(http(), None), Protocol::Tcp).unwrap(), "10.0.0.1:80/tcp");
        assert_eq!(target(probe(http(), None), Protocol::Udp), None);
        assert_eq!(target(probe(Check::Tcp, None), Protocol::Sctp), None);
        for protocol in Protocol::ALL {
            assert_eq!(target(probe(http(), Some(8080)), protocol).unwrap(), "10.0.0.1:8080/tcp");
        }
    }

    #[test]
    fn what_is_printed_reads_back() {
        for text in ["10.0.0.1:80/tcp", "[fd00::1]:53/udp"] {
            assert_eq!(Target::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Target::parse("10.0.0.1:80"), None);
        for fault in [Fault::Refused, Fault::TimedOut, Fault::NotHttp, Fault::Closed, Fault::Status(503)] {
            assert_eq!(Fault::parse(&fault.to_string()), Some(fault));
        }
        assert_eq!(Fault::parse("HTTP status x"), None);
        let words = "http:/healthz:8080 every 5s, timeout 1s, down after 3 failures, up after 2 successes";
        assert_eq!(probe(http(), Some(8080)).to_string(), words);
    }
}
