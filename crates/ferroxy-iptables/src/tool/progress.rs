//! Decides whether a running program hangs, from what it used since the last look. Pure: reads no clock and no `/proc`.
//!
//! Wall-clock time does not count, because on a loaded node a program waits for a processor for as long as others use it. A
//! program hangs when it sleeps, and neither uses CPU time nor reads or writes its pipes, for the whole limit. One that
//! computes without end is stopped when it has used the limit in CPU time.

use std::fmt;
use std::time::Duration;

use super::usage::Usage;

/// Why a program was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overrun {
    /// It slept for the whole limit.
    NoProgress,
    /// It used more CPU time than the limit.
    CpuTime,
}

#[derive(Debug)]
pub(super) struct Progress {
    limit: Duration,
    /// How long the program has done nothing, in time that this process could observe.
    idle: Duration,
    cpu: Duration,
}

impl Progress {
    pub fn new(limit: Duration) -> Progress {
        Progress { limit, idle: Duration::ZERO, cpu: Duration::ZERO }
    }

    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// The program was ready to read or write.
    pub fn moved(&mut self) {
        self.idle = Duration::ZERO;
    }

    /// The program was not ready to read or write for `step`. `step` is the requested timeout, not the elapsed time: that is longer
    /// if this process itself had to wait for a processor.
    pub fn silent(&mut self, step: Duration, usage: Option<Usage>) -> Option<Overrun> {
        let Usage { cpu, runnable } = usage.unwrap_or(Usage { cpu: self.cpu, runnable: false });
        if cpu >= self.limit {
            return Some(Overrun::CpuTime);
        }
        self.idle = if runnable || cpu > self.cpu { Duration::ZERO } else { self.idle + step };
        self.cpu = cpu;
        (self.idle >= self.limit).then_some(Overrun::NoProgress)
    }
}

impl fmt::Display for Overrun {
    /// The caller appends the limit.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Overrun::NoProgress => "made no progress for",
            Overrun::CpuTime => "used more CPU time than",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);
    const STEP: Duration = Duration::from_secs(1);

    /// What a program did in one step: CPU time in milliseconds, and whether it is running or waiting for a processor.
    enum Step {
        Sleeps,
        Runs(u64),
        WaitsForProcessor,
        Moves,
        Unknown,
    }
    use Step::{Moves, Runs, Sleeps, Unknown, WaitsForProcessor};

    /// The number of the step after which it is killed, and why.
    fn killed(steps: impl IntoIterator<Item = Step>) -> Option<(usize, Overrun)> {
        let mut progress = Progress::new(LIMIT);
        let mut cpu = Duration::ZERO;
        let mut number = 0;
        steps.into_iter().find_map(|step| {
            number += 1;
            let usage = match step {
                Moves => {
                    progress.moved();
                    return None;
                }
                Unknown => None,
                Sleeps => Some(Usage { cpu, runnable: false }),
                WaitsForProcessor => Some(Usage { cpu, runnable: true }),
                Runs(milliseconds) => {
                    cpu += Duration::from_millis(milliseconds);
                    Some(Usage { cpu, runnable: false })
                }
            };
            progress.silent(STEP, usage).map(|overrun| (number, overrun))
        })
    }

    fn repeat(times: usize, step: fn() -> Step) -> impl Iterator<Item = Step> {
        std::iter::repeat_with(step).take(times)
    }

    #[test]
    fn a_program_that_sleeps_for_the_limit_hangs() {
        assert_eq!(killed(repeat(9, || Sleeps)), None);
        assert_eq!(killed(repeat(99, || Sleeps)), Some((10, Overrun::NoProgress)));
    }

    #[test]
    fn a_program_that_waits_for_a_processor_does_not_hang() {
        assert_eq!(killed(repeat(9999, || WaitsForProcessor)), None);
    }

    #[test]
    fn a_little_work_now_and_then_is_progress() {
        let round = || repeat(9, || Sleeps).chain([Runs(10)]);
        assert_eq!(killed((0..99).flat_map(|_| round())), None);
        let round = || repeat(9, || Sleeps).chain([Moves]);
        assert_eq!(killed((0..999).flat_map(|_| round())), None);
    }

    #[test]
    fn cpu_time_is_limited_in_total() {
        assert_eq!(killed(repeat(99, || Runs(1000))), Some((10, Overrun::CpuTime)));
        let round = || [Runs(500), Sleeps, Moves, WaitsForProcessor];
        assert_eq!(killed((0..99).flat_map(|_| round())), Some((77, Overrun::CpuTime)));
    }

    #[test]
    fn without_figures_only_the_pipes_count() {
        assert_eq!(killed(repeat(99, || Unknown)), Some((10, Overrun::NoProgress)));
        assert_eq!(killed(repeat(9, || Unknown).chain([Moves]).chain(repeat(9, || Unknown))), None);
    }
}
