//! The source of Services and EndpointSlices for the agent: manifests, or the Kubernetes API.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::Context;
use ferroxy_source::Kind;
use ferroxy_source::kube::{KubeSource, KubeWatch, Observation, Observer, ResourceLiveness, Update};
use ferroxy_source::manifest::{LastLook, ManifestSource, ManifestWatch};

use crate::agent::Input;
use crate::serve::requests::Request;
use crate::serve::status::{SourceState, Watch};
use crate::serve::{Moment, Status};

/// How long a watch that ended still counts as alive.
const REOPENING: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub enum Source {
    /// Read once already.
    Manifests(ManifestSource),
    /// Not asked for anything yet.
    Api(Box<KubeSource>),
}

/// Changes are sent to the agent until this is dropped.
#[derive(Debug)]
pub enum Watching {
    Manifests { _watch: ManifestWatch },
    Api { _watch: Arc<KubeWatch> },
}

impl Source {
    /// `the API server https://192.0.2.1:6443`
    pub fn describe(&self) -> String {
        match self {
            Source::Manifests(source) => format!("the manifests in {}", source.path().display()),
            Source::Api(source) => format!("the API server {}", source.server()),
        }
    }

    /// Sends every change to the agent from now on. The agent may end first; then sending fails and does not matter.
    pub fn watch(self, inputs: Sender<Input>, status: &Arc<Status>) -> anyhow::Result<Watching> {
        match self {
            Source::Manifests(source) => {
                let last_look = source.last_look();
                status.probe_source(move || state_of_manifests(&last_look));
                let guard = Guard::new(status, "the thread that follows the manifests has ended");
                let watch = source.watch(move |batch| {
                    let _held = &guard;
                    let _ = inputs.send(Input::Events(batch.events));
                    let _ = inputs.send(Input::SourceDiagnostics(batch.diagnostics));
                });
                Ok(Watching::Manifests { _watch: watch.context("cannot watch the manifests")? })
            }
            Source::Api(source) => {
                let source = source.observed_by(counting(Arc::clone(status)));
                let guard = Guard::new(status, "the thread that watches the API server has ended");
                let watch = source.watch(move |update| {
                    let _held = &guard;
                    let _ = inputs.send(match update {
                        Update::Events(events) => Input::Events(events),
                        Update::Listed => Input::Listed,
                        Update::Troubles(found) => Input::SourceDiagnostics(found),
                    });
                });
                let watch = Arc::new(watch.context("cannot watch the API server")?);
                status.tell_people_by(watch.recorder());
                let weak = Arc::downgrade(&watch);
                status.probe_source(move || state_of_watches(&weak));
                Ok(Watching::Api { _watch: watch })
            }
        }
    }
}

fn counting(status: Arc<Status>) -> Observer {
    Observer::new(move |observation| match observation {
        Observation::Request { method, server, code, took } => {
            let host = server.split_once("://").map_or(server, |(_, host)| host);
            status.requested(Request { method, host, code, took });
        }
        Observation::ServerVersion(version) => status.cluster_version(version),
    })
}

fn state_of_manifests(last_look: &LastLook) -> SourceState {
    SourceState { last_sign: Moment::ago(last_look.age()), is_following: true, watches: Vec::new() }
}

fn state_of_watches(watch: &Weak<KubeWatch>) -> SourceState {
    let resources = watch.upgrade().map(|watch| watch.liveness().resources).unwrap_or_default();
    SourceState::of_watches(resources.into_iter().filter_map(watch_of).collect())
}

/// A watch that is being reopened counts as alive for a while: that happens every few minutes. ServiceCIDRs are left
/// out: not every cluster has them, and the rules are right without them.
fn watch_of(liveness: ResourceLiveness) -> Option<Watch> {
    let ResourceLiveness { kind, listed, connected, last_heard, .. } = liveness;
    let resource = match kind {
        Kind::Node => "nodes",
        Kind::Service => "services",
        Kind::Slice => "endpointslices",
        Kind::ServiceCidr => return None,
    };
    let alive = listed && (connected || last_heard.is_some_and(|age| age < REOPENING));
    Some(Watch { resource, alive, last_heard: last_heard.and_then(Moment::ago) })
}

/// Belongs to the thread of a source. When the thread ends, for whatever reason, the status reports it.
struct Guard {
    status: Arc<Status>,
    why: &'static str,
}

impl Guard {
    fn new(status: &Arc<Status>, why: &'static str) -> Guard {
        Guard { status: Arc::clone(status), why }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.status.source_ended(self.why);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Receiver};
    use std::time::Instant;

    use ferroxy_core::Family;
    use ferroxy_lab::api::{Options, Server};
    use ferroxy_source::kube;

    use super::*;
    use crate::serve::health::Step;
    use ferroxy_dataplane::Receipt;

    /// More than anything here takes, even on a slow machine.
    const DEADLINE: Duration = Duration::from_secs(60);

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

    fn wait_for_the_list(inputs: &Receiver<Input>) {
        while !matches!(inputs.recv_timeout(DEADLINE).unwrap(), Input::Listed) {}
    }

    #[test]
    fn the_proxy_is_ready_as_soon_as_everything_is_listed_and_not_alive_when_the_watch_thread_ends() {
        let server = Server::start(Options::default()).unwrap();
        let options = kube::Options { master: Some(server.url()), ..kube::Options::for_node("ka") };
        let source = Source::Api(Box::new(KubeSource::open(options).unwrap()));
        let (status, (sender, inputs)) = (started(), mpsc::channel());
        let watching = source.watch(sender, &status).unwrap();
        wait_for_the_list(&inputs);
        assert_eq!(checks(&status), (true, true), "no poll has to come first");
        // Ends the thread and waits for its end.
        drop(watching);
        assert_eq!(checks(&status), (false, false));
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
        status.probe_source(move || state_of_watches(&weak));
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
        let (status, (sender, _inputs)) = (started(), mpsc::channel());
        let watching = Source::Manifests(source).watch(sender, &status).unwrap();
        assert_eq!(checks(&status), (true, true));
        drop(watching);
        assert_eq!(checks(&status), (false, false));
    }
}
