//! Probes of an address from inside a namespace, and their answers. Each attempt uses a new socket. The expected answer is
//! up to `conformance` or the test.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::error::{LabError, Result};
use crate::network::Network;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    Tcp,
    Udp,
}

/// The result of one attempt. Its text is that of the conformance corpus.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answer {
    /// The reply of a pod.
    Reply(String),
    /// A TCP reset, or ICMP port unreachable.
    Refused,
    /// No answer.
    Timeout,
    /// No route, or ICMP host or network unreachable.
    Unreachable,
    /// The connection was established and lost before the complete reply.
    Broken(String),
}

/// The number of each answer.
pub type Seen = BTreeMap<String, usize>;

/// A probe that is repeated several times.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Probe {
    /// The namespace of the client.
    pub from: String,
    #[serde(rename = "proto")]
    pub protocol: Protocol,
    #[serde(rename = "dst")]
    pub address: IpAddr,
    pub port: u16,
}

/// The number of attempts.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Attempts while pods reply. With n endpoints, one stays unseen with probability (1-1/n)^24: 1 in 16 million for two,
    /// 1 in 1,000 for four.
    pub replies: usize,
    /// Failed attempts before it stops: further ones would give the same result.
    pub failures: usize,
    /// For each attempt. Longer than the second after which a request is repeated: one packet lost on a busy machine must not
    /// count as a drop, and a rule that drops also drops the repetition.
    pub timeout: Duration,
}

/// After this time TCP repeats a SYN, and we repeat a UDP request from the same port.
const REPEAT: Duration = Duration::from_secs(1);

impl Default for Effort {
    fn default() -> Effort {
        Effort { replies: 24, failures: 2, timeout: Duration::from_millis(1500) }
    }
}

impl Probe {
    /// Sequential attempts, so that session affinity takes effect between them.
    pub fn run(&self, network: &Network, effort: &Effort) -> Result<Seen> {
        let target = SocketAddr::new(self.address, self.port);
        network.namespace(&self.from)?.run(|| ask_repeatedly(self.protocol, target, effort))?
    }

    /// Several probes in parallel, each on its own thread. Not for probes that share an affinity entry (the same client and
    /// Service), where the first attempts would race.
    pub fn run_all(probes: &[Probe], network: &Network, effort: &Effort) -> Result<Vec<Seen>> {
        thread::scope(|scope| {
            let running: Vec<_> =
                probes.iter().map(|probe| scope.spawn(move || probe.run(network, effort))).collect();
            running
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        })
    }
}

/// One attempt from the namespace of the calling thread. A UDP request is sent once.
pub fn ask(protocol: Protocol, target: SocketAddr, timeout: Duration) -> Result<Answer> {
    attempt(protocol, target, &[timeout])
}

/// As [`ask`], but a UDP request without an answer is sent a second time.
pub fn ask_twice(protocol: Protocol, target: SocketAddr, timeout: Duration) -> Result<Answer> {
    let first = timeout.min(REPEAT);
    attempt(protocol, target, &[first, timeout - first])
}

/// `waits`: the timeout after each transmission of a UDP request. TCP retransmits itself within their sum.
fn attempt(protocol: Protocol, target: SocketAddr, waits: &[Duration]) -> Result<Answer> {
    let outcome = match protocol {
        Protocol::Tcp => ask_tcp(target, waits.iter().sum()),
        Protocol::Udp => ask_udp(target, waits),
    };
    outcome.or_else(|error| {
        answer_of_error(&error).ok_or_else(|| LabError::system(format!("ask {target}"), error))
    })
}

fn ask_repeatedly(protocol: Protocol, target: SocketAddr, effort: &Effort) -> Result<Seen> {
    let mut seen = Seen::new();
    let (mut replies, mut failures) = (0, 0);
    while replies < effort.replies && failures < effort.failures {
        let answer = ask_twice(protocol, target, effort.timeout)?;
        match answer {
            Answer::Reply(_) => replies += 1,
            _ => failures += 1,
        }
        *seen.entry(answer.to_string()).or_default() += 1;
    }
    Ok(seen)
}

