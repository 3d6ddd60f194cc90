//! Soak test: three minutes of churn, API server faults, a hostile tenant, another program that deletes our tables, a full log pipe, a
//! scraper, and restarts. At the end, the kernel matches the API server, memory and descriptors are within their bounds, and no
//! connection to an unchanged Service has failed. (When a table is deleted, the test pauses the traffic of that family until the agent
//! has repaired the table.)
//!
//! `FERROXY_SOAK_SECONDS` sets the duration, `FERROXY_SOAK_SERVICES` the number of Services, `FERROXY_SOAK_PACE` the milliseconds
//! between changes. `FERROXY_SOAK_SEED` repeats the churn and the faults of another run. `make soak` takes an hour.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "the functions that tests share are tests too; clippy does not know"
)]

mod support;

use std::hash::{BuildHasher, RandomState};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ferroxy_core::Family;
use ferroxy_lab::api::cluster::{self, Cluster, NAMESPACE, service_name};
use ferroxy_lab::api::{Fault, Injection, Kind, On, Server, Verb};
use ferroxy_lab::{Namespace, Network};
use serde_json::{Value, json};

use support::{Agent, DEADLINE, Setting, Stage, Traffic, hostile, web};

const ENDPOINTS: usize = 4;

/// By how much memory may have grown at the end. A leak of one object for each change would be far more.
const GROWTH: f64 = 1.25;
/// Descriptors that come and go: connections to the API server and of scrapers, files being read.
const DESCRIPTORS: usize = 16;

#[test]
#[ignore = "takes three minutes: scripts/test runs it beside the other tests"]
fn churn_and_faults_leave_no_trace() {
    let Some(stage) = Stage::new(Setting::default()) else { return };
    let (seconds, seed) = (setting("FERROXY_SOAK_SECONDS", || 180), setting("FERROXY_SOAK_SEED", random));
    let pace = Duration::from_millis(setting("FERROXY_SOAK_PACE", || 20));
    let services = setting("FERROXY_SOAK_SERVICES", || 2_000) as usize;
    println!("soak: {seconds} seconds; FERROXY_SOAK_SEED={seed} plays the same again");
    let mut churn = Churn::new(&stage.server, services, Dice(seed));
    let mut agent = stage.start();
    let scraper = Scraper::default();

    let (began, length) = (Instant::now(), Duration::from_secs(seconds));
    let mut weather = Weather::new(began);
    let mut trouble = Trouble::new(&stage, began, length);
    let mut delays = Delays::new(&stage, began);
    let mut schedule = Schedule { next: began, pace };
    let mut warm = None;
    let (node, scrapes) = (stage.ka(), &scraper);
    agent = std::thread::scope(|scope| {
        scope.spawn(move || scrapes.run(node));
        let _stopped_in_any_case = Stopped(&scraper);
        while began.elapsed() < length {
            churn.change();
            weather.turn(&stage.server, &mut churn.dice);
            agent = trouble.turn(agent, &mut churn.dice);
            if trouble.traffic.is_flowing(Family::V4) {
                delays.turn(weather.faults + trouble.troubles(), weather.bad);
            }
            // Restarts and hostile objects end half-way. At two thirds, memory has reached its peak: it must not grow after that.
            if warm.is_none() && began.elapsed() >= length * 2 / 3 {
                warm = Some((agent.resident(), agent.descriptors()));
            }
            schedule.wait();
        }
        agent
    });
    let lasted = began.elapsed();
    stage.server.clear_faults().unwrap();
    agent.read_log(true);
    trouble.traffic.wait_until_it_flows();

    // The last change of all: when it has arrived, everything before it has.
    stage.move_other();
    stage.wait_for_other();
    let mut differences = Vec::new();
    let deadline = Instant::now() + DEADLINE;
    while Instant::now() < deadline {
        differences = agent.differences(stage.ka());
        if differences.is_empty() {
            break;
        }
    }
    assert_eq!(differences, Vec::<String>::new(), "the kernel has not what the server says");
    let end = agent.resident();
    // On a machine that is so busy that one turn took a third of the time, there is nothing to compare with.
    let (warm, open) = warm.unwrap_or_else(|| (end, agent.descriptors()));
    let rate = churn.changes as f64 / lasted.as_secs_f64();
    println!(
        "soak: {} changes ({rate:.0} a second), {} faults, {}",
        churn.changes,
        weather.faults,
        trouble.summary()
    );
    println!("soak: {}", scraper.summary());
    println!("soak: from API to packet: {}", delays.summary());
    println!("soak: memory {warm} KiB, then {end} KiB; descriptors {open}, then {}", agent.descriptors());
    assert!(end as f64 <= warm as f64 * GROWTH, "memory grew from {warm} to {end} KiB");
    assert!(agent.descriptors() <= open + DESCRIPTORS, "{} descriptors, {open} before", agent.descriptors());
    assert!(scraper.answers.load(Ordering::Relaxed) > 0, "nobody answered the scraper");
    trouble.traffic.was_undisturbed();
    let log = agent.terminate();
    assert!(!log.contains("panicked"), "{log}");
}

