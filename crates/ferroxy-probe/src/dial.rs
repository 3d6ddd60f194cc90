//! One probe: connects, asks, and returns the result. It keeps no connection, and follows no redirect.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ferroxy_core::Protocol;
use ferroxy_core::probe::{Check, Fault, Probe, Target};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::Outcome;
use crate::http::{self, Answer, MOST_READ};

pub async fn dial(target: Target, probe: &Probe) -> Outcome {
    let (to, limit) = (target.address, probe.timeout);
    let ended = match (target.protocol, &probe.check) {
        (Protocol::Udp, _) => timeout(limit, udp(to)).await.unwrap_or(Ok(Outcome::Silent)),
        (_, Check::Tcp) => timeout(limit, tcp(to)).await.unwrap_or(TIMED_OUT),
        (_, Check::Http { path }) => {
            let mut status = None;
            let asked = timeout(limit, http(to, path, &mut status)).await.unwrap_or(TIMED_OUT);
            // Once the status is known, a slow body does not matter.
            status.map(|status| Ok(judge(status))).unwrap_or(asked)
        }
    };
    ended.unwrap_or_else(|error| outcome_of(&error))
}

const TIMED_OUT: io::Result<Outcome> = Ok(Outcome::Failed(Fault::TimedOut));

/// Whether a connection can be established.
async fn tcp(to: SocketAddr) -> io::Result<Outcome> {
    let stream = TcpStream::connect(to).await?;
    // Closes with RST: no TIME_WAIT here, and little in the log of the pod.
    stream.set_zero_linger()?;
    Ok(Outcome::Passed)
}

async fn http(to: SocketAddr, path: &str, status: &mut Option<u16>) -> io::Result<Outcome> {
    let stream = TcpStream::connect(to).await?;
    let request = http::request(to, path);
    let mut unsent = request.as_bytes();
    while !unsent.is_empty() {
        stream.writable().await?;
        unsent = &unsent[again(stream.try_write(unsent))?.unwrap_or(0)..];
    }
    let (mut buffer, mut length) = ([0; MOST_READ], 0);
    while length < MOST_READ {
        stream.readable().await?;
        let Some(read) = again(stream.try_read(&mut buffer[length..]))? else { continue };
        if read == 0 {
            break;
        }
        length += read;
        match http::answer(&buffer[..length]) {
            Answer::Status(code) => *status = Some(code),
            Answer::NotHttp => return Ok(Outcome::Failed(Fault::NotHttp)),
            Answer::Incomplete => {}
        }
    }
    // The caller ignores this result if there is a status.
    Ok(Outcome::Failed(if length == MOST_READ { Fault::NotHttp } else { Fault::Closed }))
}

fn judge(status: u16) -> Outcome {
    match status {
        200..=399 => Outcome::Passed,
        other => Outcome::Failed(Fault::Status(other)),
    }
}

/// Returns when an answer arrives, whatever it is, or the error that nothing listens on the port. Has no timeout
/// of its own.
async fn udp(to: SocketAddr) -> io::Result<Outcome> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(to).await?;
    socket.send(&[]).await?;
    socket.recv(&mut [0; 1]).await?;
    Ok(Outcome::Passed)
}

/// `None`: the socket is not ready (EWOULDBLOCK).
fn again(done: io::Result<usize>) -> io::Result<Option<usize>> {
    match done {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        other => other.map(Some),
    }
}

/// Only errors from the network or the endpoint count as failures of the endpoint. Local errors do not.
fn outcome_of(error: &io::Error) -> Outcome {
    let fault = match error.kind() {
        ErrorKind::ConnectionRefused => Fault::Refused,
        ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe => Fault::Reset,
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => Fault::Unreachable,
        ErrorKind::TimedOut => Fault::TimedOut,
        ErrorKind::UnexpectedEof => Fault::Closed,
        _ => {
            tracing::debug!("cannot send a probe: {error}");
            return Outcome::NotSent;
        }
    };
    Outcome::Failed(fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_other_side_says_counts() {
        let of = |kind: ErrorKind| outcome_of(&kind.into());
        assert_eq!(of(ErrorKind::ConnectionRefused), Outcome::Failed(Fault::Refused));
        assert_eq!(of(ErrorKind::HostUnreachable), Outcome::Failed(Fault::Unreachable));
        for own in [ErrorKind::AddrNotAvailable, ErrorKind::PermissionDenied, ErrorKind::OutOfMemory] {
            assert_eq!(of(own), Outcome::NotSent, "{own:?}");
        }
        // Too many open files.
        assert_eq!(outcome_of(&io::Error::from_raw_os_error(24)), Outcome::NotSent);
    }

    #[test]
    fn a_status_from_200_to_399_passes() {
        for (status, passes) in
            [(199, false), (200, true), (204, true), (302, true), (399, true), (400, false)]
        {
            assert_eq!(judge(status) == Outcome::Passed, passes, "{status}");
        }
    }
}
