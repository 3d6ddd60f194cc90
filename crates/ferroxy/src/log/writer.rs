//! Writes lines. A thread that logs never waits.
//!
//! An unread pipe is full after 64 KiB, and then a write blocks. Only the thread of this file blocks: lines wait in
//! `backlog.rs`, which drops lines beyond its bound. Before that thread exists (privileges are given up first, and signals
//! blocked) the thread that logs writes the line itself if the stream has room; otherwise the line waits as well.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ferroxy_platform::streams::{self, Output, SHORT};
use tracing::warn;

use super::backlog::{Backlog, To};
use super::file::{self, LogFile};
use super::limit;

/// How long the end of the process waits for its last lines to be read.
const LAST_WORDS: Duration = Duration::from_secs(1);

static WRITER: OnceLock<Writer> = OnceLock::new();

static DROPPED: AtomicU64 = AtomicU64::new(0);

#[derive(Debug)]
struct Writer {
    stdout: Sink,
    stderr: Sink,
    /// How often lines that are held back are written.
    every: Option<Duration>,
    state: Mutex<State>,
    more: Condvar,
    written: Condvar,
}

#[derive(Debug, Default)]
struct State {
    backlog: Backlog,
    has_thread: bool,
    /// The thread holds lines that it has not written yet.
    is_writing: bool,
}

/// The destination of lines.
#[derive(Debug)]
enum Sink {
    Stream(Output),
    File(&'static LogFile),
}

impl Sink {
    /// The sink for a stream, or for the file that was chosen instead.
    fn open(stream: fn() -> io::Result<Output>) -> io::Result<Sink> {
        file::chosen().map_or_else(|| stream().map(Sink::Stream), |file| Ok(Sink::File(file)))
    }

    fn has_room(&self, wait: Duration) -> bool {
        match self {
            Sink::Stream(output) => output.has_room(wait),
            Sink::File(_) => true,
        }
    }

    fn write_all(&self, lines: &[u8]) -> io::Result<()> {
        match self {
            Sink::Stream(output) => output.write_all(lines),
            Sink::File(file) => file.write_all(lines),
        }
    }
}

/// The next work of the thread.
struct Work {
    batch: Option<(To, Vec<u8>)>,
    /// How many lines were dropped, and the stream of the last one.
    dropped: Option<(u64, To)>,
}

/// Lines may be written from now on. Lines for standard output may wait for at most `hold` bytes and for `every`.
pub(super) fn open(hold: usize, every: Option<Duration>) -> io::Result<()> {
    let (stdout, stderr) = (Sink::open(streams::stdout)?, Sink::open(streams::stderr)?);
    let state = State { backlog: Backlog::holding(hold), ..State::default() };
    WRITER.get_or_init(|| Writer {
        stdout,
        stderr,
        every,
        state: Mutex::new(state),
        more: Condvar::new(),
        written: Condvar::new(),
    });
    Ok(())
}

/// Starts the thread that writes. Call it once privileges are given up and signals are blocked: threads inherit both.
pub fn write_in_background() {
    let Some(writer) = WRITER.get() else { return };
    writer.state().has_thread = true;
    if let Err(error) = thread::Builder::new().name("log".to_owned()).spawn(|| writer.run()) {
        writer.state().has_thread = false;
        warn!(
            "cannot start the thread that writes the log: {error}; lines are written when the stream has room"
        );
    }
}

/// How many lines were dropped because a stream was full.
pub fn dropped() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

/// Waits until everything is written, for a second at most.
pub(super) fn flush() {
    if let Some(writer) = WRITER.get() {
        writer.flush(Instant::now() + LAST_WORDS);
    }
}

/// Writes a whole line. Returns `false` while nothing is open.
pub(super) fn write(to: To, line: &[u8]) -> bool {
    WRITER.get().inspect(|writer| writer.push(to, line)).is_some()
}

impl Writer {
    fn push(&self, to: To, line: &[u8]) {
        let mut state = self.state();
        if !state.backlog.push(to, line, SHORT) {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
        if !state.has_thread {
            self.write_what_fits(&mut state.backlog, Instant::now());
        } else if state.backlog.is_urgent {
            self.more.notify_one();
        }
    }

    /// Runs on the thread of the caller, which must not block.
    fn write_what_fits(&self, backlog: &mut Backlog, until: Instant) {
        while let Some((to, piece)) = backlog.first().filter(|_| backlog.is_urgent) {
            let output = self.output(to);
            if !output.has_room(until.saturating_duration_since(Instant::now())) {
                return;
            }
            // An error means that the reader is gone: there is nowhere to report it.
            let _ = output.write_all(piece);
            backlog.remove_first();
        }
    }

    fn run(&self) {
        loop {
            let Work { batch, dropped } = self.next();
            if let Some((lines, to)) = dropped {
                warn!("{lines} log lines were dropped: {} was full", to.as_str());
            }
            for (place, lines) in limit::report(Instant::now()) {
                warn!("{lines} more log lines of {place} were suppressed: too many of them");
            }
            if let Some((to, text)) = batch {
                let _ = self.output(to).write_all(&text);
            }
            let mut state = self.state();
            state.is_writing = false;
            if state.backlog.is_empty() {
                self.written.notify_all();
            }
        }
    }

    /// Waits for something to write or to report.
    fn next(&self) -> Work {
        let mut state = self.state();
        if !state.backlog.is_urgent {
            let wait = self.every.unwrap_or(limit::REPORT_EVERY).min(limit::REPORT_EVERY);
            state = self.more.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
            state.backlog.is_urgent = !state.backlog.is_empty();
        }
        state.is_writing = true;
        let batch = state.backlog.take();
        // Reported after all waiting lines: this is where lines are missing.
        let dropped = if state.backlog.is_empty() { state.backlog.take_dropped() } else { None };
        Work { batch, dropped }
    }

    fn flush(&self, until: Instant) {
        let mut state = self.state();
        state.backlog.is_urgent |= !state.backlog.is_empty();
        if !state.has_thread {
            return self.write_what_fits(&mut state.backlog, until);
        }
        self.more.notify_one();
        while !state.backlog.is_empty() || state.is_writing {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.written.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn output(&self, to: To) -> &Sink {
        match to {
            To::Stderr => &self.stderr,
            To::Stdout => &self.stdout,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