/// Paces the changes. After a delay, changes follow without a pause until the schedule is met again. A delay beyond `LATEST` is not
/// made up for.
struct Schedule {
    next: Instant,
    pace: Duration,
}

impl Schedule {
    const LATEST: Duration = Duration::from_secs(2);

    fn wait(&mut self) {
        let now = Instant::now();
        self.next = (self.next + self.pace).max(now - Schedule::LATEST);
        std::thread::sleep(self.next.saturating_duration_since(now));
    }
}

/// Polls metrics and health, as a monitoring system and a kubelet do. During a restart of the agent, no process answers.
#[derive(Default)]
struct Scraper {
    is_stopped: AtomicBool,
    answers: AtomicUsize,
    silences: AtomicUsize,
}

impl Scraper {
    const PAUSE: Duration = Duration::from_millis(200);

    fn run(&self, node: &Namespace) {
        while !self.is_stopped.load(Ordering::Relaxed) {
            for (address, path) in
                [(web::METRICS, "/metrics"), (web::HEALTHZ, "/healthz"), (web::HEALTHZ, "/livez")]
            {
                let count = match web::get(node, address, path) {
                    Some(reply) => {
                        // An agent is not healthy before its first sync. Other tests check health itself.
                        assert!(matches!(reply.code, 200 | 503), "{path}: {reply:?}");
                        &self.answers
                    }
                    None => &self.silences,
                };
                count.fetch_add(1, Ordering::Relaxed);
            }
            std::thread::sleep(Scraper::PAUSE);
        }
    }

    fn summary(&self) -> String {
        let of = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        format!("the scraper got {} answers, and none {} times", of(&self.answers), of(&self.silences))
    }
}

/// Stops the scraper when it is dropped, also by a panic: otherwise the test would not end.
struct Stopped<'a>(&'a Scraper);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.is_stopped.store(true, Ordering::Relaxed);
    }
}

/// Traffic of both families. The traffic of a family pauses while the table of that family is deleted.
struct Flows<'a> {
    network: &'a Network,
    /// By family.
    traffic: [Option<Traffic>; 2],
    resting_since: Instant,
}

impl Flows<'_> {
    fn new(network: &Network) -> Flows<'_> {
        let traffic = Family::ALL.map(|family| Some(Traffic::light_of(network, family)));
        Flows { network, traffic, resting_since: Instant::now() }
    }

    fn is_flowing(&self, family: Family) -> bool {
        self.traffic[family as usize].is_some()
    }

    /// Checks that no connection has failed so far, and pauses the traffic: from now on, connections may fail.
    fn rest(&mut self, family: Family) {
        if let Some(traffic) = self.traffic[family as usize].take() {
            traffic.was_undisturbed();
        }
        self.resting_since = Instant::now();
    }

    /// Resumes the traffic of a family as soon as a connection succeeds again.
    fn turn(&mut self) {
        for family in Family::ALL {
            if !self.is_flowing(family) && Traffic::is_possible(self.network, family) {
                self.traffic[family as usize] = Some(Traffic::light_of(self.network, family));
            }
        }
        let flow = Family::ALL.iter().all(|family| self.is_flowing(*family));
        assert!(flow || self.resting_since.elapsed() < DEADLINE, "a table is not repaired");
    }

    fn wait_until_it_flows(&mut self) {
        while !Family::ALL.iter().all(|family| self.is_flowing(*family)) {
            self.turn();
        }
    }

    fn was_undisturbed(self) {
        self.traffic.into_iter().flatten().for_each(Traffic::was_undisturbed);
    }
}

/// Measures again and again, during all of the above, how long one Service's change takes until a packet follows it.
struct Delays<'a> {
    stage: &'a Stage,
    moved: Option<Moved>,
    next_look: Instant,
    /// Delays during which the API server and the agent were up all the time.
    quiet: Vec<Duration>,
    disturbed: Vec<Duration>,
}

