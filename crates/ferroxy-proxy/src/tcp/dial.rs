//! Connecting to an endpoint: waiting for one, choosing one, and trying the next one if it fails.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::clock;
use crate::config::{Policy, Timeouts};
use crate::pool::Pool;
use crate::pool::lease::{Lease, Use};
use crate::shared::Shared;
use crate::system::runtime::{TcpStream, connect, timeout};
use crate::{random, system};

/// Why a client gets no endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The pool has no endpoint.
    Empty,
    /// All dials failed, or the time was up.
    Unreachable,
    Limit,
}

/// Connects to an endpoint of the pool.
pub async fn dial(shared: &Shared, pool: &Arc<Pool>, client: IpAddr) -> Result<(TcpStream, Use), Refusal> {
    if pool.snapshot().endpoints.is_empty() {
        hold(pool).await?;
    }
    let config = pool.snapshot().config.clone();
    let dials = Some(config.limits.dials);
    let _lease = Lease::take(pool, |totals| &totals.dialing, dials).ok_or(Refusal::Limit)?;
    let mut attempts = Attempts::new(config.timeouts);
    while let Some(limit) = attempts.next() {
        let Some(endpoint) = random::with(|random| pool.choose(client, &attempts.failed, random)) else {
            break;
        };
        if !attempts.failed.is_empty() {
            pool.totals.retries.fetch_add(1, Relaxed);
        }
        let lease = Use::begin(endpoint);
        let begun = (config.policy == Policy::Latency).then(clock::now);
        let dialled = timeout(limit, connect(lease.0.address, shared.settings.mark)).await;
        match dialled.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into())) {
            Ok(stream) => {
                lease.established(begun);
                return Ok((stream, lease));
            }
            // Our own shortage, not the endpoint's fault.
            Err(error) if system::is_exhausted(&error) => break,
            Err(error) => {
                if error.kind() != io::ErrorKind::AddrNotAvailable && pool.dial_failed(&lease.0) {
                    shared.ejected.add(lease.0.address, pool);
                }
                attempts.failed.push(lease.0.address);
            }
        }
    }
    let is_empty = attempts.failed.is_empty() && pool.snapshot().endpoints.is_empty();
    Err(if is_empty { Refusal::Empty } else { Refusal::Unreachable })
}

/// Waits until the pool has an endpoint, for as long as the pool's timeout allows.
async fn hold(pool: &Arc<Pool>) -> Result<(), Refusal> {
    let config = pool.snapshot().config.clone();
    let Some(most) = config.timeouts.hold else { return Err(Refusal::Empty) };
    let held = Some(config.limits.held);
    let _lease = Lease::take(pool, |totals| &totals.holding, held).ok_or(Refusal::Limit)?;
    pool.totals.held.fetch_add(1, Relaxed);
    let end = Instant::now() + most;
    loop {
        let mut changed = pin!(pool.changed.notified());
        // From here on no change is missed.
        changed.as_mut().enable();
        if !pool.snapshot().endpoints.is_empty() {
            return Ok(());
        }
        let rest = end.saturating_duration_since(Instant::now());
        timeout(rest, changed).await.ok_or(Refusal::Empty)?;
    }
}

/// The tries of one connection, and the time that is left for them.
struct Attempts {
    failed: Vec<SocketAddr>,
    timeouts: Timeouts,
    left: u32,
    /// The deadline for all of them.
    end: Instant,
}

impl Attempts {
    fn new(timeouts: Timeouts) -> Attempts {
        Attempts {
            failed: Vec::new(),
            timeouts,
            left: timeouts.attempts.max(1),
            end: Instant::now() + timeouts.connect_budget,
        }
    }

    /// The time for one more dial; `None` if no dial or no time is left.
    fn next(&mut self) -> Option<Duration> {
        self.left = self.left.checked_sub(1)?;
        let rest = self.end.saturating_duration_since(Instant::now());
        (!rest.is_zero()).then(|| rest.min(self.timeouts.connect))
    }
}
