//! Background traffic during a change: many short requests (`Load`) and one connection that must not break
//! (`LongConnection`). They count and report; the caller judges the result.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;

use crate::error::{LabError, Result};
use crate::namespace::Namespace;
use crate::patience::{ANSWER, PATIENCE};
use crate::probe::{Answer, Protocol, ask, ask_twice};

/// The target, rate and duration of requests.
#[derive(Debug, Clone, Copy)]
pub struct LoadPlan {
    pub protocol: Protocol,
    pub target: SocketAddr,
    /// From the start of one request to the start of the next; zero means without a pause.
    pub interval: Duration,
    /// The load ends at the first of these limits, or when stopped.
    pub max_requests: usize,
    pub max_time: Duration,
    /// For each request.
    pub timeout: Duration,
    /// A UDP request without an answer is sent once more, as clients of UDP do.
    pub repeats: bool,
}

impl LoadPlan {
    /// Back to back until stopped, but at most for [`PATIENCE`]: then the test that started it has given up.
    pub fn back_to_back(protocol: Protocol, target: SocketAddr) -> LoadPlan {
        LoadPlan {
            protocol,
            target,
            interval: Duration::ZERO,
            max_requests: usize::MAX,
            max_time: PATIENCE,
            timeout: ANSWER,
            repeats: false,
        }
    }
}

/// Sequential requests, each on a new socket, on a separate thread. Stops when dropped.
#[derive(Debug)]
pub struct Load {
    worker: Worker<Result<LoadReport>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// The number of each reply.
    pub replies: BTreeMap<String, usize>,
    pub failures: Vec<LoadFailure>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadFailure {
    /// Counted from the start of the load.
    pub at: Duration,
    pub answer: Answer,
}

impl Load {
    pub fn start(from: &Namespace, plan: LoadPlan) -> Result<Load> {
        Ok(Load { worker: Worker::start(from, move |signals| run(&plan, signals))? })
    }

    /// How many requests have ended so far, well or not.
    pub fn done(&self) -> usize {
        self.worker.signals.done.load(Ordering::Relaxed)
    }

    /// Stops after the current request.
    pub fn stop(mut self) -> Result<LoadReport> {
        self.worker.signals.stop.store(true, Ordering::Relaxed);
        self.worker.join()?
    }

    /// Waits until the plan is finished.
    pub fn finish(mut self) -> Result<LoadReport> {
        self.worker.join()?
    }
}

impl LoadReport {
    pub fn successes(&self) -> usize {
        self.replies.values().sum()
    }
}

/// One TCP connection to an echo port (`pod::ECHO_PORT`) that repeatedly sends a line and waits for its echo.
#[derive(Debug)]
pub struct LongConnection {
    greeting: String,
    worker: Worker<LongReport>,
    stream: TcpStream,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LongReport {
    /// Echoed lines.
    pub echoes: usize,
    /// The error, if it broke.
    pub broken: Option<String>,
}

impl LongConnection {
    /// Connects (an error here is the network's or the pod's), then echoes every `interval` until closed. An echo
    /// that takes longer than `patience` counts as broken.
    pub fn open(
        from: &Namespace,
        target: SocketAddr,
        interval: Duration,
        patience: Duration,
    ) -> Result<LongConnection> {
        let failed = |e| LabError::system(format!("hold a connection to {target}"), e);
        let stream = from.run(|| TcpStream::connect_timeout(&target, patience))?.map_err(failed)?;
        stream.set_read_timeout(Some(patience)).map_err(failed)?;
        let mut lines = BufReader::new(stream.try_clone().map_err(failed)?);
        let greeting = read_line(&mut lines).map_err(failed)?;
        let worker = Worker::start(from, move |signals| echo(lines, interval, signals))?;
        Ok(LongConnection { greeting, worker, stream })
    }

    /// The first line from the pod: its name and the client address that it saw.
    pub fn greeting(&self) -> &str {
        &self.greeting
    }

