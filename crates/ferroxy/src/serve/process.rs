//! This process as the kernel sees it, under the names that Prometheus' client libraries use.

use std::fs;

use super::exposition::{Exposition, Kind};

pub fn write(page: &mut Exposition) {
    if let Some(stat) = fs::read_to_string("/proc/self/stat").ok().as_deref().and_then(Stat::parse) {
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        let bytes = stat.resident_pages * rustix::param::page_size() as u64;
        let name = "process_cpu_seconds_total";
        page.single(Kind::Counter, name, "CPU time spent, user and system.", stat.cpu_ticks as f64 / ticks);
        page.single(Kind::Gauge, "process_resident_memory_bytes", "Memory in RAM.", bytes);
        page.single(Kind::Gauge, "process_virtual_memory_bytes", "Address space.", stat.virtual_bytes);
        let most = rustix::process::getrlimit(rustix::process::Resource::As).current.unwrap_or(u64::MAX);
        page.single(Kind::Gauge, "process_virtual_memory_max_bytes", "Address space that may be used.", most);
        if let Some(boot) = boot_time() {
            let started = boot as f64 + stat.start_ticks as f64 / ticks;
            page.single(Kind::Gauge, "process_start_time_seconds", "Start, as Unix time.", started);
        }
        page.single(Kind::Gauge, "process_threads", "Threads.", stat.threads);
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        // The directory being read is one of them.
        let open = open.count().saturating_sub(1);
        page.single(Kind::Gauge, "process_open_fds", "Open file descriptors.", open);
    }
    if let Some(most) = rustix::process::getrlimit(rustix::process::Resource::Nofile).current {
        page.single(Kind::Gauge, "process_max_fds", "File descriptors that may be open.", most);
    }
}

/// The fields of `/proc/self/stat` that are wanted.
#[derive(Debug, PartialEq)]
struct Stat {
    cpu_ticks: u64,
    threads: u64,
    start_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Stat {
    fn parse(text: &str) -> Option<Stat> {
        // The second field is the program's name in parentheses, and may hold anything, parentheses too.
        let after_name = &text[text.rfind(')')? + 1..];
        let fields: Vec<&str> = after_name.split_whitespace().collect();
        // proc(5) counts from 1; the first here is its third.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Stat {
            cpu_ticks: field(14)? + field(15)?,
            threads: field(20)?,
            start_ticks: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

fn boot_time() -> Option<u64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_confuses_nobody() {
        let text =
            "7 (a) b) S 1 7 7 0 -1 4194304 100 0 0 0 21 4 0 0 20 0 3 0 5000 1048576 300 18446744073709551615";
        let expected = Stat {
            cpu_ticks: 25,
            threads: 3,
            start_ticks: 5000,
            virtual_bytes: 1_048_576,
            resident_pages: 300,
        };
        assert_eq!(Stat::parse(text), Some(expected));
        assert_eq!(Stat::parse("7 (a"), None);
    }

    #[test]
    fn this_process_can_be_read() {
        let mut page = Exposition::default();
        write(&mut page);
        let text = page.finish();
        for name in ["process_cpu_seconds_total ", "process_start_time_seconds ", "process_open_fds "] {
            assert!(text.contains(&format!("\n{name}")), "{name} in {text}");
        }
    }
}
