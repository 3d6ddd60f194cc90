//! The results of the probes of one endpoint so far. A verdict changes only after several results in a row, so that a
//! flapping endpoint does not cost a change of rules each time.

use ferroxy_core::probe::{Fault, Probe};

use crate::Outcome;

/// An endpoint without results counts as up.
#[derive(Debug, Default)]
pub(crate) struct Record {
    is_down: bool,
    /// Results in a row that contradict the verdict.
    doubts: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    Down(Fault),
    Up,
}

impl Record {
    /// Adds one result. Returns the verdict if it changes.
    pub(crate) fn add(&mut self, outcome: Outcome, probe: &Probe) -> Option<Turn> {
        let (turn, needed) = match (self.is_down, outcome) {
            (false, Outcome::Failed(fault)) => (Turn::Down(fault), probe.failures),
            // Silence proves nothing. But an endpoint goes down only by an explicit error, and silence is the absence
            // of this error.
            (true, Outcome::Passed | Outcome::Silent) => (Turn::Up, probe.successes),
            (false, Outcome::Passed) | (true, Outcome::Failed(_)) => {
                self.doubts = 0;
                return None;
            }
            (false, Outcome::Silent) | (_, Outcome::NotSent) => return None,
        };
        self.doubts += 1;
        if self.doubts < needed {
            return None;
        }
        *self = Record { is_down: !self.is_down, doubts: 0 };
        Some(turn)
    }

    /// Whether the next result may change the verdict.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.doubts > 0
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ferroxy_core::probe::Check;

    use super::*;

    fn probe(failures: u32, successes: u32) -> Probe {
        let (interval, timeout) = (Duration::from_secs(5), Duration::from_secs(1));
        Probe { check: Check::Tcp, port: None, interval, timeout, failures, successes }
    }

    const FAILED: Outcome = Outcome::Failed(Fault::Refused);
    const DOWN: Option<Turn> = Some(Turn::Down(Fault::Refused));
    const UP: Option<Turn> = Some(Turn::Up);

    fn check(failures: u32, successes: u32, results: &[(Outcome, Option<Turn>)]) {
        let (mut record, probe) = (Record::default(), probe(failures, successes));
        for (number, (outcome, expected)) in results.iter().enumerate() {
            assert_eq!(record.add(*outcome, &probe), *expected, "result {number} of {results:?}");
        }
    }

    #[test]
    fn so_many_in_a_row_turn_the_verdict() {
        check(
            1,
            1,
            &[(FAILED, DOWN), (FAILED, None), (Outcome::Passed, UP), (Outcome::Passed, None), (FAILED, DOWN)],
        );
        check(
            3,
            2,
            &[
                (FAILED, None),
                (FAILED, None),
                (Outcome::Passed, None),
                (FAILED, None),
                (FAILED, None),
                (FAILED, DOWN),
                (Outcome::Passed, None),
                (FAILED, None),
                (Outcome::Passed, None),
                (Outcome::Passed, UP),
            ],
        );
    }

    #[test]
    fn one_that_flaps_keeps_its_verdict() {
        let flapping: Vec<_> =
            (0..100).map(|n| (if n % 2 == 0 { FAILED } else { Outcome::Passed }, None)).collect();
        check(3, 2, &flapping);
    }

    #[test]
    fn silence_neither_fails_nor_passes_and_ends_a_failure() {
        let silent = (Outcome::Silent, None);
        check(
            2,
            2,
            &[silent, silent, silent, (FAILED, None), silent, (FAILED, DOWN), silent, (Outcome::Silent, UP)],
        );
    }

    #[test]
    fn what_was_not_sent_says_nothing() {
        let not_sent = (Outcome::NotSent, None);
        check(
            2,
            2,
            &[
                (FAILED, None),
                not_sent,
                (FAILED, DOWN),
                (Outcome::Passed, None),
                not_sent,
                (Outcome::Passed, UP),
            ],
        );
    }
}
