//! One hostile tenant does everything it may do, all at once. Connections of another tenant do not fail, and the agent stays small,
//! quiet and alive.
//!
//! The test asserts amounts: failed connections, bytes of memory and of log, answers of /livez. It prints how long a change of the
//! other tenant takes, quiet and under attack: `cargo test --test node hostile -- --nocapture`.

use std::collections::HashSet;
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use ferroxy_core::policy::Limits;
use ferroxy_lab::Protocol;
use ferroxy_lab::api::cluster::Cluster;

use crate::support::hostile;
use crate::support::web::{self, HEALTHZ};
use crate::support::{DEADLINE, Setting, Stage, Traffic, configured, nft, pod_from, wait_until};

/// A mode, and how much is done to it.
struct Trial {
    mode: &'static str,
    /// The cluster around the two tenants.
    services: usize,
    rounds: usize,
    /// Changes of the other tenant in each round.
    moves: usize,
    /// By how many KiB the agent's memory may grow.
    memory: u64,
}

/// Connections to the health port that never say anything.
const IDLE: usize = 300;
/// Bytes of log for each minute that has begun.
const LOG: usize = 1_000_000;

#[test]
fn a_hostile_tenant_hurts_nobody_else() {
    let trial = Trial { mode: "nftables", services: 1_000, rounds: 4, moves: 10, memory: 64 * 1024 };
    trial.run(|stage| {
        let listing = nft(stage.ka(), &["--numeric", "list", "table", "ip6", "ferroxy"]);
        let addresses = listing.split_whitespace().filter(|word| word.starts_with(hostile::COLLIDING_PREFIX));
        addresses.collect::<HashSet<_>>().len()
    });
}

/// Each frontend is a rule here, and a packet passes all of them. So the cluster is smaller; docs/limits.md says what that costs.
#[test]
fn a_hostile_tenant_hurts_nobody_else_in_iptables_mode() {
    let trial = Trial { mode: "iptables", services: 100, rounds: 2, moves: 3, memory: 128 * 1024 };
    trial.run(|stage| {
        let rules = ["iptables-nft", "iptables-legacy"].map(|tools| saved(stage, tools));
        let addresses = rules.iter().flat_map(|rules| rules.split_whitespace());
        let theirs = addresses.filter(|word| word.starts_with(hostile::COLLIDING_PREFIX));
        theirs.collect::<HashSet<_>>().len()
    });
}

/// The IPv6 NAT rules of a variant of the tools, if this machine has it.
fn saved(stage: &Stage, tools: &str) -> String {
    let save = tools.replacen("iptables", "ip6tables", 1) + "-save";
    let output = stage.ka().run(|| Command::new(save).args(["-t", "nat"]).output()).unwrap();
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

impl Trial {
    /// `programmed` counts the tenant's IPv6 external IPs in the kernel.
    fn run(&self, programmed: impl Fn(&Stage) -> usize) {
        let Some(stage) = Stage::new(Setting::default()) else { return };
        stage.write_config(&configured("clusterip-tcp", self.mode));
        let cluster = Cluster { services: self.services, endpoints: 4, nodes: 0 };
        // The stage has created the ServiceCIDR already.
        stage.server.put_all(cluster.objects().filter(|object| !object.contains("ServiceCIDR"))).unwrap();
        let agent = stage.start();
        let traffic = Traffic::every_way(&stage.network);
        let quiet = self.moves(&stage);
        let (memory, log, began) = (agent.resident(), agent.log().len(), Instant::now());

        let idle: Vec<TcpStream> = (0..IDLE).filter_map(|_| connect(&stage)).collect();
        assert!(!idle.is_empty());
        let mut attacked = Vec::new();
        for round in 0..self.rounds {
            for object in hostile::objects(&["10.96.0.80", "10.96.0.81"], round) {
                stage.put(&object);
            }
            attacked.extend(self.moves(&stage));
        }

        self.the_attack_is_real(&stage, &programmed);
        // An address belongs to the Service that has it as cluster IP, however old another claim says it is.
        assert!(
            ["a1", "a2", "b1", "b2"]
                .contains(&pod_from(&stage.network, "a1", Protocol::Tcp, "10.96.0.80:80").as_str())
        );
        let alive = (0..100).filter(|_| web::code(stage.ka(), HEALTHZ, "/livez") == Some(200)).count();
        assert_eq!(alive, 100, "answers of /livez out of 100");
        traffic.was_undisturbed();
        let grown = agent.resident().saturating_sub(memory);
        let written = agent.log().len() - log;
        println!(
            "hostile: {} mode: {}; {grown} KiB more memory, {written} bytes of log",
            self.mode,
            compared(quiet, attacked)
        );
        assert!(grown <= self.memory, "{grown} KiB more memory");
        let minutes = usize::try_from(began.elapsed().as_secs() / 60).unwrap() + 1;
        assert!(written <= LOG * minutes, "{written} bytes of log in {minutes} minutes");
        assert!(!agent.log().contains('\u{1b}'), "an escape sequence of a tenant is in the log");
        drop(idle);
        agent.terminate();
    }

    /// The tenant's Services are programmed, as far as the limits allow.
    fn the_attack_is_real(&self, stage: &Stage, programmed: impl Fn(&Stage) -> usize) {
        let left_out = || web::metrics(stage.ka())["ferroxy_services_left_out{kind=\"frontends\"}"];
        wait_until("what is beyond the limits is counted", DEADLINE, || {
            left_out() == hostile::left_out() as f64
        });
        // All but the two cluster IPs.
        let most = Limits::default().frontends - 2;
        wait_until("the tenant has as many IPv6 frontends as a Service may have", DEADLINE, || {
            programmed(stage) == most
        });
    }

    /// How long the endpoint of the other tenant took to move, each time.
    fn moves(&self, stage: &Stage) -> Vec<Duration> {
        let one = |_| {
            let began = Instant::now();
            stage.move_other();
            stage.wait_for_other();
            began.elapsed()
        };
        (0..self.moves).map(one).collect()
    }
}

fn compared(mut quiet: Vec<Duration>, mut attacked: Vec<Duration>) -> String {
    quiet.sort();
    attacked.sort();
    let last = |all: &[Duration]| all.last().copied().unwrap_or_default();
    let middle = |all: &[Duration]| all[all.len() / 2];
    format!(
        "a change takes {:.1?} (at most {:.1?}) in peace, {:.1?} (at most {:.1?}) under attack",
        middle(&quiet),
        last(&quiet),
        middle(&attacked),
        last(&attacked)
    )
}

fn connect(stage: &Stage) -> Option<TcpStream> {
    let address = HEALTHZ.parse().unwrap();
    stage.ka().run(|| TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok()).unwrap()
}
