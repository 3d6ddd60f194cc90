//! A source whose thread ends is noticed.

#![allow(clippy::unwrap_used, reason = "the functions that tests share are tests too")]

use std::sync::mpsc;
use std::time::{Duration, Instant};

use ferroxy_core::Family;
use ferroxy_lab::api::cluster::Cluster;
use ferroxy_lab::api::{Options, Server};
use ferroxy_source::kube::{self, KubeSource, Update};

use super::*;
use crate::agent::{Receiver, inbox};
use crate::serve::health::Step;
use ferroxy_dataplane::Receipt;

/// Longer than any wait here, even on a slow machine.
const DEADLINE: Duration = Duration::from_secs(600);

/// A proxy on an eligible node that has done its first sync.
fn started() -> Arc<Status> {
    let status = Arc::new(Status::new(&Family::ALL, Duration::from_secs(30)));
    status.done(Step::Start, Instant::now(), &Receipt::default());
    status.now().node_eligible = true;
    status
}

/// Whether `/readyz` and `/livez` succeed.
fn checks(status: &Status) -> (bool, bool) {
    let (now, moment) = (status.refreshed(), Moment::now());
    (now.is_ready(moment), now.is_healthy(moment))
}

fn wait_for_the_list(inputs: &Receiver) {
    while !matches!(inputs.recv_timeout(DEADLINE).unwrap(), Input::Listed) {}
}

#[test]
fn the_proxy_is_ready_as_soon_as_everything_is_listed_and_not_alive_when_the_watch_thread_ends() {
    let server = Server::start(Options::default()).unwrap();
    let options = kube::Options { master: Some(server.url()), ..kube::Options::for_node("ka") };
    let source = Source::Api(ApiSource(Box::new(KubeSource::open(options).unwrap())));
    let (status, (sender, inputs)) = (started(), inbox());
    let watching = source.watch(sender, &status).unwrap();
    wait_for_the_list(&inputs);
    assert_eq!(checks(&status), (true, true), "no poll has to come first");
    // Ends the thread and waits for its end.
    drop(watching);
    assert_eq!(checks(&status), (false, false));
}

#[test]
fn a_source_reads_no_further_than_the_agent_has_room_and_is_not_blocked() {
    let server = Server::start(Options::default()).unwrap();
    server.put_all(Cluster::new(300, 200).objects()).unwrap();
    for is_read in [true, false] {
        let options = kube::Options { master: Some(server.url()), ..kube::Options::for_node("ka") };
        let source = Source::Api(ApiSource(Box::new(KubeSource::open(options).unwrap())));
        let (status, (sender, inputs)) = (started(), inbox());
        let queue = sender.gauge();
        let watching = source.watch(sender, &status).unwrap();
        let end = Instant::now() + DEADLINE;
        while !queue.depth().is_full && Instant::now() < end {
            std::thread::yield_now();
        }
        let depth = queue.depth();
        assert!(depth.is_full && depth.events < 800, "{depth:?}");
        if is_read {
            wait_for_the_list(&inputs);
        }
        // The source's thread ends, though the queue is full and nothing takes its inputs.
        drop(watching);
        drop(inputs);
    }
}

#[test]
fn a_thread_that_ends_while_its_handle_is_kept_is_noticed() {
    let server = Server::start(Options::default()).unwrap();
    let options = kube::Options { master: Some(server.url()), ..kube::Options::for_node("ka") };
    let (status, (listed, inputs)) = (started(), mpsc::channel());
    let guard = Guard::new(&status, "the thread has ended");
    let watch = KubeSource::open(options).unwrap().watch(move |update| {
        let _held = &guard;
        if update == Update::Listed {
            // The thread unwinds. (In the binary the whole process aborts, see `panic.rs`.)
            let _ = listed.send(());
            panic!("on purpose");
        }
    });
    let watch = Arc::new(watch.unwrap());
    let weak = Arc::downgrade(&watch);
    status.probe_source(move || api::state_of_watches(&weak));
    inputs.recv_timeout(DEADLINE).unwrap();
    // The sender is dropped together with the guard.
    assert!(inputs.recv_timeout(DEADLINE).is_err());
    let end = Instant::now() + DEADLINE;
    while checks(&status).1 && Instant::now() < end {
        std::thread::yield_now();
    }
    assert_eq!(checks(&status), (false, false));
}

#[test]
fn manifests_are_alive_while_they_are_followed() {
    let folder = tempfile::tempdir().unwrap();
    let (source, _) = ManifestSource::open(folder.path(), |_| {}).unwrap();
    let (status, (sender, _inputs)) = (started(), inbox());
    let watching = Source::Manifests(source).watch(sender, &status).unwrap();
    assert_eq!(checks(&status), (true, true));
    drop(watching);
    assert_eq!(checks(&status), (false, false));
}
