//! The thread that sends probes: it runs while a Service requests probes, and not before or after. One test, because it
//! counts threads.

#![allow(clippy::unwrap_used, clippy::panic, reason = "the functions that tests share are tests too")]

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use ferroxy_core::event::Verdict;
use ferroxy_core::probe::{Check, Life, Probe, Target};
use ferroxy_core::resolve::Probing;
use ferroxy_core::{Protocol, ServiceName};
use ferroxy_probe::{Hooks, Prober};

const PATIENCE: Duration = Duration::from_secs(1800);

fn wanted(address: SocketAddr) -> (Target, Option<Probing>) {
    let (interval, timeout) = (Duration::from_millis(20), Duration::from_secs(10));
    let probe = Probe { check: Check::Tcp, port: None, interval, timeout, failures: 2, successes: 2 };
    let target = Target { address, protocol: Protocol::Tcp };
    (target, Some(Probing { probe: Arc::new(probe), targets: [(target, Life(1))].into(), ignored: 0 }))
}

/// The number of threads of this process with the prober's name; `None` where the system does not show threads.
fn threads() -> Option<usize> {
    let tasks = std::fs::read_dir("/proc/self/task").ok()?;
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
    Some(tasks.flatten().filter_map(|task| name(task).ok()).filter(|name| name == "prober\n").count())
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "{what} never happened");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn it_runs_while_a_service_asks_and_tells_what_changed() {
    let (verdicts, told) = mpsc::channel();
    let (passes, passed) = mpsc::channel();
    let begun = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&begun);
    let mut prober = Prober::new(Hooks {
        begin: Box::new(move || _ = count.fetch_add(1, Ordering::Relaxed)),
        deliver: Box::new(move |verdict: Verdict| verdicts.send(verdict).is_ok()),
        passed: Box::new(move |ip, port| _ = passes.send((ip, port))),
        is_idle: Box::new(|_| false),
    });
    let figures = prober.figures();
    let web = ServiceName::new("default", "web");
    prober.set(&web, None);
    assert!(!prober.is_running() && threads().is_none_or(|count| count == 0));

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (target, probing) = wanted(address);
    prober.set(&web, probing.clone());
    assert!(prober.is_running());
    wait_until("a probe", || figures().passed > 3);
    assert!(
        passed.iter().take(3).all(|endpoint| endpoint == (address.ip(), Some(address.port()))),
        "each pass is reported, not only changes"
    );
    assert_eq!(figures().endpoints, 1);
    assert!(threads().is_none_or(|count| count == 1));

    drop(listener);
    let down = told.recv_timeout(PATIENCE).unwrap();
    assert_eq!((down.service.clone(), down.target, down.life), (web.clone(), target, Some(Life(1))));
    assert!(down.down.is_some());
    let listener = TcpListener::bind(address).unwrap();
    assert_eq!(told.recv_timeout(PATIENCE).unwrap().down, None, "it is up again");

    prober.set(&web, None);
    assert!(!prober.is_running());
    wait_until("the end of the thread", || threads().is_none_or(|count| count == 0));
    let after = figures();
    assert_eq!((after.endpoints, after.failed >= 2), (0, true), "{after:?}");

    prober.set(&web, probing);
    wait_until("another probe", || figures().passed > after.passed);
    drop(prober);
    wait_until("the end of the thread", || threads().is_none_or(|count| count == 0));
    assert_eq!(begun.load(Ordering::Relaxed), 2);
    drop(listener);
}
