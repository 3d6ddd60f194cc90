//! Figures of this process from procfs.

use std::fs;
use std::io;

use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::process::{Figures, Thread};

pub fn figures() -> Figures {
    let ticks = clock_ticks_per_second() as f64;
    let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let stat = Stat::parse(&text);
    let start = |stat: &Stat| Some(boot_time()? as f64 + stat.start_ticks as f64 / ticks);
    Figures {
        cpu_seconds: stat.as_ref().map(|stat| (stat.user_ticks + stat.system_ticks) as f64 / ticks),
        resident_bytes: stat.as_ref().map(|stat| stat.resident_pages * page_size() as u64),
        virtual_bytes: stat.as_ref().map(|stat| stat.virtual_bytes),
        virtual_bytes_limit: Some(getrlimit(Resource::As).current.unwrap_or(u64::MAX)),
        start_time_seconds: stat.as_ref().and_then(start),
        threads: stat.as_ref().map(|stat| stat.threads),
        open_files: open_files(),
        open_files_limit: getrlimit(Resource::Nofile).current,
    }
}

pub fn threads() -> Vec<Thread> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    // A thread that has ended since it was listed is left out.
    let thread = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("stat")).ok()?;
        thread(task.file_name().to_str()?.parse().ok()?, &text)
    };
    tasks.filter_map(thread).collect()
}

pub fn raise_open_files_limit() -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    Ok(setrlimit(Resource::Nofile, raised)?)
}

fn open_files() -> Option<u64> {
    let open = fs::read_dir("/proc/self/fd").ok()?.count() as u64;
    // The directory being read is one of them.
    Some(open.saturating_sub(1))
}

fn thread(id: u64, text: &str) -> Option<Thread> {
    let stat = Stat::parse(text)?;
    let seconds = |ticks: u64| ticks as f64 / clock_ticks_per_second() as f64;
    Some(Thread {
        id,
        name: stat.name.to_owned(),
        state: stat.state,
        user_seconds: seconds(stat.user_ticks),
        system_seconds: seconds(stat.system_ticks),
    })
}

/// Fields of `/proc/self/stat`, or of a thread's.
#[derive(Debug, PartialEq)]
struct Stat<'a> {
    name: &'a str,
    state: char,
    user_ticks: u64,
    system_ticks: u64,
    threads: u64,
    start_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Stat<'_> {
    fn parse(text: &str) -> Option<Stat<'_>> {
        // The name is in parentheses, and may contain parentheses itself.
        let (name, rest) = text.split_once('(')?.1.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        // proc(5) counts from 1; the first field here is its third.
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        Some(Stat {
            name,
            state: fields.first()?.chars().next()?,
            user_ticks: number(14)?,
            system_ticks: number(15)?,
            threads: number(20)?,
            start_ticks: number(22)?,
            virtual_bytes: number(23)?,
            resident_pages: number(24)?,
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
    fn a_name_may_contain_parentheses() {
        let text =
            "7 (a) b) S 1 7 7 0 -1 4194304 100 0 0 0 21 4 0 0 20 0 3 0 5000 1048576 300 18446744073709551615";
        let expected = Stat {
            name: "a) b",
            state: 'S',
            user_ticks: 21,
            system_ticks: 4,
            threads: 3,
            start_ticks: 5000,
            virtual_bytes: 1_048_576,
            resident_pages: 300,
        };
        assert_eq!(Stat::parse(text), Some(expected));
        assert_eq!(Stat::parse("7 (a"), None);
    }

    #[test]
    fn this_process_has_every_figure() {
        let figures = figures();
        let Figures {
            cpu_seconds: Some(_),
            resident_bytes: Some(resident),
            virtual_bytes: Some(size),
            virtual_bytes_limit: Some(_),
            start_time_seconds: Some(_),
            threads: Some(threads),
            open_files: Some(files),
            open_files_limit: Some(_) | None,
        } = figures
        else {
            panic!("{figures:?}")
        };
        assert!(resident > 0 && size >= resident && threads >= 1 && files >= 3, "{figures:?}");
    }

    #[test]
    fn this_thread_is_listed_by_name() {
        let name = || threads().into_iter().find(|thread| thread.name == "named-for-test");
        let found = std::thread::Builder::new().name("named-for-test".to_owned()).spawn(name).unwrap();
        assert_eq!(found.join().unwrap().unwrap().state, 'R');
    }
}
