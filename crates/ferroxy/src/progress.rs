//! What a command waits for: a line on a terminal while work takes longer than a second. The line is gone when the work is done, and
//! pipes and files never have it.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long work takes before it is shown, and how often it is shown again.
const SECOND: Duration = Duration::from_secs(1);

/// The step of the work that is under way, in a few words: a line that wraps could not be removed.
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

/// Does some work that says which step is under way.
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
            // A terminal that is gone needs no progress.
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