struct Moved {
    at: Instant,
    /// The number of faults and restarts before the change, and whether a fault was active at that moment.
    troubles: usize,
    in_trouble: bool,
}

impl Delays<'_> {
    /// Time between two checks of where packets arrive.
    const RESOLUTION: Duration = Duration::from_millis(10);

    fn new(stage: &Stage, now: Instant) -> Delays<'_> {
        Delays { stage, moved: None, next_look: now, quiet: Vec::new(), disturbed: Vec::new() }
    }

    fn turn(&mut self, troubles: usize, in_trouble: bool) {
        if Instant::now() < self.next_look {
            return;
        }
        match self.moved.take() {
            None => {
                self.stage.move_other();
                self.moved = Some(Moved { at: Instant::now(), troubles, in_trouble });
            }
            Some(moved) if self.stage.other_has_arrived() => {
                let was_quiet = !moved.in_trouble && moved.troubles == troubles;
                let delays = if was_quiet { &mut self.quiet } else { &mut self.disturbed };
                delays.push(moved.at.elapsed());
            }
            moved => self.moved = moved,
        }
        self.next_look = Instant::now() + Delays::RESOLUTION;
    }

    fn summary(&mut self) -> String {
        let of = |delays: &mut Vec<Duration>| {
            delays.sort_unstable();
            let quantile = |percent| delays.get(delays.len() * percent / 100).copied().unwrap_or_default();
            format!("p50 {:.0?}, p99 {:.0?} of {}", quantile(50), quantile(99), delays.len())
        };
        format!("{}; across faults and restarts {}", of(&mut self.quiet), of(&mut self.disturbed))
    }
}

/// Troubles on the node: restarts, hostile objects, deleted tables, an unread log.
struct Trouble<'a> {
    stage: &'a Stage,
    next: Instant,
    /// Restarts and hostile objects end here.
    half: Instant,
    rounds: usize,
    restarts: usize,
    /// The number of deleted tables, by family.
    deleted: [usize; 2],
    traffic: Flows<'a>,
}

impl Trouble<'_> {
    fn new(stage: &Stage, now: Instant, length: Duration) -> Trouble<'_> {
        let next = now + Duration::from_secs(3);
        let traffic = Flows::new(&stage.network);
        Trouble { stage, next, half: now + length / 2, rounds: 0, restarts: 0, deleted: [0; 2], traffic }
    }

    /// The number of restarts and deletions, each of which may have delayed a change.
    fn troubles(&self) -> usize {
        self.restarts + self.deleted.iter().sum::<usize>()
    }

    fn turn(&mut self, mut agent: Agent, dice: &mut Dice) -> Agent {
        self.traffic.turn();
        if Instant::now() < self.next {
            return agent;
        }
        self.next = Instant::now() + Duration::from_secs(3);
        match dice.roll(4) {
            0 if Instant::now() < self.half => {
                self.restarts += 1;
                agent.read_log(true);
                drop(if dice.roll(2) == 0 { agent.terminate() } else { agent.kill() });
                // The API server may be failing now: the rules in the kernel serve until it answers.
                agent = self.stage.spawn();
            }
            1 if Instant::now() < self.half => {
                self.rounds += 1;
                let victims = ["10.96.0.80", "10.96.0.81"];
                hostile::objects(&victims, self.rounds).iter().for_each(|object| self.stage.put(object));
            }
            2 => self.delete_table(Family::ALL[dice.roll(2)]),
            _ => agent.read_log(dice.roll(2) == 0),
        }
        agent
    }

    /// Plays another program. The command may fail: the table may be deleted already, or not created yet.
    fn delete_table(&mut self, family: Family) {
        self.traffic.rest(family);
        self.deleted[family as usize] += 1;
        let name = if family == Family::V4 { "ip" } else { "ip6" };
        let delete = || Command::new("nft").args(["delete", "table", name, "ferroxy"]).output();
        self.stage.ka().run(delete).unwrap().unwrap();
    }

    fn summary(&self) -> String {
        let [v4, v6] = self.deleted;
        format!(
            "{} restarts, {} rounds of hostile objects, the table ip {v4} times and ip6 {v6} times deleted",
            self.restarts, self.rounds
        )
    }
}

/// The Services of a large cluster, coming, changing and going.
struct Churn<'a> {
    server: &'a Server,
    cluster: Cluster,
    dice: Dice,
    /// Which of the Services exist.
    present: Vec<bool>,
    changes: usize,
}

