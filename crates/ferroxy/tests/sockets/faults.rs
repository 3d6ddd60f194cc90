//! Everything that can happen to maps, programs and the agent, while connections are made all the time: none fails.

use std::ffi::OsString;

use ferroxy_bpf::kernel::{Attach, Cgroup, Link, Map, Pinned, Program};
use ferroxy_bpf::{Assembler, Register};
use ferroxy_lab::load::LoadPlan;
use ferroxy_lab::{Load, Protocol};
use rustix::process::Signal;

use super::Stage;
use super::support::{
    Agent, Cluster, DEADLINE, Service, Traffic, ferroxy, nft, run_arguments, wait_until, web, web_service,
};

struct Play {
    stage: Stage,
    cluster: Cluster,
}

impl Play {
    fn new() -> Option<Play> {
        let stage = Stage::new()?;
        let cluster = Cluster::new();
        // Verified every second.
        cluster.configure("nftables:\n", "nftables:\n  syncPeriod: 1s\n  minSyncPeriod: 1s\n");
        cluster.write_service(&web_service());
        // With affinity, its endpoints are not listed in the frontend but have a map.
        let sticky = Service::new("sticky", &["10.96.0.82"]).port(Protocol::Tcp, 80, 8080).affinity(60);
        cluster.write_service(&sticky.endpoints(&["a1", "a2", "b1", "b2"]));
        Some(Play { stage, cluster })
    }

    fn start(&self, clients: &str) -> Agent {
        self.start_with(clients, &[])
    }

    fn start_with(&self, clients: &str, more: &[OsString]) -> Agent {
        let mut arguments: Vec<_> = run_arguments(&self.cluster.manifests(), &self.cluster.config()).into();
        arguments.extend(self.stage.flags(clients));
        arguments.extend_from_slice(more);
        Agent::start_with(self.stage.ka(), arguments)
    }

    /// Connections that were translated so far, for pods.
    fn translated(&self) -> f64 {
        let metrics = web::metrics(self.stage.ka());
        metrics.get("ferroxy_sockets_connections_total{clients=\"pods\"}").copied().unwrap_or_default()
    }

    /// Waits until new connections are translated again.
    fn is_translating(&self) {
        let before = self.translated();
        wait_until("connections are translated", DEADLINE, || self.translated() > before);
    }

    /// Another Service, whose endpoints change with every call.
    fn churn(&self, round: usize) {
        let pods = ["a1", "a2", "b1", "b2"];
        let some: Vec<&str> = pods.into_iter().cycle().skip(round).take(1 + round % 4).collect();
        let other = Service::new("other", &["10.96.0.81"]).port(Protocol::Tcp, 80, 8080).endpoints(&some);
        self.cluster.write_service(&other);
    }
}

/// Connections as fast as they can be made, one after the other on each way.
struct Rush(Vec<Load>);

impl Rush {
    fn start(play: &Play) -> Rush {
        let ways = [
            ("a1", "10.96.0.80:80"),
            ("ka", "10.96.0.80:80"),
            ("a2", "[fd00:10:96::80]:80"),
            ("a1", "10.96.0.82:80"),
        ];
        let loads = ways.map(|(from, to)| {
            let plan = LoadPlan::back_to_back(Protocol::Tcp, to.parse().unwrap());
            Load::start(play.stage.network.namespace(from).unwrap(), plan).unwrap()
        });
        let rush = Rush(loads.into());
        rush.goes_on();
        rush
    }

    /// Waits until every way has made some connections more.
    fn goes_on(&self) {
        let done: Vec<usize> = self.0.iter().map(Load::done).collect();
        wait_until("connections are made", DEADLINE, || {
            self.0.iter().zip(&done).all(|(load, done)| load.done() > done + 50)
        });
    }

    fn none_failed(self) {
        self.goes_on();
        for load in self.0 {
            assert_eq!(load.stop().unwrap().failures, []);
        }
    }
}

