//! A start with no rules in the kernel: the time until packets flow through the Service that is last in every order, and
//! the resources used until the proxy is idle.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_error;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};

use super::{Figure, Figures, Proxy, Result, Subject};

/// The time between two attempts, and so the precision of the time of the first packet.
const PACE: Duration = Duration::from_millis(4);
/// An attempt without an answer is given up after this time. Attempts overlap, so that a slow answer is not missed.
const ATTEMPT: Duration = Duration::from_millis(500);

pub(super) fn measure(subject: &Subject<'_>, figures: &mut Figures) -> Result<Proxy> {
    let stage = subject.stage;
    let server_before = stage.spent_by_server()?;
    let mut proxy = subject.start()?;
    let connected = first_connection(subject, &mut proxy)?;
    figures.set_time(Figure::FirstPacket, connected - proxy.started());
    figures.set_time(Figure::Waited, proxy.waited()?);
    proxy.settle(subject.patience())?;
    let memory = proxy.memory()?;
    figures.set_time(Figure::Cpu, proxy.cpu()?);
    figures.set(Figure::PeakMemory, memory.peak as f64 / 1e6);
    figures.set(Figure::SteadyMemory, memory.resident as f64 / 1e6);
    figures.set(Figure::ChildrenMemory, proxy.peak_of_children() as f64 / 1e6);
    let server = stage.spent_by_server()?.since(server_before);
    figures.set_time(Figure::ServerCpu, server.cpu);
    figures.set(Figure::ServerBytes, server.bytes as f64 / 1e6);
    Ok(proxy)
}

/// Tries connections all the time. Returns when the first one was established.
fn first_connection(subject: &Subject<'_>, proxy: &mut Proxy) -> Result<Instant> {
    let patience = subject.patience();
    let (target, deadline) = (subject.stage.service(), proxy.started() + patience);
    let client = subject.stage.client(subject.name)?;
    client.run(|| {
        let mut attempts = Vec::new();
        let mut checked = Instant::now();
        while Instant::now() < deadline {
            attempts.push(Attempt::begin(target)?);
            if let Some(connected) = wait_for_any(&mut attempts, PACE)? {
                return Ok(connected);
            }
            if checked.elapsed() > Duration::from_secs(1) {
                proxy.check()?;
                checked = Instant::now();
            }
        }
        Err(format!("no packet through {target} within {patience:?}").into())
    })?
}

struct Attempt {
    socket: OwnedFd,
    begun: Instant,
}

impl Attempt {
    fn begin(target: SocketAddr) -> Result<Attempt> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        match connect(&socket, &target) {
            // The socket reports the result later.
            Ok(()) | Err(Errno::INPROGRESS | Errno::NETUNREACH | Errno::HOSTUNREACH) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(Attempt { socket, begun: Instant::now() })
    }
}

/// Waits for `time`, or until one of the attempts is connected. Failed and old attempts are dropped.
fn wait_for_any(attempts: &mut Vec<Attempt>, time: Duration) -> Result<Option<Instant>> {
    let end = Instant::now() + time;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let mut sockets: Vec<PollFd<'_>> =
            attempts.iter().map(|attempt| PollFd::new(&attempt.socket, PollFlags::OUT)).collect();
        match poll(&mut sockets, Some(&Timespec::try_from(left)?)) {
            Ok(0) => {
                attempts.retain(|attempt| attempt.begun.elapsed() < ATTEMPT);
                return Ok(None);
            }
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        let now = Instant::now();
        let events: Vec<PollFlags> = sockets.iter().map(PollFd::revents).collect();
        let connected = |(attempt, events): (&Attempt, &PollFlags)| {
            *events == PollFlags::OUT && matches!(socket_error(&attempt.socket), Ok(Ok(())))
        };
        if attempts.iter().zip(&events).any(connected) {
            return Ok(Some(now));
        }
        let mut events = events.into_iter();
        attempts.retain(|_| events.next() == Some(PollFlags::empty()));
    }
}
