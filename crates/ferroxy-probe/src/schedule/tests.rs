//! Tests of the scheduler with a simulated clock: no test waits for real time to pass.

use std::net::{Ipv4Addr, SocketAddr};

use ferroxy_core::Protocol;
use ferroxy_core::probe::{Check, Fault};

use super::*;

const FAILED: Outcome = Outcome::Failed(Fault::TimedOut);

/// A node whose probes are answered as the test says.
struct Bench {
    scheduler: Scheduler,
    began: Instant,
    now: Instant,
    /// The probes under way, when each ends, and how.
    running: Vec<(Instant, Attempt, Outcome)>,
    most_at_once: usize,
    /// When each probe began, in order.
    sent: Vec<(f64, Target)>,
    /// When each verdict came, its target, and whether it is "down".
    verdicts: Vec<(f64, Target, bool)>,
    is_idle: bool,
    figures: Figures,
}

/// What an endpoint answers, and how long that takes.
type Answers<'a> = &'a dyn Fn(Target, f64) -> (Outcome, f64);

fn at_once(_: Target, _: f64) -> (Outcome, f64) {
    (Outcome::Passed, 0.001)
}

fn target(number: usize) -> Target {
    let address = Ipv4Addr::from_bits(0x0a00_0000 + number as u32);
    Target { address: SocketAddr::new(address.into(), 80), protocol: Protocol::Tcp }
}

fn probing(interval: u64, targets: impl Iterator<Item = usize>, life: u64) -> Option<Probing> {
    let (interval, timeout) = (Duration::from_secs(interval), Duration::from_secs(1));
    let probe = Probe { check: Check::Tcp, port: None, interval, timeout, failures: 3, successes: 2 };
    let targets = targets.map(|number| (target(number), Life(life))).collect();
    Some(Probing { probe: Arc::new(probe), targets, ignored: 0 })
}

fn web() -> ServiceName {
    ServiceName::new("default", "web")
}

impl Bench {
    fn new() -> Bench {
        let now = Instant::now();
        Bench {
            scheduler: Scheduler::new(7),
            began: now,
            now,
            running: Vec::new(),
            most_at_once: 0,
            sent: Vec::new(),
            verdicts: Vec::new(),
            is_idle: false,
            figures: Figures::default(),
        }
    }

    /// The Service `default/web` with this many endpoints and an interval of five seconds.
    fn with(endpoints: usize) -> Bench {
        let mut bench = Bench::new();
        bench.set(&web(), probing(5, 0..endpoints, 1));
        bench
    }

    fn set(&mut self, service: &ServiceName, wanted: Option<Probing>) {
        self.scheduler.replace(service, wanted, self.now);
    }

    fn clock(&self) -> f64 {
        self.now.duration_since(self.began).as_secs_f64()
    }

    /// Advances the clock, and calls the scheduler at the times that it requests.
    fn run(&mut self, seconds: f64, answers: Answers<'_>) {
        let end = self.now + Duration::from_secs_f64(seconds);
        loop {
            let ends = self.running.iter().map(|(at, _, _)| *at).min();
            let next = self.scheduler.next().into_iter().chain(ends).min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            self.end_probes();
            self.begin_probes(answers);
        }
        self.now = end;
        self.figures.add(self.scheduler.figures());
    }

    fn begin_probes(&mut self, answers: Answers<'_>) {
        for attempt in self.scheduler.start(self.now) {
            let (outcome, takes) = answers(attempt.target, self.clock());
            self.sent.push((self.clock(), attempt.target));
            self.running.push((self.now + Duration::from_secs_f64(takes), attempt, outcome));
        }
        self.most_at_once = self.most_at_once.max(self.running.len());
    }

    fn end_probes(&mut self) {
        let ended: Vec<_> = self.running.extract_if(.., |(at, _, _)| *at <= self.now).collect();
        for (_, Attempt { id, target, .. }, outcome) in ended {
            let verdict = self.scheduler.ended(id, outcome, |_| self.is_idle, self.now, 0);
            self.verdicts.extend(verdict.map(|it| (self.clock(), target, it.down.is_some())));
        }
    }

