//! Changes and faults on a node while the agent runs, and when it is restarted.

use ferroxy_hcn::{Guid, Kind};

use crate::node::{NEWEST, Node, service};

#[test]
#[ignore = "needs wine: make test-windows"]
fn the_agent_lives_through_what_happens_on_a_node() {
    let mut node = Node::new(NEWEST);
    node.put(&service(1, &[1, 2]));
    node.put(&service(2, &[3]));
    node.start();
    node.wait_for("the first sync", |node| node.has(&[("10.96.0.1", 2), ("10.96.0.2", 1)]));
    let warnings = node.logged();
    let warnings: Vec<&str> = warnings.lines().filter(|line| line.starts_with('W')).collect();
    let is_of_linux = |line: &&str| line.contains("oomScoreAdj") || line.contains("privileges");
    assert!(!warnings.iter().any(is_of_linux), "Windows has neither: {warnings:#?}");

    node.put(&service(1, &[1, 2, 4]));
    node.delete(2);
    node.put(&service(3, &[3]));
    node.wait_for("a change", |node| node.has(&[("10.96.0.1", 3), ("10.96.0.3", 1)]));
    node.wait_for_quiet();

    node.stop();
    let changes = node.fake.service().changes();
    node.start();
    node.wait_for_quiet();
    assert_eq!(node.fake.service().changes(), changes, "a restart changes nothing");

    let lost = node.fake.service().documents(Kind::LoadBalancer).next().unwrap().0;
    node.fake.service().remove(Kind::LoadBalancer, lost);
    node.wait_for("what others delete", |node| node.has(&[("10.96.0.1", 3), ("10.96.0.3", 1)]));

    node.fake.stop();
    node.put(&service(1, &[1]));
    let before = node.calls();
    node.wait_for("it asks while HNS is away", |node| node.calls() > before + 3);
    assert!(node.has(&[("10.96.0.1", 3), ("10.96.0.3", 1)]), "nothing is dropped");
    node.fake.resume();
    node.wait_for("HNS is back", |node| node.has(&[("10.96.0.1", 1), ("10.96.0.3", 1)]));
    node.wait_for_quiet();

    renew_network(&mut node);
    node.wait_for("the network is made anew", |node| node.has(&[("10.96.0.1", 1), ("10.96.0.3", 1)]));
}

fn renew_network(node: &mut Node) {
    let old = node.network;
    {
        let mut service = node.fake.service();
        for kind in Kind::ALL {
            let ids: Vec<Guid> = service.documents(kind).map(|(id, _)| id).collect();
            ids.into_iter().for_each(|id| service.remove(kind, id));
        }
    }
    node.add_network();
    assert_ne!(node.network, old);
}

/// Counts handles of HNS, threads of the program, and its open files as this machine sees them, because wine counts no handles.
#[test]
#[ignore = "needs wine: make test-windows"]
fn a_hundred_changes_leave_no_handle_open_no_thread_behind_and_no_memory_in_use() {
    let mut node = Node::new(NEWEST);
    node.put(&service(1, &[1]));
    node.start();
    node.wait_for("the first sync", |node| node.has(&[("10.96.0.1", 1)]));
    let mut figures = Vec::new();
    for round in 0..100u16 {
        node.put(&service(1, &[1, 100 + round]));
        let [high, low] = (100 + round).to_be_bytes();
        let added = format!("10.200.{high}.{low}");
        node.wait_for("the change", |node| node.has(&[("10.96.0.1", 2)]) && node.has_endpoint(&added));
        if round % 90 == 9 {
            node.wait_for_quiet();
            figures.push([
                node.fake.service().open_handles(),
                node.open_files(),
                node.figure("process_threads"),
                node.resident_kilobytes(),
            ]);
        }
    }
    let [before, after] = figures[..] else { panic!("{figures:?}") };
    // The handle of the network stays open; calls may be under way meanwhile.
    assert!(before[0] <= 2 && after[0] <= 2, "{figures:?}");
    // Far fewer than changes.
    assert!(after[1] <= before[1] + 8 && after[2] <= before[2] + 8, "{figures:?}");
    // In kilobytes. If each of ninety changes kept a list of all objects, memory would grow more.
    assert!(after[3] <= before[3] + 8192, "{figures:?}");
}

/// If a call does not return, the agent neither waits for ever nor drops a change.
#[test]
#[ignore = "needs wine: make test-windows"]
fn an_hns_that_hangs_shows_in_health_and_the_agent_goes_on_after_it() {
    let mut node = Node::new(NEWEST);
    node.put(&service(1, &[1, 2]));
    node.start();
    node.wait_for("the first sync", |node| node.has(&[("10.96.0.1", 2)]));
    node.fake.hang(true);
    node.wait_for("it says so", |node| node.logged().contains("no answer in time"));
    node.wait_for("it is not healthy", |node| node.healthz().is_some_and(|(status, _)| status == 503));
    assert!(node.has(&[("10.96.0.1", 2)]));
    node.put(&service(1, &[3]));
    node.fake.hang(false);
    node.wait_for("it goes on", |node| node.has(&[("10.96.0.1", 1)]));
    node.wait_for("it is healthy", |node| node.healthz().is_some_and(|(status, _)| status == 200));
}
