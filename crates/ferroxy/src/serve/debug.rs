//! `/debug/`: profiles of this process and its log level, for troubleshooting. Only served with `enableProfiling`.

use std::fmt::Write;
use std::time::Duration;

use ferroxy_platform::{memory, process};
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

/// The CPU time of each thread, for when its name is enough.
fn threads() -> String {
    let mut page = format!("{:>8} {:<16} {:<5} {:>12} {:>12}\n", "id", "name", "state", "user", "system");
    for process::Thread { id, name, state, user_seconds, system_seconds } in process::threads() {
        let _ = writeln!(page, "{id:>8} {name:<16} {state:<5} {user_seconds:>11.2}s {system_seconds:>11.2}s");
    }
    page
}

fn heap() -> Answer {
    let Some(figures) = memory::allocator_figures() else {
        return http::answer(StatusCode::NOT_IMPLEMENTED, TEXT, "this allocator has no figures\n");
    };
    let page = format!(
        "in use            {:>12} bytes\nfree, kept        {:>12} bytes\nfrom the system   {:>12} bytes\n\
         of large blocks   {:>12} bytes in {} blocks\ncould be released {:>12} bytes\n",
        figures.in_use,
        figures.free,
        figures.from_system,
        figures.large_blocks_bytes,
        figures.large_blocks,
        figures.releasable,
    );
    http::answer(StatusCode::OK, TEXT, page)
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
    fn every_thread_has_a_line() {
        assert!(threads().lines().count() >= 2);
    }
}