    /// When this endpoint was probed.
    fn times(&self, number: usize) -> Vec<f64> {
        self.sent.iter().filter(|(_, to)| *to == target(number)).map(|(at, _)| *at).collect()
    }
}

#[test]
fn the_first_moment_is_random_and_every_other_has_a_jitter() {
    let mut bench = Bench::with(100);
    bench.run(60.0, &at_once);
    let first: Vec<f64> = (0..100).map(|number| bench.times(number)[0]).collect();
    assert!(first.iter().all(|at| (0.0..5.0).contains(at)), "{first:?}");
    for tenth in 0..10 {
        let part = (0.5 * f64::from(tenth))..(0.5 * f64::from(tenth + 1));
        assert!(first.iter().any(|at| part.contains(at)), "nobody in {part:?}");
    }
    let waits: Vec<f64> = (0..100)
        .flat_map(|number| bench.times(number).windows(2).map(|pair| pair[1] - pair[0]).collect::<Vec<_>>())
        .collect();
    assert!(waits.iter().all(|wait| (4.0..=6.0).contains(wait)), "{waits:?}");
    assert!(waits.iter().any(|wait| *wait < 4.3) && waits.iter().any(|wait| *wait > 5.7));
    assert_eq!(bench.figures.passed as usize, bench.sent.len() - bench.running.len());
    assert_eq!((bench.figures.late, bench.figures.endpoints, bench.verdicts.len()), (0, 100, 0));
}

#[test]
fn no_second_has_more_than_500_probes() {
    let mut bench = Bench::with(4_000);
    bench.run(30.0, &at_once);
    let starts: Vec<f64> = bench.sent.iter().map(|(at, _)| *at).collect();
    for (index, at) in starts.iter().enumerate() {
        let in_a_second = starts[index..].iter().take_while(|other| **other < at + 1.0 - 1e-9).count();
        assert!(in_a_second <= 500, "{in_a_second} probes in the second from {at}");
    }
    assert!(starts.len() >= 14_000, "the limit is used: {}", starts.len());
    assert!((0..4_000).all(|number| bench.times(number).len() >= 2), "everybody has a turn");
    assert!(bench.figures.late > 0);
}

#[test]
fn no_more_than_64_are_under_way_and_half_of_them_of_one_namespace() {
    let slow = |_: Target, _: f64| (Outcome::Passed, 1.0);
    let mut bench = Bench::with(1_000);
    bench.run(10.0, &slow);
    assert_eq!(bench.most_at_once, 32);
    let mut bench = Bench::new();
    for (number, namespace) in ["a", "b", "c"].into_iter().enumerate() {
        let targets = 1_000 * number..1_000 * (number + 1);
        bench.set(&ServiceName::new(namespace, "web"), probing(5, targets, 1));
    }
    bench.run(10.0, &slow);
    assert_eq!(bench.most_at_once, 64);
}

#[test]
fn endpoints_that_do_not_answer_do_not_delay_other_namespaces() {
    let mut bench = Bench::with(2_000);
    bench.set(&ServiceName::new("other", "api"), probing(5, 10_000..10_100, 1));
    let is_other = |to: Target| to.address.ip() >= target(10_000).address.ip();
    bench.run(60.0, &|to, _| if is_other(to) { (Outcome::Passed, 0.001) } else { (FAILED, 1.0) });
    for number in 10_000..10_100 {
        let times = bench.times(number);
        assert!(times.windows(2).all(|pair| pair[1] - pair[0] < 6.1), "{times:?}");
    }
    assert!(bench.figures.late > 0, "those of the first are late");
}

