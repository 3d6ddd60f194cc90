//! A connection between a client and an endpoint, until both directions have ended, one side fails, or nothing happens for
//! too long.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::TcpKeepalive;

use super::flow::{Flow, State};
use crate::clock::{self, Nanos};
use crate::pool::endpoint::Endpoint;
use crate::system;
use crate::system::runtime::TcpStream;
use crate::wheel::Timer;

/// Keepalive is turned on at this age: short connections do without the system calls.
const GROWN: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Pump {
    client: TcpStream,
    server: TcpStream,
    endpoint: Arc<Endpoint>,
    up: Flow,
    down: Flow,
    rules: Rules,
    idle: Option<Timer>,
    grown: Option<Timer>,
    is_started: bool,
    is_half_closed: bool,
    first_byte: FirstByte,
}

/// The settings of this connection.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    pub idle: Option<Duration>,
    pub half_close: Duration,
    pub keepalive: Option<Duration>,
    pub user_timeout: Option<Duration>,
    pub splice: bool,
    /// Measures how long the endpoint takes to answer.
    pub measure: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Both directions have ended, and everything was delivered.
    Finished,
    /// One side failed; the other was reset, too.
    Reset,
    TimedOut,
}

/// The time from the client's first byte to the endpoint's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FirstByte {
    Unasked,
    AskedAt(Nanos),
    Done,
}

impl Pump {
    /// `first` is sent to the server before the client's bytes.
    pub fn new(
        client: TcpStream,
        server: TcpStream,
        endpoint: Arc<Endpoint>,
        first: Vec<u8>,
        rules: Rules,
    ) -> Pump {
        Pump {
            client,
            server,
            endpoint,
            up: Flow::new(first, rules.splice),
            down: Flow::new(Vec::new(), rules.splice),
            rules,
            idle: None,
            grown: None,
            is_started: false,
            is_half_closed: false,
            first_byte: if rules.measure { FirstByte::Unasked } else { FirstByte::Done },
        }
    }

    /// Timers wake the task that polls first, which is the connection's own.
    fn start(&mut self, context: &Context<'_>) {
        self.is_started = true;
        self.idle = self.rules.idle.map(|limit| Timer::start(limit, context.waker().clone()));
        let wants_options = self.rules.keepalive.is_some() || self.rules.user_timeout.is_some();
        self.grown = wants_options.then(|| Timer::start(GROWN, context.waker().clone()));
    }

    fn count(&mut self) {
        let (up, down) = (std::mem::take(&mut self.up.moved), std::mem::take(&mut self.down.moved));
        add(&self.endpoint.tally.bytes_in, up);
        add(&self.endpoint.tally.bytes_out, down);
        if up + down > 0
            && let Some(timer) = &self.idle
        {
            timer.touch();
        }
        self.measure(up, down);
    }

    fn measure(&mut self, up: u64, down: u64) {
        match self.first_byte {
            FirstByte::AskedAt(asked) if down > 0 => {
                let now = clock::now();
                self.endpoint.observe_latency(now.saturating_sub(asked), now);
                self.first_byte = FirstByte::Done;
            }
            // The endpoint speaks first: there is no question whose answer could be timed.
            FirstByte::Unasked if down > 0 => self.first_byte = FirstByte::Done,
            FirstByte::Unasked if up > 0 => self.first_byte = FirstByte::AskedAt(clock::now()),
            _ => {}
        }
    }

    /// Once, when one direction has ended: passes the end on, and limits how long the other may be silent.
    fn half_close(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let sink = match (self.up.state, self.down.state) {
            (State::Drained, State::Open) => Some(&mut self.server),
            (State::Open, State::Drained) => Some(&mut self.client),
            (State::Open, State::Open) => return Ok(()),
            _ => None,
        };
        if !std::mem::replace(&mut self.is_half_closed, true) {
            self.idle = Some(Timer::start(self.rules.half_close, context.waker().clone()));
            if let Some(sink) = sink {
                return sink.shutdown();
            }
        }
        Ok(())
    }

    fn grow_up(&mut self) {
        if self.grown.as_ref().is_some_and(|timer| timer.is_expired()) {
            self.grown = None;
            for stream in [&self.client, &self.server] {
                // The calls fail if the peer has gone, which the flows notice anyway.
                let _ = set_options(stream, &self.rules);
            }
        }
    }

    fn end(&mut self) -> Option<End> {
        let (up, down) = (self.up.state, self.down.state);
        if up == State::SourceFailed || down == State::SourceFailed {
            return Some(End::Reset);
        }
        match (up, down) {
            (State::Drained, State::Drained) => Some(End::Finished),
            (State::Open, _) | (_, State::Open) => None,
            _ => Some(End::Reset),
        }
    }

    fn reset_both(&mut self) {
        for stream in [&self.client, &self.server] {
            let _ = stream.options().set_linger(Some(Duration::ZERO));
        }
    }
}

impl Future for Pump {
    type Output = End;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<End> {
        let pump = self.get_mut();
        if !pump.is_started {
            pump.start(context);
        }
        if pump.idle.as_ref().is_some_and(|timer| timer.is_expired()) {
            pump.reset_both();
            return Poll::Ready(End::TimedOut);
        }
        pump.grow_up();
        let _ = pump.up.poll(context, &mut pump.client, &mut pump.server);
        let _ = pump.down.poll(context, &mut pump.server, &mut pump.client);
        pump.count();
        let end = match pump.half_close(context) {
            Ok(()) => pump.end(),
            Err(_) => Some(End::Reset),
        };
        match end {
            Some(End::Reset) => pump.reset_both(),
            Some(_) => {}
            None => return Poll::Pending,
        }
        Poll::Ready(end.unwrap_or(End::Reset))
    }
}

fn set_options(stream: &TcpStream, rules: &Rules) -> io::Result<()> {
    if let Some(time) = rules.keepalive {
        let interval = (time / 4).max(Duration::from_secs(1));
        let keepalive = TcpKeepalive::new().with_time(time).with_interval(interval);
        stream.options().set_tcp_keepalive(&keepalive)?;
    }
    match rules.user_timeout {
        Some(timeout) => system::set_user_timeout(&*stream.options(), timeout),
        None => Ok(()),
    }
}

fn add(counter: &AtomicU64, more: u64) {
    if more > 0 {
        counter.fetch_add(more, Relaxed);
    }
}
