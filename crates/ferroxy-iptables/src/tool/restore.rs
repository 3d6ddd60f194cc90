//! Writes rules with `iptables-restore`: in portions that suit the tool, again when the lock was not to be had, and with an
//! account of what it took. What to write is its callers' knowledge.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::ops::ControlFlow;
use std::time::Duration;

use super::portion::Portions;
use super::process::{Ended, Program};
use super::refusal::{self, Verdict};
use super::{Attendant, Error, Limits, Refusal, Tools, Variant, Version, lock};

/// The first pause after a run that did not get the lock; each is twice the last.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// `iptables-restore` learned to wait for the lock here. Older ones fail at once, and are tried again all the same.
const KNOWS_WAIT: Version = Version(1, 6, 2);

/// What a restore took.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Receipt {
    /// How often the tool was run: 1, and one more for each time the lock was not to be had.
    pub runs: u32,
    /// As the tool was given them.
    pub bytes: usize,
    pub lines: usize,
    /// Each takes effect as a whole. In nf_tables each raises the generation by one, or by none if nothing changed.
    pub commits: usize,
    /// In runs that did not get the lock, and in pauses between them. How long the last run waited before it got the lock
    /// is not known: it counts as the tool's time.
    pub waited: Duration,
    /// In the run that did it.
    pub tool_time: Duration,
    /// Of the run that did it. Notifications of nf_tables name it as their originator.
    pub pid: u32,
}

/// Puts `text` in force. It is in the format of `iptables-save`, and what it does not mention is left alone. A table of
/// everyday size is one commit; a larger one, in nf_tables, becomes several: see [`super::portion`]. After an
/// [`Error::Refused`] the commits before the refused line are in force.
pub fn restore(tools: &Tools, text: &str, limits: &Limits) -> Result<Receipt, Error> {
    restore_attended(tools, text, limits, &())
}

/// The same with somebody who stands by.
pub fn restore_attended(
    tools: &Tools,
    text: &str,
    limits: &Limits,
    attendant: &dyn Attendant,
) -> Result<Receipt, Error> {
    let portions = match tools.variant {
        Variant::NfTables => Portions::of(text),
        Variant::Legacy => Portions::for_legacy(text),
    };
    run_all(tools, &portions, limits, attendant)
}

/// For a text that is arranged already.
pub fn restore_portions(tools: &Tools, portions: &Portions<'_>, limits: &Limits) -> Result<Receipt, Error> {
    run_all(tools, portions, limits, &())
}

fn run_all(
    tools: &Tools,
    portions: &Portions<'_>,
    limits: &Limits,
    attendant: &dyn Attendant,
) -> Result<Receipt, Error> {
    if tools.variant == Variant::Legacy {
        lock::prepare()?;
    }
    let lines = portions.lines();
    let bytes = lines.iter().map(|line| line.len() + 1).sum();
    let mut receipt =
        Receipt { bytes, lines: lines.len(), commits: portions.commits(), ..Receipt::default() };
    for attempt in 0..limits.attempts.max(1) {
        if attempt > 0 {
            let pause = pause(attempt);
            std::thread::sleep(pause);
            receipt.waited += pause;
        }
        let ended = run(tools, lines, limits, attendant)?;
        receipt.runs += 1;
        if ended.status == 0 {
            receipt.tool_time = ended.took;
            receipt.pid = ended.pid;
            return Ok(receipt);
        }
        match refusal::judge(&ended.said) {
            Verdict::Locked => receipt.waited += ended.took,
            Verdict::NoLockFile { why } => {
                return Err(Error::LockFile { path: lock::path(), source: io::Error::other(why) });
            }
            Verdict::Refused { said, line } => {
                return Err(refused(tools, &ended, said, line, lines));
            }
        }
    }
    Err(Error::Locked { tool: name(tools), runs: receipt.runs, waited: receipt.waited })
}

fn run(tools: &Tools, lines: &[&str], limits: &Limits, attendant: &dyn Attendant) -> Result<Ended, Error> {
    let seconds = limits.lock.as_secs().max(1).to_string();
    let mut arguments = vec!["--noflush", "--counters"];
    if tools.version >= KNOWS_WAIT {
        arguments.extend(["-w", &seconds]);
    }
    let program =
        Program { path: &tools.restore, arguments: &arguments, limit: limits.run, output: limits.output };
    // It prints nothing of use: its complaints come another way.
    program.run_attended(&mut lines.iter().copied(), &mut |_| ControlFlow::Continue(()), attendant)
}

fn refused(tools: &Tools, ended: &Ended, said: String, number: Option<usize>, lines: &[&str]) -> Error {
    let line = refusal::find_line(&said, number, lines);
    let chain = line.and_then(refusal::chain).map(str::to_owned);
    let line = line.map(str::to_owned);
    Error::Refused(Box::new(Refusal { tool: name(tools), status: ended.status, said, line, chain }))
}

/// Twice as long each time, give or take half, so that two who wait for each other do not meet again and again.
fn pause(attempt: u32) -> Duration {
    let longest = FIRST_PAUSE * 2u32.saturating_pow(attempt.min(6));
    // The standard library's hash keys are the nearest source of randomness.
    let random = (RandomState::new().build_hasher().finish() % 1000) as u32;
    longest / 2 + longest * random / 2000
}

fn name(tools: &Tools) -> String {
    tools.restore.file_name().unwrap_or(tools.restore.as_os_str()).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_differ() {
        for attempt in 1..9 {
            let longest = FIRST_PAUSE * 2u32.pow(attempt.min(6));
            let pauses: Vec<Duration> = (0..50).map(|_| pause(attempt)).collect();
            assert!(pauses.iter().all(|pause| *pause >= longest / 2 && *pause <= longest), "{pauses:?}");
            assert!(pauses.iter().any(|pause| *pause != pauses[0]));
        }
    }
}