#[test]
fn a_failure_is_followed_up_after_a_second_and_a_verdict_needs_three() {
    let mut bench = Bench::with(1);
    bench.run(100.0, &|_, at| if at > 20.0 { (FAILED, 0.0) } else { (Outcome::Passed, 0.0) });
    let after: Vec<f64> = bench.times(0).into_iter().filter(|at| *at > 20.0).collect();
    assert!(after[0] < 26.0);
    assert!((after[1] - after[0]).max(after[2] - after[1]) <= 1.2, "{after:?}");
    let [(at, _, true)] = bench.verdicts[..] else { panic!("{:?}", bench.verdicts) };
    assert_eq!(at, after[2]);
    let waits: Vec<f64> = after[2..].windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(
        waits.iter().all(|wait| (4.0..=6.0).contains(wait)),
        "one that is down has its interval: {waits:?}"
    );
}

#[test]
fn one_that_answers_again_returns_after_two() {
    let mut bench = Bench::with(3);
    let second_fails = |to: Target, at: f64| match to == target(1) && (20.0..60.0).contains(&at) {
        true => (FAILED, 1.0),
        false => (Outcome::Passed, 0.001),
    };
    bench.run(100.0, &second_fails);
    let turns: Vec<bool> = bench.verdicts.iter().map(|(_, _, is_down)| *is_down).collect();
    assert_eq!(turns, [true, false]);
    assert!(bench.verdicts.iter().all(|(_, to, _)| *to == target(1)));
    let (down, up) = (bench.verdicts[0].0, bench.verdicts[1].0);
    assert!((22.0..32.0).contains(&down) && (60.0..68.0).contains(&up), "{:?}", bench.verdicts);
}

#[test]
fn one_that_flaps_costs_no_verdict() {
    let mut bench = Bench::with(1);
    let calls = std::cell::Cell::new(0);
    bench.run(600.0, &|_, _| {
        calls.set(calls.get() + 1);
        (if calls.get() % 3 == 0 { Outcome::Passed } else { FAILED }, 0.001)
    });
    assert!(calls.get() > 200);
    assert_eq!(bench.verdicts, []);
}

#[test]
fn a_service_without_traffic_is_probed_once_a_minute() {
    let mut bench = Bench::with(20);
    bench.is_idle = true;
    bench.run(600.0, &at_once);
    for number in 0..20 {
        let waits: Vec<f64> = bench.times(number).windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(waits.iter().all(|wait| (48.0..=72.0).contains(wait)), "{waits:?}");
    }
    bench.is_idle = false;
    let before = bench.sent.len();
    bench.run(100.0, &at_once);
    assert!(bench.sent.len() - before > 20, "and often again when it has some");
}

#[test]
fn what_is_late_because_the_node_slept_does_not_count() {
    let mut bench = Bench::with(50);
    bench.run(20.0, &at_once);
    // Probes that take five seconds are under way when the machine stops.
    bench.run(5.0, &|_, _| (FAILED, 5.0));
    let under_way = bench.running.len();
    assert!(under_way > 0);
    let failed_before = bench.figures.uncounted;
    bench.now += Duration::from_secs(3600);
    // For a moment after the machine resumes, nothing answers.
    let woken = bench.clock();
    bench.run(3.0, &|_, at| (if at < woken + 0.5 { FAILED } else { Outcome::Passed }, 0.0));
    assert!(bench.figures.uncounted >= failed_before + 50, "{:?}", bench.figures);
    bench.run(60.0, &at_once);
    assert_eq!(bench.verdicts, [], "all are up");
}

#[test]
fn probes_that_a_sleep_cut_short_do_not_count_even_if_nothing_else_is_due() {
    let mut bench = Bench::with(32);
    while bench.running.len() < 32 {
        bench.run(0.1, &|_, _| (FAILED, 5.0));
    }
    bench.now += Duration::from_secs(600);
    bench.run(1.0, &at_once);
    assert_eq!(bench.figures.uncounted, 32, "{:?}", bench.figures);
}

#[test]
fn what_is_late_because_of_the_limits_counts() {
    // With this many endpoints that time out, it takes longer than the interval until each has a turn.
    let mut bench = Bench::with(600);
    bench.run(240.0, &|_, _| (FAILED, 1.0));
    let down = bench.verdicts.iter().filter(|(_, _, is_down)| *is_down).count();
    assert_eq!((down, bench.figures.uncounted), (600, 0));
    assert!(bench.figures.late > 0);
}