    /// How many lines have come back so far; a broken echo counts as one more.
    pub fn done(&self) -> usize {
        self.worker.signals.done.load(Ordering::Relaxed)
    }

    /// Sends one more echo if the connection is not broken, then returns the report.
    pub fn close(mut self) -> Result<LongReport> {
        self.worker.signals.stop.store(true, Ordering::Relaxed);
        self.worker.join()
    }

    /// As [`LongConnection::close`], but ends with a reset, so that connection tracking on the path removes the
    /// connection soon instead of after minutes.
    pub fn reset(mut self) -> Result<LongReport> {
        self.worker.signals.stop.store(true, Ordering::Relaxed);
        let report = self.worker.join()?;
        set_socket_linger(&self.stream, Some(Duration::ZERO))
            .map_err(|errno| LabError::system("make a connection end with a reset", errno))?;
        Ok(report)
    }
}

fn run(plan: &LoadPlan, signals: &Signals) -> Result<LoadReport> {
    let start = Instant::now();
    let mut report = LoadReport::default();
    for request in 0..plan.max_requests {
        let due = plan.interval.saturating_mul(u32::try_from(request).unwrap_or(u32::MAX));
        thread::sleep(due.saturating_sub(start.elapsed()));
        if signals.stop.load(Ordering::Relaxed) || start.elapsed() >= plan.max_time {
            break;
        }
        let at = start.elapsed();
        let ask = if plan.repeats { ask_twice } else { ask };
        match ask(plan.protocol, plan.target, plan.timeout)? {
            Answer::Reply(line) => *report.replies.entry(line).or_default() += 1,
            answer => report.failures.push(LoadFailure { at, answer }),
        }
        signals.done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(report)
}

fn echo(mut lines: BufReader<TcpStream>, interval: Duration, signals: &Signals) -> LongReport {
    let mut report = LongReport { echoes: 0, broken: None };
    loop {
        // Read before the echo, so that the last echo comes after the request to stop.
        let last = signals.stop.load(Ordering::Relaxed);
        match echo_once(&mut lines, report.echoes) {
            Ok(()) => report.echoes += 1,
            Err(error) => report.broken = Some(error.to_string()),
        }
        signals.done.fetch_add(1, Ordering::Relaxed);
        if last || report.broken.is_some() {
            return report;
        }
        thread::sleep(interval);
    }
}

fn echo_once(lines: &mut BufReader<TcpStream>, number: usize) -> io::Result<()> {
    let sent = format!("still here {number}");
    lines.get_mut().write_all(format!("{sent}\n").as_bytes())?;
    match read_line(lines)? {
        line if line == sent => Ok(()),
        line => Err(io::Error::new(io::ErrorKind::InvalidData, format!("sent {sent:?}, got {line:?}"))),
    }
}

fn read_line(lines: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut line = String::new();
    if lines.read_line(&mut line)? == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the other end closed"));
    }
    Ok(line.trim_end().to_owned())
}

/// Shared by a worker and its owner.
#[derive(Debug, Default)]
struct Signals {
    stop: AtomicBool,
    /// Requests, or echoes.
    done: AtomicUsize,
}

/// A thread in a namespace, which can be stopped. Dropping it stops it.
#[derive(Debug)]
struct Worker<T> {
    signals: Arc<Signals>,
    thread: Option<JoinHandle<Result<T>>>,
}

impl<T: Send + 'static> Worker<T> {
    fn start(from: &Namespace, work: impl FnOnce(&Signals) -> T + Send + 'static) -> Result<Worker<T>> {
        let signals = Arc::new(Signals::default());
        let its = Arc::clone(&signals);
        let thread = Some(from.spawn(move || work(&its))?);
        Ok(Worker { signals, thread })
    }
}

impl<T> Worker<T> {
    fn join(&mut self) -> Result<T> {
        match self.thread.take() {
            Some(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            None => Err(LabError::unknown("thread", "already joined")),
        }
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        self.signals.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A caller that drops it is not interested in the error.
            drop(thread.join());
        }
    }
}