impl Churn<'_> {
    fn new(server: &Server, services: usize, dice: Dice) -> Churn<'_> {
        let cluster = Cluster { services, endpoints: ENDPOINTS, nodes: 0 };
        // The stage has created the ServiceCIDR already.
        let objects = cluster.objects().filter(|object| !object.contains("ServiceCIDR"));
        server.put_all(objects).unwrap();
        Churn { server, cluster, dice, present: vec![true; services], changes: 0 }
    }

    fn change(&mut self) {
        let index = self.dice.roll(self.cluster.services);
        self.changes += 1;
        match (self.present[index], self.dice.roll(10)) {
            (true, 0) => self.remove(index),
            (true, 1) => self.change_port(index),
            (true, _) => {
                let slice = self.cluster.moved(index, self.dice.roll(ENDPOINTS), self.changes);
                self.server.put_raw(slice.as_bytes()).unwrap();
            }
            (false, _) => {
                let objects = std::iter::once(self.cluster.service(index)).chain(self.cluster.slices(index));
                self.server.put_all(objects).unwrap();
                self.present[index] = true;
            }
        }
    }

    fn remove(&mut self, index: usize) {
        let name = service_name(index);
        self.server.delete(Kind::Service, NAMESPACE, &name).unwrap();
        self.server.delete(Kind::EndpointSlice, NAMESPACE, &format!("{name}-0")).unwrap();
        self.present[index] = false;
    }

    fn change_port(&mut self, index: usize) {
        let mut service: Value = serde_json::from_str(&self.cluster.service(index)).unwrap();
        service["spec"]["ports"][0]["port"] = json!(80 + self.dice.roll(3));
        assert_eq!(service["spec"]["clusterIP"], json!(cluster::cluster_ip(index)));
        self.server.put(&service).unwrap();
    }
}

/// Switches faults of the API server on and off by turns.
struct Weather {
    next_turn: Instant,
    bad: bool,
    faults: usize,
}

impl Weather {
    fn new(now: Instant) -> Weather {
        Weather { next_turn: now + Duration::from_secs(1), bad: false, faults: 0 }
    }

    fn turn(&mut self, server: &Server, dice: &mut Dice) {
        if Instant::now() < self.next_turn {
            return;
        }
        let longest = if self.bad { 3_000 } else { 1_500 };
        self.next_turn = Instant::now() + Duration::from_millis(dice.roll(longest) as u64);
        if self.bad {
            server.clear_faults().unwrap();
        } else {
            self.faults += 1;
            strike(server, dice);
        }
        self.bad = !self.bad;
    }
}

/// Strikes with a random fault, one of those that end by themselves or when they are cleared.
fn strike(server: &Server, dice: &mut Dice) {
    let kind = [Kind::Service, Kind::EndpointSlice, Kind::Node][dice.roll(3)];
    let lasting = |fault| {
        server.fault(fault).unwrap();
        server.cut();
    };
    // If the watch has just been cut, there is no watch to inject into. That is a fault, too.
    let injected = |injection| {
        server.inject(kind, injection);
    };
    match dice.roll(14) {
        0 => server.cut(),
        1 => lasting(Fault::Refuse),
        2 => lasting(Fault::HangRequests),
        3 => lasting(Fault::answer([429, 500, 503][dice.roll(3)])),
        4 => lasting(Fault::CutAfter { bytes: 100 + dice.roll(100_000) }),
        5 => lasting(Fault::NoStreamingLists),
        6 => lasting(Fault::NoBookmarks),
        7 => injected(Injection::Error(410)),
        8 => injected(Injection::Garbage),
        9 => injected(Injection::Truncated),
        10 => injected(Injection::Cut),
        11 => injected(Injection::Stale(1 + dice.roll(50))),
        12 => injected(Injection::Repeated(1 + dice.roll(50))),
        _ => {
            server.fault_on(On::from((kind, Verb::Watch)).times(1), Fault::answer(410)).unwrap();
            server.compact();
            server.cut();
        }
    }
}

/// Numbers that look random and are the same for the same seed (splitmix64).
struct Dice(u64);

impl Dice {
    /// At least 0, less than `sides`.
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % sides as u64) as usize
    }
}

fn random() -> u64 {
    RandomState::new().hash_one(())
}

fn setting(name: &str, default: impl Fn() -> u64) -> u64 {
    match std::env::var(name) {
        Ok(value) => value.parse().unwrap_or_else(|error| panic!("{name}={value}: {error}")),
        Err(_) => default(),
    }
}