fn delete_all(map: &Map) {
    let mut keys = Vec::new();
    map.for_each(|key, _| keys.push(key.to_vec())).unwrap();
    keys.iter().for_each(|key| _ = map.delete(key).unwrap());
}

#[test]
fn whatever_happens_to_maps_and_programs_no_connection_fails() {
    let Some(play) = Play::new() else { return };
    let agent = play.start("all");
    let traffic = Traffic::every_way(&play.stage.network);
    play.is_translating();
    for map in ["frontends", "endpoints"] {
        let repaired = agent.said("drift repaired");
        delete_all(&Map::open_pinned(&play.stage.map(map)).unwrap());
        agent.wait_for_more_than("drift repaired", repaired);
        play.is_translating();
    }
    for link in ["link-connect4-pods", "link-connect6-host"] {
        let repaired = agent.said("drift repaired");
        std::fs::remove_file(play.stage.pins().join(link)).unwrap();
        agent.wait_for_more_than("drift repaired", repaired);
        play.is_translating();
    }
    let repaired = agent.said("drift repaired");
    ferroxy_sockets::remove_pins(&play.stage.pins()).unwrap();
    agent.wait_for_more_than("drift repaired", repaired);
    play.is_translating();
    // Another program attaches to the same hook, and detaches again.
    let mut program = Assembler::new();
    program.set(Register::R0, 1).exit();
    let program = Program::load("other", Attach::Connect4, &program.finish().unwrap(), &[]).unwrap();
    let cgroup = Cgroup::open(&play.stage.cgroups.root().join("ka/kubepods")).unwrap();
    let other = Link::create("other", &program, &cgroup, Attach::Connect4).unwrap();
    play.is_translating();
    drop(other);
    play.is_translating();
    traffic.was_undisturbed();
    agent.terminate();
}

#[test]
fn agents_that_are_killed_replaced_and_reconfigured_disturb_no_connection() {
    let Some(play) = Play::new() else { return };
    let mut agent = play.start("all");
    let traffic = Traffic::every_way(&play.stage.network);
    for round in 0..12 {
        play.churn(round);
        if round % 3 == 0 {
            agent.wait_for("in sync");
        }
        // The kill may fall between any two writes.
        agent.signal(Signal::KILL);
        drop(agent.wait());
        agent = play.start("all");
    }
    play.is_translating();
    // Programs are attached and detached, for other clients each time.
    for clients in ["off", "host", "pods", "all"] {
        agent.terminate();
        agent = play.start(clients);
        let pinned = |link: &str| play.stage.pins().join(link).exists();
        let expected = |role: &str| clients == role || clients == "all";
        assert_eq!(pinned("link-connect4-host"), expected("host"), "{clients}");
        assert_eq!(pinned("link-connect4-pods"), expected("pods"), "{clients}");
    }
    play.is_translating();
    agent.settle(play.stage.ka());
    traffic.was_undisturbed();
    agent.terminate();
}

#[test]
fn sockets_go_on_while_the_rules_are_gone() {
    let Some(play) = Play::new() else { return };
    let agent = play.start("all");
    let rush = Rush::start(&play);
    // The agent is stopped, so it does not repair the rules.
    agent.signal(Signal::STOP);
    nft(play.stage.ka(), &["flush", "ruleset"]);
    rush.goes_on();
    agent.signal(Signal::CONT);
    agent.wait_for("drift repaired");
    rush.none_failed();
    agent.terminate();
    let pins = format!("--sockets-pins={}", play.stage.pins().display());
    let done = ferroxy(play.stage.ka(), &["cleanup", "--only-ours", &pins]);
    assert!(done.stdout.contains("removed: program connect4-host for sockets\n"), "{done:?}");
}

/// The metric with this name, of the agent that runs.
fn metric(play: &Play, name: &str) -> f64 {
    web::metrics(play.stage.ka()).get(name).copied().unwrap_or_default()
}

