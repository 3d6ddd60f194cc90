//! `/debug/`: profiles of this process and its log level, for people who look for a problem. Off unless profiling is asked
//! for.

use std::fmt::Write;
use std::fs;
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};
use tokio::time::timeout;

#[cfg(feature = "profiling")]
use super::cpu_profile;
use super::http::{self, Answer, Pending, TEXT};
use super::metrics_server::not_allowed;
use crate::log;

pub const PATHS: &[&str] = &[
    "/debug/flags/v",
    "/debug/pprof/",
    "/debug/pprof/cmdline",
    "/debug/pprof/heap",
    #[cfg(feature = "profiling")]
    "/debug/pprof/profile",
    "/debug/pprof/threads",
];

const INDEX: &str = "\
cmdline   the command line, its words divided by a zero byte
heap      what the allocator holds, as text
threads   the threads and their CPU time, as text
";

/// A log level is a small number.
const LARGEST_LEVEL: usize = 16;
const SLOWEST_LEVEL: Duration = Duration::from_secs(5);

pub fn answer(request: Request<Incoming>) -> Pending {
    let path = request.uri().path();
    if path == "/debug/flags/v" {
        return Box::pin(log_level(request));
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return http::at_once(not_allowed("GET, HEAD"));
    }
    let text = |body: String| http::at_once(http::answer(StatusCode::OK, TEXT, body));
    match path {
        #[cfg(feature = "profiling")]
        "/debug/pprof/" => text(format!("{INDEX}{}", cpu_profile::INDEX)),
        #[cfg(not(feature = "profiling"))]
        "/debug/pprof/" => text(INDEX.to_owned()),
        "/debug/pprof/cmdline" => text(command_line()),
        "/debug/pprof/heap" => http::at_once(heap()),
        "/debug/pprof/threads" => text(threads()),
        #[cfg(feature = "profiling")]
        "/debug/pprof/profile" => cpu_profile::answer(request.uri().query()),
        _ => http::at_once(http::not_found()),
    }
}

/// `PUT` with the level as the body, as the original takes it.
async fn log_level(request: Request<Incoming>) -> Answer {
    if request.method() != Method::PUT {
        return not_allowed("PUT");
    }
    let body = timeout(SLOWEST_LEVEL, Limited::new(request.into_body(), LARGEST_LEVEL).collect()).await;
    let level = match body {
        Ok(Ok(body)) => level(&body.to_bytes()),
        _ => None,
    };
    match level {
        Some(level) => {
            log::set_verbosity(level);
            http::answer(
                StatusCode::OK,
                TEXT,
                format!("successfully set klog.logging.verbosity to {level}\n"),
            )
        }
        None => http::answer(StatusCode::BAD_REQUEST, TEXT, "the body must be a log level, such as 4\n"),
    }
}

fn level(body: &[u8]) -> Option<u32> {
    std::str::from_utf8(body).ok()?.trim().parse().ok()
}

fn command_line() -> String {
    let words: Vec<String> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    words.join("\0")
}

/// Where threads spend their time, for when a name is enough.
fn threads() -> String {
    let mut page = format!("{:>8} {:<16} {:<5} {:>12} {:>12}\n", "id", "name", "state", "user", "system");
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    for task in tasks {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        // One that has just ended has nothing to say.
        let Some(thread) = Thread::parse(&stat) else { continue };
        let seconds = |ticks: u64| ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
        let (id, name, state) = (task.file_name(), thread.name, thread.state);
        let (user, system) = (seconds(thread.user_ticks), seconds(thread.system_ticks));
        let _ =
            writeln!(page, "{:>8} {name:<16} {state:<5} {user:>11.2}s {system:>11.2}s", id.to_string_lossy());
    }
    page
}

/// Of `/proc/self/task/*/stat`.
#[derive(Debug, PartialEq)]
struct Thread<'a> {
    name: &'a str,
    state: &'a str,
    user_ticks: u64,
    system_ticks: u64,
}

impl Thread<'_> {
    fn parse(stat: &str) -> Option<Thread<'_>> {
        // The name is in parentheses, and may hold some itself.
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        // proc(5) counts from 1; the first here is its third.
        let number = |field: usize| fields.get(field - 3)?.parse().ok();
        Some(Thread { name, state: fields.first()?, user_ticks: number(14)?, system_ticks: number(15)? })
    }
}

#[cfg(target_env = "gnu")]
fn heap() -> Answer {
    // SAFETY: mallinfo2 reads the allocator's numbers under its locks; it has no preconditions.
    let info = unsafe { libc::mallinfo2() };
    let page = format!(
        "in use            {:>12} bytes\nfree, kept        {:>12} bytes\nfrom the system   {:>12} bytes\n\
         of large blocks   {:>12} bytes in {} blocks\ncould be released {:>12} bytes\n",
        info.uordblks, info.fordblks, info.arena, info.hblkhd, info.hblks, info.keepcost,
    );
    http::answer(StatusCode::OK, TEXT, page)
}

#[cfg(not(target_env = "gnu"))]
fn heap() -> Answer {
    http::answer(StatusCode::NOT_IMPLEMENTED, TEXT, "this allocator does not tell what it holds\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_a_number() {
        assert_eq!(level(b"4"), Some(4));
        assert_eq!(level(b" 10\n"), Some(10));
        for wrong in [&b"-1"[..], b"", b"four", b"\xff"] {
            assert_eq!(level(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn threads_are_told_by_name() {
        let stat = "9 (a) b) S 1 7 7 0 -1 4194304 100 0 0 0 21 4 0 0 20 0 3 0 5000 1048576 300";
        let expected = Thread { name: "a) b", state: "S", user_ticks: 21, system_ticks: 4 };
        assert_eq!(Thread::parse(stat), Some(expected));
        assert_eq!(Thread::parse("9 (a"), None);
        assert!(threads().lines().count() >= 2);
    }
}
