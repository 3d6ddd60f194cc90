//! One hostile tenant does all it may at once; another tenant notices nothing, and the agent stays small, quiet and alive.
//!
//! What is asserted are amounts: failed connections, bytes of memory and of log, answers of /livez. How long a change of the other
//! tenant takes, quiet and under attack, is printed: `cargo test --test hostile -- --nocapture`.

#![allow(clippy::unwrap_used, reason = "the functions that tests share are tests too; clippy does not know")]

mod support;

use std::net::TcpStream;
use std::time::{Duration, Instant};

use ferroxy_lab::Protocol;
use ferroxy_lab::api::cluster::Cluster;

use support::hostile;
use support::web::{self, HEALTHZ};
use support::{Setting, Stage, Traffic, pod_from};

/// The cluster around the two tenants.
const SERVICES: usize = 1_000;
const ROUNDS: usize = 4;
/// Changes of the other tenant in each round.
const MOVES: usize = 10;
/// Connections to the health port that never say anything.
const IDLE: usize = 300;
const MEMORY: u64 = 64 * 1024;
/// Of the log, for each minute that has begun.
const LOG: usize = 1_000_000;

#[test]
fn a_hostile_tenant_hurts_nobody_else() {
    let Some(stage) = Stage::new(Setting::default()) else { return };
    let cluster = Cluster { services: SERVICES, endpoints: 4, nodes: 0 };
    // The range of Services is that of the stage.
    stage.server.put_all(cluster.objects().filter(|object| !object.contains("ServiceCIDR"))).unwrap();
    let agent = stage.start();
    let traffic = Traffic::every_way(&stage.network);
    let quiet = moves(&stage);
    let (memory, log, began) = (agent.resident(), agent.log().len(), Instant::now());

    let idle: Vec<TcpStream> = (0..IDLE).filter_map(|_| connect(&stage)).collect();
    assert!(!idle.is_empty());
    let mut attacked = Vec::new();
    for round in 0..ROUNDS {
        for object in hostile::objects(&["10.96.0.80", "10.96.0.81"], round) {
            stage.put(&object);
        }
        attacked.extend(moves(&stage));
    }

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
    println!("hostile: {}; {grown} KiB more memory, {written} bytes of log", compared(quiet, attacked));
    assert!(grown <= MEMORY, "{grown} KiB more memory");
    let minutes = usize::try_from(began.elapsed().as_secs() / 60).unwrap() + 1;
    assert!(written <= LOG * minutes, "{written} bytes of log in {minutes} minutes");
    assert!(!agent.log().contains('\u{1b}'), "an escape sequence of a tenant is in the log");
    drop(idle);
    agent.terminate();
}

/// How long the endpoint of the other tenant took to move, each time.
fn moves(stage: &Stage) -> Vec<Duration> {
    let one = |_| {
        let began = Instant::now();
        stage.move_other();
        stage.wait_for_other();
        began.elapsed()
    };
    (0..MOVES).map(one).collect()
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
