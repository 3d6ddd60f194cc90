//! Panics: a panic in any thread is logged and ends the process, and so does the end of a thread that must not end. Without
//! one of its threads, a proxy would look healthy and not work; a restart helps, and the rules stay in the kernel meanwhile.

use std::fmt::Display;
use std::panic::PanicHookInfo;

use crate::log;

/// Installs the panic hook. Call it first in `main`.
pub fn abort_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        report(panic);
        log::flush();
        std::process::abort();
    }));
}

/// A thread has ended that must run as long as the process does.
pub fn ended(what: &str, why: &dyn Display) -> ! {
    say(&format!("internal error: {what} has ended: {why}"));
    log::flush();
    std::process::abort()
}

fn report(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed");
    let message = panic.payload_as_str().unwrap_or("no message");
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    say(&format!("internal error: thread {thread} panicked at {place}: {message}"));
}

/// In the format of the log, once the log has started.
fn say(words: &str) {
    if tracing::dispatcher::has_been_set() {
        tracing::error!("{words}; the process ends");
    } else {
        log::print_error(&format!("ferroxy: {words}"));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;
    use std::time::Duration;

    use super::*;
    use crate::config::{LogFormat, LogStream, Logging};

    /// Set in the process that panics.
    const CHILD: &str = "FERROXY_TEST_PANIC";

    #[test]
    fn a_panic_in_any_thread_is_logged_and_ends_the_process() {
        fn work() {
            panic!("on purpose");
        }
        let name = "panic::tests::a_panic_in_any_thread_is_logged_and_ends_the_process";
        let message = last_words(name, work);
        assert!(message.contains("thread watcher panicked at") && message.contains("panic.rs"), "{message}");
    }

    #[test]
    fn the_end_of_what_must_not_end_is_logged_and_ends_the_process() {
        fn work() {
            ended("the thread that waits", &"on purpose");
        }
        let name = "panic::tests::the_end_of_what_must_not_end_is_logged_and_ends_the_process";
        let message = last_words(name, work);
        let expected = "internal error: the thread that waits has ended: on purpose; the process ends";
        assert_eq!(message, expected);
    }

    /// Runs the test itself as a child process, which must abort. Returns its last log message.
    fn last_words(name: &str, work: fn()) -> String {
        if std::env::var_os(CHILD).is_some() {
            child(work);
        }
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
        let errors = String::from_utf8_lossy(&output.stderr);
        let line = errors.lines().find(|line| line.contains("on purpose")).unwrap();
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        line["msg"].as_str().unwrap().to_owned()
    }

    fn child(work: fn()) {
        abort_on_panic();
        let stream = LogStream { split_stream: false, info_buffer_size: "0".into() };
        log::start(&Logging {
            format: LogFormat::Json,
            flush_frequency: Duration::ZERO,
            verbosity: 0,
            vmodule: Vec::new(),
            text: stream.clone(),
            json: stream,
        });
        let thread = std::thread::Builder::new().name("watcher".into()).spawn(work);
        // Without the hook, the rest of the process would go on.
        let _ = thread.unwrap().join();
    }
}