fn ask_tcp(target: SocketAddr, timeout: Duration) -> io::Result<Answer> {
    let deadline = Instant::now() + timeout;
    let mut stream = TcpStream::connect_timeout(&target, timeout)?;
    // The connection is established: later errors are not "refused".
    Ok(match read_line(&mut stream, deadline) {
        Ok(line) => Answer::Reply(line),
        Err(error) => Answer::Broken(error.to_string()),
    })
}

fn read_line(stream: &mut TcpStream, deadline: Instant) -> io::Result<String> {
    let mut line = Vec::new();
    let mut buffer = [0; 256];
    while !line.ends_with(b"\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "connected, but no answer in time"));
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "closed before the answer")),
            Ok(length) => line.extend_from_slice(&buffer[..length]),
            // A read timeout; the loop then sees that no time is left.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
}

fn ask_udp(target: SocketAddr, waits: &[Duration]) -> io::Result<Answer> {
    let socket = bind_fresh_port(target.is_ipv6())?;
    // Connected, so that only replies from the target are received, and ICMP errors are reported.
    socket.connect(target)?;
    for wait in waits.iter().filter(|wait| !wait.is_zero()) {
        socket.set_read_timeout(Some(*wait))?;
        socket.send(b"who\n")?;
        let mut answer = [0; 512];
        match socket.recv(&mut answer) {
            Ok(length) => {
                return Ok(Answer::Reply(String::from_utf8_lossy(&answer[..length]).trim_end().to_owned()));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Answer::Timeout)
}

/// A source port that was not used recently: conntrack would send a known port to its known endpoint, and the ports that the
/// kernel chooses repeat. Taken from below the ephemeral range and the node ports.
fn bind_fresh_port(ipv6: bool) -> io::Result<UdpSocket> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let any = if ipv6 { IpAddr::from(Ipv6Addr::UNSPECIFIED) } else { IpAddr::from(Ipv4Addr::UNSPECIFIED) };
    loop {
        let port = 10_000 + NEXT.fetch_add(1, Ordering::Relaxed) % 20_000;
        match UdpSocket::bind((any, port)) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            bound => return bound,
        }
    }
}

/// None: a local failure (no descriptors left, unknown address family), not one of the network.
fn answer_of_error(error: &io::Error) -> Option<Answer> {
    // Errors that connect_timeout creates itself have no errno.
    if matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock) {
        return Some(Answer::Timeout);
    }
    match error.raw_os_error()? {
        libc::ECONNREFUSED => Some(Answer::Refused),
        libc::ENETUNREACH | libc::EHOSTUNREACH => Some(Answer::Unreachable),
        // A rule in the output path of the sender dropped the packet.
        libc::EPERM => Some(Answer::Timeout),
        _ => None,
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Reply(line) => f.write_str(line),
            Answer::Refused => f.write_str("refused"),
            Answer::Timeout => f.write_str("timeout"),
            Answer::Unreachable => f.write_str("unreachable"),
            Answer::Broken(reason) => write!(f, "broken: {reason}"),
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        })
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let target = SocketAddr::new(self.address, self.port);
        write!(f, "{} -> {} {target}", self.from, self.protocol)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_our_own_are_not_answers() {
        assert_eq!(answer_of_error(&io::Error::from_raw_os_error(libc::EMFILE)), None);
        assert_eq!(answer_of_error(&io::Error::from_raw_os_error(libc::ECONNREFUSED)), Some(Answer::Refused));
        assert_eq!(
            answer_of_error(&io::Error::from_raw_os_error(libc::EHOSTUNREACH)),
            Some(Answer::Unreachable)
        );
        assert_eq!(answer_of_error(&io::Error::from_raw_os_error(libc::EAGAIN)), Some(Answer::Timeout));
    }

    #[test]
    fn udp_source_ports_do_not_repeat() {
        let ports: Vec<u16> =
            (0..50).map(|_| bind_fresh_port(false).unwrap().local_addr().unwrap().port()).collect();
        let distinct: std::collections::BTreeSet<_> = ports.iter().collect();
        assert_eq!(distinct.len(), ports.len());
        assert!(ports.iter().all(|port| (10_000..30_000).contains(port)));
    }
}
