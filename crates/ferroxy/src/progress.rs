//! The step that a command waits for: a line on a terminal while work takes longer than a second. The line is removed when
//! the work is done; it is never written to pipes and files.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The delay before a step is shown, and the interval at which its line is updated.
const SECOND: Duration = Duration::from_secs(1);

/// The current step of the work, in a few words: a line that wraps could not be removed.
#[derive(Debug, Default)]
pub struct Step(Mutex<String>);

impl Step {
    pub fn is(&self, words: impl Into<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = words.into();
    }

    fn words(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Does some work of one step.
pub fn while_waiting<T>(words: &str, work: impl FnOnce() -> T) -> T {
    in_steps(|step| {
        step.is(words);
        work()
    })
}

/// Does work that reports its current step.
pub fn in_steps<T>(work: impl FnOnce(&Step) -> T) -> T {
    let step = Step::default();
    if !io::stderr().is_terminal() {
        return work(&step);
    }
    let (working, done) = channel::<()>();
    thread::scope(|scope| {
        let shown = &step;
        scope.spawn(move || {
            let (began, mut is_shown) = (Instant::now(), false);
            // Errors are ignored: if the terminal is gone, no progress is needed.
            while done.recv_timeout(SECOND) == Err(RecvTimeoutError::Timeout) {
                is_shown = true;
                let _ =
                    write!(io::stderr(), "{REMOVE_LINE}{}: {} s", shown.words(), began.elapsed().as_secs());
            }
            if is_shown {
                let _ = write!(io::stderr(), "{REMOVE_LINE}");
            }
        });
        let result = work(&step);
        drop(working);
        result
    })
}

const REMOVE_LINE: &str = "\r\x1b[K";
