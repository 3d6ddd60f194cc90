//! Writes rules with `iptables-restore`: in portions that suit the tool, and again if it did not get the lock. The caller
//! decides what to write.

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
/// Since this version `iptables-restore` can wait for the lock. Older ones fail at once, and are run again.
const KNOWS_WAIT: Version = Version(1, 6, 2);

/// Statistics about a restore.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Receipt {
    /// How often the tool ran: 1, and one more for each time it did not get the lock.
    pub runs: u32,
    /// Of the input.
    pub bytes: usize,
    pub lines: usize,
    /// Each takes effect as a whole. In nf_tables each raises the generation by one, or not at all if nothing changed.
    pub commits: usize,
    /// Time in runs that did not get the lock, and between them. How long the successful run waited for the lock is unknown:
    /// it counts as `tool_time`.
    pub waited: Duration,
    /// Time of the successful run.
    pub tool_time: Duration,
    /// Of the successful run. Notifications of nf_tables carry it.
    pub pid: u32,
}

/// Applies `text`, which is in the format of `iptables-save`. Chains that it does not mention stay as they are. A usual table
/// is one commit; a very large one, in nf_tables, becomes several: see [`super::portion`]. After an [`Error::Refused`] the
/// commits before the refused line are in force.
pub fn restore(tools: &Tools, text: &str, limits: &Limits) -> Result<Receipt, Error> {
    restore_attended(tools, text, limits, &())
}

/// The same with an attendant.
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

/// For a text that is already arranged.
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
    // Its standard output is not used: errors come on standard error.
    program.run_attended(&mut lines.iter().copied(), &mut |_| ControlFlow::Continue(()), attendant)
}

fn refused(tools: &Tools, ended: &Ended, said: String, number: Option<usize>, lines: &[&str]) -> Error {
    let line = refusal::find_line(&said, number, lines);
    let chain = line.and_then(refusal::chain).map(str::to_owned);
    let line = line.map(str::to_owned);
    Error::Refused(Box::new(Refusal { tool: name(tools), status: ended.status, said, line, chain }))
}

/// Twice as long each time, randomized, so that two waiting programs do not collide again and again.
fn pause(attempt: u32) -> Duration {
    let longest = FIRST_PAUSE * 2u32.saturating_pow(attempt.min(6));
    // The hash keys of the standard library are random.
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
