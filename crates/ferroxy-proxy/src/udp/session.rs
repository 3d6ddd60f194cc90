//! One client's session: a connected socket to an endpoint, and a task that returns the answers.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use socket2::{Domain, Socket, Type};

use super::listen::{forget, receive, with_batch};
use super::sessions::SessionKey;
use crate::config::Timeouts;
use crate::pool::Pool;
use crate::pool::endpoint::Endpoint;
use crate::pool::lease::Lease;
use crate::shared::Shared;
use crate::system;
use crate::system::runtime::{Handle, RawUdpSocket, UdpSocket};
use crate::wheel::Timer;

/// Batches before other tasks get their turn.
const ROUNDS: usize = 8;

#[derive(Debug)]
pub struct Session {
    pub key: SessionKey,
    pub pool: Arc<Pool>,
    pub endpoint: Arc<Endpoint>,
    socket: UdpSocket,
    /// The socket of the listener: answers are sent through it.
    outside: Arc<RawUdpSocket>,
    shared: Arc<Shared>,
    timeouts: Timeouts,
    /// Started by the session's task.
    timer: OnceLock<Timer>,
    _lease: Lease,
}

impl Session {
    /// `socket` is connected to the endpoint.
    pub fn new(
        key: SessionKey,
        (pool, lease): (Arc<Pool>, Lease),
        endpoint: Arc<Endpoint>,
        (socket, outside): (UdpSocket, Arc<RawUdpSocket>),
        shared: Arc<Shared>,
    ) -> Session {
        endpoint.tally.sessions.fetch_add(1, Relaxed);
        endpoint.tally.active_sessions.fetch_add(1, Relaxed);
        shared.tally.sessions.fetch_add(1, Relaxed);
        let timeouts = pool.snapshot().config.timeouts;
        let timer = OnceLock::new();
        Session { key, pool, endpoint, socket, outside, shared, timeouts, timer, _lease: lease }
    }

    /// Forwards the client's datagrams; those that do not fit into the socket are lost, as anywhere in a network.
    /// `false` if the endpoint refuses them.
    pub fn send(&self, datagrams: &[&[u8]]) -> bool {
        if let Some(timer) = self.timer.get() {
            timer.touch();
        }
        let sent = system::send(&**self.socket.raw(), None, None, datagrams);
        self.count_sent(datagrams, *sent.as_ref().unwrap_or(&0));
        match sent {
            Err(error) if is_refused(&error) => {
                self.refused();
                false
            }
            _ => true,
        }
    }

    fn count_sent(&self, datagrams: &[&[u8]], sent: usize) {
        let bytes: usize = datagrams[..sent].iter().map(|it| it.len()).sum();
        self.endpoint.tally.datagrams_in.fetch_add(sent as u64, Relaxed);
        self.endpoint.tally.bytes_in.fetch_add(bytes as u64, Relaxed);
        let lost = datagrams.len() - sent;
        if lost > 0 {
            self.pool.totals.dropped_datagrams.fetch_add(lost as u64, Relaxed);
        }
    }

    /// The endpoint's host reports that nothing listens on the port: this counts as a failed dial.
    fn refused(&self) {
        if self.pool.dial_failed(&self.endpoint) {
            self.shared.ejected.add(self.endpoint.address, &self.pool);
        }
    }

    fn poll_answers(&self, context: &mut Context<'_>) -> Poll<()> {
        let timer =
            self.timer.get_or_init(|| Timer::start(self.timeouts.udp_unanswered, context.waker().clone()));
        for _ in 0..ROUNDS {
            if timer.is_expired() {
                return Poll::Ready(());
            }
            match self.socket.poll_readable(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Ready(Ok(())) => {}
            }
            match self.pass_on_answers() {
                Ok(()) => {
                    timer.extend(self.timeouts.udp_answered.max(self.timeouts.udp_unanswered));
                    timer.touch();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if is_refused(&error) => {
                    self.refused();
                    return Poll::Ready(());
                }
                Err(_) => return Poll::Ready(()),
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    fn pass_on_answers(&self) -> io::Result<()> {
        with_batch(|batch| {
            receive(&self.socket, batch)?;
            let datagrams: Vec<&[u8]> = batch.messages().flat_map(|it| it.datagrams()).collect();
            let sent = send_outside(&self.outside, self.key.client, self.key.local, &datagrams);
            let bytes: usize = datagrams[..sent].iter().map(|it| it.len()).sum();
            self.endpoint.succeeded();
            self.endpoint.tally.datagrams_out.fetch_add(sent as u64, Relaxed);
            self.endpoint.tally.bytes_out.fetch_add(bytes as u64, Relaxed);
            if sent < datagrams.len() {
                let lost = (datagrams.len() - sent) as u64;
                self.pool.totals.dropped_datagrams.fetch_add(lost, Relaxed);
            }
            Ok(())
        })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.endpoint.tally.active_sessions.fetch_sub(1, Relaxed);
        self.shared.tally.sessions.fetch_sub(1, Relaxed);
    }
}

/// Returns answers until nothing has happened for too long, or the endpoint refuses.
pub async fn run(session: Arc<Session>) {
    poll_fn(|context| session.poll_answers(context)).await;
    forget(&session);
}

/// Other errors are ignored: answers to a client that has gone are lost.
fn send_outside(outside: &RawUdpSocket, to: SocketAddr, from: Option<IpAddr>, datagrams: &[&[u8]]) -> usize {
    // An error that an earlier answer caused (a client's closed port) is reported once, to the next call that sends.
    let mut sent = 0;
    for _ in 0..2 {
        match system::send(outside, Some(to), from, &datagrams[sent..]) {
            Ok(more) => sent += more,
            Err(error) if is_refused(&error) => continue,
            Err(_) => {}
        }
        break;
    }
    sent
}

fn is_refused(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, ConnectionReset, HostUnreachable, NetworkUnreachable};
    matches!(error.kind(), ConnectionRefused | ConnectionReset | HostUnreachable | NetworkUnreachable)
}

/// Opens a socket to an endpoint.
pub fn connect(address: SocketAddr, mark: Option<u32>, handle: &Handle) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
    socket.set_nonblocking(true)?;
    if let Some(mark) = mark {
        system::set_mark(&socket, mark)?;
    }
    system::prepare_datagrams(&socket, address)?;
    socket.connect(&address.into())?;
    UdpSocket::new(socket.into(), handle)
}