#[test]
fn another_life_starts_over() {
    let mut bench = Bench::with(1);
    let fails = |_: Target, _: f64| (FAILED, 0.0);
    while bench.sent.len() < 2 {
        bench.run(0.1, &fails);
    }
    bench.set(&web(), probing(5, 0..1, 1));
    bench.set(&web(), probing(5, 0..1, 2));
    while bench.sent.len() < 4 {
        bench.run(0.1, &fails);
    }
    assert_eq!(bench.verdicts, [], "two of its own");
    while bench.sent.len() < 5 {
        bench.run(0.1, &fails);
    }
    assert_eq!(bench.verdicts.len(), 1);
}

#[test]
fn the_same_again_changes_nothing() {
    let (mut once, mut often) = (Bench::with(10), Bench::with(10));
    once.run(60.0, &at_once);
    for _ in 0..600 {
        often.run(0.1, &at_once);
        often.set(&web(), probing(5, 0..10, 1));
    }
    assert_eq!(once.sent.len(), often.sent.len());
}

#[test]
fn one_that_leaves_during_its_probe_gets_no_verdict_and_its_place_is_free() {
    let mut bench = Bench::with(200);
    bench.run(10.0, &|_, _| (FAILED, 1.0));
    assert_eq!(bench.running.len(), 32);
    bench.verdicts.clear();
    bench.set(&web(), None);
    assert_eq!(bench.scheduler.figures().endpoints, 0);
    bench.run(10.0, &at_once);
    assert_eq!((bench.verdicts.len(), bench.running.len()), (0, 0));
    assert_eq!(bench.scheduler.next(), None, "there is nothing to do");
    bench.set(&web(), probing(5, 500..700, 1));
    bench.most_at_once = 0;
    bench.run(10.0, &|_, _| (FAILED, 1.0));
    assert_eq!(bench.most_at_once, 32);
}

#[test]
fn what_a_node_probes_has_a_limit_and_whoever_waits_comes_in() {
    let mut bench = Bench::new();
    for number in 0..12 {
        let (first, service) = (number * 1_000, ServiceName::new("default", &format!("s{number:02}")));
        bench.set(&service, probing(300, first..first + 1_000, 1));
    }
    let figures = bench.scheduler.figures();
    assert_eq!((figures.endpoints, figures.left_out), (5_000, 7_000), "half of the node's for one namespace");
    for number in 0..8 {
        let (first, service) = (20_000 + number * 1_000, ServiceName::new(&format!("n{number}"), "web"));
        bench.set(&service, probing(300, first..first + 1_000, 1));
    }
    let figures = bench.scheduler.figures();
    assert_eq!((figures.endpoints, figures.left_out), (10_000, 10_000));
    for number in 0..7 {
        bench.set(&ServiceName::new("default", &format!("s{number:02}")), None);
    }
    let figures = bench.scheduler.figures();
    assert_eq!((figures.endpoints, figures.left_out), (10_000, 3_000), "others took the places");
}

#[test]
fn a_probe_with_a_port_of_its_own_speaks_for_every_port_of_the_pod() {
    let now = Instant::now();
    for (own_port, port) in [(None, Some(80)), (Some(9_000), None)] {
        let mut wanted = probing(5, 1..2, 1).unwrap();
        wanted.probe = Arc::new(Probe { port: own_port, ..(*wanted.probe).clone() });
        let mut scheduler = Scheduler::new(7);
        scheduler.replace(&web(), Some(wanted), now);
        let attempts = scheduler.start(now + Duration::from_secs(10));
        let endpoints: Vec<_> = attempts.iter().map(|attempt| scheduler.endpoint(attempt.id)).collect();
        assert_eq!(endpoints, [Some((target(1).address.ip(), port))]);
        scheduler.replace(&web(), None, now + Duration::from_secs(10));
        assert_eq!(scheduler.endpoint(attempts[0].id), None, "the endpoint has gone");
    }
}
