//! `/debug/`: profiles of this process and its log level, for troubleshooting. Only served with `enableProfiling`.

use std::fmt::Write;
use std::fs;
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};
use tokio::time::timeout;

use super::http::{self, Answer, Pending, TEXT};
use super::metrics_server::not_allowed;
use super::pprof;
use super::profile::{self, Profile};
use crate::log;

pub const PATHS: [&str; 6] = [
    "/debug/flags/v",
    "/debug/pprof/",
    "/debug/pprof/cmdline",
    "/debug/pprof/heap",
    "/debug/pprof/profile",
    "/debug/pprof/threads",
];

const INDEX: &str = "\
cmdline   the command line, its words divided by a zero byte
heap      what the allocator holds, as text
profile   where CPU time is spent, for ?seconds=N (30 if not given), for pprof; to read it, pprof needs this program
          (`go tool pprof ferroxy profile`): the profile has addresses, and the names are in there
threads   the threads and their CPU time, as text
";

/// How long a profile may take.
const LONGEST_PROFILE: u64 = 300;
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
        "/debug/pprof/" => text(INDEX.to_owned()),
        "/debug/pprof/cmdline" => text(command_line()),
        "/debug/pprof/heap" => http::at_once(heap()),
        "/debug/pprof/threads" => text(threads()),
        "/debug/pprof/profile" => match seconds(request.uri().query()) {
            Some(seconds) => Box::pin(cpu_profile(Duration::from_secs(seconds))),
            None => {
                let words = format!("seconds must be a number from 1 to {LONGEST_PROFILE}\n");
                http::at_once(http::answer(StatusCode::BAD_REQUEST, TEXT, words))
            }
        },
        _ => http::at_once(http::not_found()),
    }
}

/// The requested number of seconds; `None` if it is out of range.
fn seconds(query: Option<&str>) -> Option<u64> {
    let pairs = query.unwrap_or_default().split('&');
    match pairs.filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == "seconds") {
        None => Some(30),
        Some((_, value)) => value.parse().ok().filter(|seconds| (1..=LONGEST_PROFILE).contains(seconds)),
    }
}

async fn cpu_profile(time: Duration) -> Answer {
    match profile::record(time).await {
        Ok(recorded) => http::elsewhere(move || profile_page(&recorded)).await,
        Err(error) => http::answer(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("no profile: {error}\n")),
    }
}

fn profile_page(recorded: &Profile) -> Answer {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let bytes = pprof::encode(recorded, &pprof::mappings(&maps));
    http::answer(StatusCode::OK, "application/octet-stream", bytes)
}

/// `PUT` with the level as the body, like kube-proxy.
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

/// The CPU time of each thread.
fn threads() -> String {
    let mut page = format!("{:>8} {:<16} {:<5} {:>12} {:>12}\n", "id", "name", "state", "user", "system");
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    for task in tasks {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        // The thread may have ended since it was listed.
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
        // proc(5) counts fields from 1; the first field here is its third.
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
    http::answer(StatusCode::NOT_IMPLEMENTED, TEXT, "this allocator does not report its memory\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_takes_thirty_seconds_or_what_is_asked() {
        assert_eq!(seconds(None), Some(30));
        assert_eq!(seconds(Some("debug=1")), Some(30));
        assert_eq!(seconds(Some("debug=1&seconds=5")), Some(5));
        for wrong in ["seconds=0", "seconds=301", "seconds=x", "seconds=-1", "seconds="] {
            assert_eq!(seconds(Some(wrong)), None, "{wrong}");
        }
    }

    #[test]
    fn a_level_is_a_number() {
        assert_eq!(level(b"4"), Some(4));
        assert_eq!(level(b" 10\n"), Some(10));
        for wrong in [&b"-1"[..], b"", b"four", b"\xff"] {
            assert_eq!(level(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn threads_are_listed_by_name() {
        let stat = "9 (a) b) S 1 7 7 0 -1 4194304 100 0 0 0 21 4 0 0 20 0 3 0 5000 1048576 300";
        let expected = Thread { name: "a) b", state: "S", user_ticks: 21, system_ticks: 4 };
        assert_eq!(Thread::parse(stat), Some(expected));
        assert_eq!(Thread::parse("9 (a"), None);
        assert!(threads().lines().count() >= 2);
    }
}
