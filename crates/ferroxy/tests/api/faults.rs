//! Everything that can go wrong between the agent and the API server, under traffic: no connection is lost, the agent
//! programs the right state once the fault is over, and it does not list again without need.
//!
//! One table of scenes. Each has a network, a server and an agent of its own and plays its faults one after the other;
//! all scenes play at once, because most of their time is waiting.

mod troubles;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Instant;

use ferroxy_lab::api::{Access, Login};

use crate::support::web::{HEALTHZ, code};
use crate::support::{Agent, DEADLINE, Setting, Stage, Traffic, wait_until};
use troubles::*;

struct Scene {
    setting: Setting,
    faults: Vec<Trouble>,
}

/// One fault.
struct Trouble {
    name: &'static str,
    /// The agent is killed before the fault strikes, and starts while the fault lasts.
    at_start: bool,
    strike: fn(&Stage),
    /// Whether the fault has had its effect. Then the test ends the fault.
    struck: fn(&Stage, &Agent) -> bool,
    /// The agent must not change rules until the fault ends: it does not know enough.
    keeps_rules: bool,
    /// Ends the fault, in addition to clearing the server's faults.
    mend: fn(&Stage),
    /// How many lists of Services and EndpointSlices the fault causes; `None` if the number varies.
    lists: Option<usize>,
    /// Further checks after the fault.
    then: fn(&Stage),
}

impl Trouble {
    /// A fault under a running agent that ends as soon as it has begun, and causes no list.
    fn new(name: &'static str, strike: fn(&Stage)) -> Trouble {
        Trouble {
            name,
            at_start: false,
            strike,
            struck: |_, _| true,
            keeps_rules: false,
            mend: |_| {},
            lists: Some(0),
            then: |_| {},
        }
    }

    /// A fault under which the agent starts. A start without retries takes two lists.
    fn at_start(name: &'static str, strike: fn(&Stage)) -> Trouble {
        Trouble { at_start: true, lists: Some(2), ..Trouble::new(name, strike) }
    }

    fn until(self, struck: fn(&Stage, &Agent) -> bool) -> Trouble {
        Trouble { struck, ..self }
    }

    fn keeps_rules(self) -> Trouble {
        Trouble { keeps_rules: true, ..self }
    }

    fn mended_by(self, mend: fn(&Stage)) -> Trouble {
        Trouble { mend, ..self }
    }

    fn costs_lists(self, lists: usize) -> Trouble {
        Trouble { lists: Some(lists), ..self }
    }

    fn costs_any_number_of_lists(self) -> Trouble {
        Trouble { lists: None, ..self }
    }

    fn then(self, then: fn(&Stage)) -> Trouble {
        Trouble { then, ..self }
    }
}

#[test]
fn every_fault_passes_without_a_trace() {
    if crate::support::network().is_none() {
        return;
    }
    let failed: Vec<String> = thread::scope(|scope| {
        let playing: Vec<_> = scenes().into_iter().map(|scene| scope.spawn(move || play(scene))).collect();
        playing.into_iter().filter_map(|scene| scene.join().unwrap().err()).collect()
    });
    assert!(failed.is_empty(), "failed (see above): {failed:?}");
}

/// The error is the name of the fault that did not pass.
fn play(scene: Scene) -> Result<(), String> {
    let mut at = "the start";
    let began = Instant::now();
    let played = catch_unwind(AssertUnwindSafe(|| {
        let stage = Stage::new(scene.setting).unwrap();
        let mut agent = stage.start();
        wait_until("/readyz says 200", DEADLINE, || readiness(&stage) == 200);
        let traffic = Traffic::light(&stage.network);
        for trouble in &scene.faults {
            at = trouble.name;
            agent = pass(&stage, agent, trouble);
            println!("{:>5.1} s  {at}", began.elapsed().as_secs_f32());
        }
        traffic.was_undisturbed();
    }));
    played.map_err(|_| at.to_owned())
}

fn pass(stage: &Stage, agent: Agent, trouble: &Trouble) -> Agent {
    let running = if trouble.at_start {
        agent.kill();
        None
    } else {
        Some(agent)
    };
    stage.server.forget_requests();
    (trouble.strike)(stage);
    stage.move_other();
    let agent = running.unwrap_or_else(|| stage.spawn());
    wait_until(&format!("{} has struck", trouble.name), DEADLINE, || (trouble.struck)(stage, &agent));
    if trouble.keeps_rules {
        stage.other_was_left_alone();
    }
    stage.server.clear_faults().unwrap();
    (trouble.mend)(stage);
    stage.wait_for_other();
    if let Some(lists) = trouble.lists {
        // Each kind of object reconnects in its own time.
        wait_until(&format!("{lists} lists are asked for"), DEADLINE, || stage.lists() >= lists);
        assert_eq!(stage.lists(), lists, "lists of {}: {:#?}", trouble.name, stage.server.requests());
    }
    (trouble.then)(stage);

    stage.move_other();
    stage.wait_for_other();
    agent.settle(stage.ka());
    assert_eq!(agent.said("drift"), 0, "{}", agent.log());
    agent
}

/// Several faults in a scene lengthen the agent's backoff. So faults that make attempts fail are combined sparingly.
fn scenes() -> Vec<Scene> {
    let plain = |faults: Vec<Trouble>| Scene { setting: Setting::default(), faults };
    let mut scenes: Vec<Scene> = vec![
        plain(vec![cut(), refused(), no_bookmarks()]),
        plain(vec![hung_connections()]),
        plain(vec![hung_requests()]),
        plain(vec![hung_server()]),
        plain(vec![answers_500(), answers_503()]),
        plain(vec![answers_429()]),
        plain(vec![
            repeated_events(),
            stale_events(),
            wrong_types(),
            a_huge_object(),
            times_of_another_clock(),
        ]),
        plain(vec![garbage(), truncated_event(), cut_in_an_event(), error_event()]),
        plain(vec![absurd_length(), no_protobuf()]),
        plain(vec![expired_in_mid_stream(), expired_at_the_start_of_a_watch(), compacted_while_away()]),
        plain(vec![away_at_start(), half_listed()]),
        plain(vec![refused_lists(), a_list_that_is_cut(), no_streaming_lists(), trickling_lists()]),
        plain(vec![endless_lists()]),
        Scene {
            setting: Setting { host: "api", address: "172.31.255.1:6443", ..Setting::default() },
            faults: vec![vanished()],
        },
    ];
    scenes.extend(logins());
    scenes
}

fn logins() -> [Scene; 4] {
    let scene = |access, login, faults| Scene {
        setting: Setting { tls: true, access, login, ..Setting::default() },
        faults,
    };
    let rotated = |name| Trouble::new(name, rotate_credentials);
    [
        scene(
            Access::Token,
            Login::TokenFile,
            vec![rotated("a token file is rotated"), new_server_certificate(), new_authority()],
        ),
        scene(Access::Token, Login::Token, vec![rotated("a kubeconfig with its token is rotated")]),
        scene(
            Access::Token,
            Login::Exec,
            vec![rotated("a program makes another token").then(|stage| {
                let runs = std::fs::read_to_string(stage.folder().join("runs")).unwrap();
                assert!(runs.lines().count() > 1, "the program was not run again");
            })],
        ),
        scene(
            Access::ClientCertificate,
            Login::CertificateFiles,
            vec![rotated("a client certificate is rotated")],
        ),
    ]
}

fn readiness(stage: &Stage) -> u16 {
    code(stage.ka(), HEALTHZ, "/readyz").unwrap()
}
