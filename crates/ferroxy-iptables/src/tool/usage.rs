//! Reads the CPU time of a process group from `/proc/PID/stat`, and whether any of its processes runs or waits for a processor.
//! `progress` judges the result.

use std::fs;
use std::time::Duration;

/// The usage of all processes of a group together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Usage {
    /// Including the time of children that have ended.
    pub cpu: Duration,
    /// One of them runs, or would if it had a processor.
    pub runnable: bool,
}

/// `None` when `/proc` has nothing about this group.
pub(super) fn of_group(group: u32) -> Option<Usage> {
    let processes = fs::read_dir("/proc").ok()?.filter_map(Result::ok);
    let numbered = processes.filter(|entry| entry.file_name().as_encoded_bytes()[0].is_ascii_digit());
    let stats = numbered.filter_map(|entry| {
        let text = fs::read(entry.path().join("stat")).ok()?;
        Stat::parse(&String::from_utf8_lossy(&text)).filter(|stat| stat.group == group)
    });
    let ticks_per_second = rustix::param::clock_ticks_per_second().max(1);
    let (mut known, mut runnable, mut ticks) = (false, false, 0);
    for stat in stats {
        known = true;
        runnable |= stat.state == 'R';
        ticks += stat.ticks;
    }
    let cpu = Duration::from_nanos(ticks.saturating_mul(1_000_000_000 / ticks_per_second));
    known.then_some(Usage { cpu, runnable })
}

#[derive(Debug, PartialEq)]
struct Stat {
    state: char,
    group: u32,
    /// User and system time, of the process and of its children that have ended.
    ticks: u64,
}

impl Stat {
    /// The second field is the program's name in parentheses, and may itself contain spaces and parentheses.
    fn parse(text: &str) -> Option<Stat> {
        let (_, rest) = text.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split(' ').collect();
        let times = fields.get(11..15)?.iter().map(|field| field.parse::<i64>().ok());
        let ticks = times.sum::<Option<i64>>()?;
        Some(Stat {
            state: fields.first()?.chars().next()?,
            group: fields.get(2)?.parse().ok()?,
            ticks: ticks.max(0).cast_unsigned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_after_any_name_are_found() {
        let text = "77 (sh) R (x) S 1 70 70 0 -1 4194560 100 200 0 0 12 3 400 5 20 0 1 0 9 1000 1 18446744073709551615";
        assert_eq!(Stat::parse(text), Some(Stat { state: 'S', group: 70, ticks: 420 }));
        assert_eq!(Stat::parse("77 (sh) S 1 70"), None);
        assert_eq!(Stat::parse(""), None);
    }

    #[test]
    fn this_process_is_in_its_group_and_no_process_is_in_a_group_that_is_not() {
        let own = Stat::parse(&fs::read_to_string("/proc/self/stat").unwrap()).unwrap();
        assert!(of_group(own.group).is_some());
        assert_eq!(of_group(u32::MAX), None);
    }
}