#[test]
fn maps_that_are_full_disturb_no_connection() {
    let Some(play) = Play::new() else { return };
    let agent = play.start_with("all", &["--sockets-max-entries=24".into()]);
    let rush = Rush::start(&play);
    let other = |number: usize| {
        let name = format!("other-{number}");
        Service::new(&name, &[&format!("10.96.1.{number}")])
            .port(Protocol::Tcp, 80, 8080)
            .endpoints(&["a1", "b1"])
    };
    let left_out = || metric(&play, "ferroxy_sockets_services_left_out");
    for number in 1..=24 {
        play.cluster.write_service(&other(number));
    }
    wait_until("Services are left out", DEADLINE, || left_out() >= 5.0);
    // All Services answer, at sockets or by packets.
    for number in 1..=24 {
        let target = format!("10.96.1.{number}:80");
        wait_until("it answers", DEADLINE, || {
            let answer = super::support::ask_from(&play.stage.network, "a1", Protocol::Tcp, &target);
            matches!(answer, ferroxy_lab::Answer::Reply(_))
        });
    }
    for number in 1..=24 {
        play.cluster.remove(&format!("other-{number}.yaml"));
    }
    wait_until("there is room again", DEADLINE, || left_out() == 0.0);
    play.is_translating();
    rush.none_failed();
    agent.terminate();
}

#[test]
fn a_cgroup_that_is_removed_and_made_again_disturbs_no_connection() {
    let Some(play) = Play::new() else { return };
    let pods = play.stage.cgroups.create("ka/later").unwrap();
    let agent = play.start_with("all", &[format!("--sockets-pods-cgroup={}", pods.display()).into()]);
    let rush = Rush::start(&play);
    let translated = || metric(&play, "ferroxy_sockets_translated{clients=\"pods\"}");
    for _ in 0..3 {
        wait_until("pods are translated", DEADLINE, || translated() == 1.0);
        std::fs::remove_dir(&pods).unwrap();
        wait_until("pods are not translated", DEADLINE, || translated() == 0.0);
        rush.goes_on();
        play.stage.cgroups.create("ka/later").unwrap();
    }
    wait_until("pods are translated", DEADLINE, || translated() == 1.0);
    rush.none_failed();
    agent.terminate();
}

/// The mount hides the pinned objects, but they stay in force.
#[test]
fn a_bpffs_that_is_mounted_over_disturbs_no_connection() {
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
    let Some(play) = Play::new() else { return };
    let agent = play.start("all");
    let rush = Rush::start(&play);
    let place = play.stage.pins.path();
    for (round, kind) in ["bpf", "tmpfs", "bpf"].into_iter().enumerate() {
        let (repaired, stopped) = (agent.said("drift repaired"), agent.said("is not on a bpffs"));
        mount("over", &place, kind, MountFlags::empty(), None).unwrap();
        match kind {
            "bpf" => agent.wait_for_more_than("drift repaired", repaired),
            _ => agent.wait_for_more_than("is not on a bpffs", stopped),
        }
        rush.goes_on();
        // Endpoints of another Service change meanwhile: no program may know only the old ones.
        let (before, after) = if round % 2 == 0 { ("a1", "b1") } else { ("b1", "a1") };
        for pod in [before, after] {
            let other =
                Service::new("other", &["10.96.0.81"]).port(Protocol::Tcp, 80, 8080).endpoints(&[pod]);
            play.cluster.write_service(&other);
            wait_until("the endpoint is reached", DEADLINE, || reached(&play).starts_with(pod));
            assert!((0..20).all(|_| reached(&play).starts_with(pod)), "only the new one");
        }
        unmount(&place, UnmountFlags::DETACH).unwrap();
        wait_until("pods are translated", DEADLINE, || {
            metric(&play, "ferroxy_sockets_translated{clients=\"pods\"}") == 1.0
        });
        play.is_translating();
        assert!((0..20).all(|_| reached(&play).starts_with(after)), "only the new one");
    }
    rush.none_failed();
    agent.terminate();
}

/// The answer of the Service `other`.
fn reached(play: &Play) -> String {
    let answer = super::support::ask_from(&play.stage.network, "a2", Protocol::Tcp, "10.96.0.81:80");
    answer.to_string()
}
