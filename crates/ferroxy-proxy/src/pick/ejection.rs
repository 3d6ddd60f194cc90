//! Ejection: which endpoints are left out after failed dials, and the panic rule.

use crate::clock::{NEVER, Nanos, nanos};
use crate::config::Ejection;

/// The ejections of one endpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Record {
    /// The number of ejections in a row.
    pub times: u32,
    /// Left out before this moment.
    pub until: Nanos,
}

impl Record {
    pub fn is_ejected(&self, now: Nanos) -> bool {
        now < self.until
    }

    /// One more ejection. After a long time without one it counts as the first again.
    pub fn ejected(self, rule: &Ejection, now: Nanos) -> Record {
        let most = nanos(rule.most);
        let is_first = self.times == 0 || now.saturating_sub(self.until) > most;
        let times = if is_first { 1 } else { self.times.saturating_add(1) };
        let length = nanos(rule.base).saturating_mul(Nanos::from(times)).min(most);
        Record { times, until: now.saturating_add(length) }
    }
}

/// The members that may be chosen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usable {
    pub members: Vec<u32>,
    /// Too few members would remain, so that all are used.
    pub in_panic: bool,
    /// When the next ejection ends, and this has to be computed again.
    pub until: Nanos,
}

/// Leaves out ejected members, unless fewer than half would remain.
pub fn usable(records: &[Record], now: Nanos) -> Usable {
    let ends = records.iter().filter(|it| it.is_ejected(now)).map(|it| it.until);
    let until = ends.min().unwrap_or(NEVER);
    let all = (0u32..).zip(records);
    let members: Vec<u32> = all.filter(|(_, it)| !it.is_ejected(now)).map(|(member, _)| member).collect();
    if members.len() * 2 < records.len() {
        let everyone = (0u32..).zip(records).map(|(member, _)| member).collect();
        return Usable { members: everyone, in_panic: true, until };
    }
    Usable { members, in_panic: false, until }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_ejection_in_a_row_is_longer_up_to_a_bound() {
        let rule = Ejection::default();
        let second = 1_000_000_000;
        let first = Record::default().ejected(&rule, 0);
        assert_eq!(first, Record { times: 1, until: 30 * second });
        let again = first.ejected(&rule, 31 * second);
        assert_eq!(again, Record { times: 2, until: 91 * second });
        let often = Record { times: 50, until: 0 }.ejected(&rule, 1);
        assert_eq!(often.until, 300 * second + 1);
        assert_eq!(again.ejected(&rule, 1_000 * second).times, 1, "forgotten");
    }

    #[test]
    fn the_last_one_is_never_left_out() {
        let gone = Record { times: 1, until: 100 };
        let fine = Record::default();
        assert_eq!(usable(&[gone], 5).members, [0]);
        assert_eq!(usable(&[gone, fine], 5), Usable { members: vec![1], in_panic: false, until: 100 });
        assert!(usable(&[gone, gone, fine], 5).in_panic);
        assert_eq!(usable(&[gone, fine], 100), Usable { members: vec![0, 1], in_panic: false, until: NEVER });
    }
}
