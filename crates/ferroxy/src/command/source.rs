//! Where the agent hears of the cluster: manifests, or the Kubernetes API.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use ferroxy_source::Kind;
use ferroxy_source::kube::{KubeSource, KubeWatch, Observation, Observer, ResourceLiveness, Update};
use ferroxy_source::manifest::{ManifestSource, ManifestWatch};
use tracing::warn;

use crate::agent::Input;
use crate::serve::requests::Request;
use crate::serve::status::Watch;
use crate::serve::{Moment, Status};

/// How often the status learns how the watches of the API server do.
const PULSE: Duration = Duration::from_secs(1);

/// How long a watch that ended is not yet called dead.
const REOPENING: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub enum Source {
    /// Read once already.
    Manifests(ManifestSource),
    /// Not asked for anything yet.
    Api(Box<KubeSource>),
}

/// As long as it is kept, the agent is told of changes.
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

    /// Tells the agent of everything from here on. It may end before us; then there is nobody left to tell.
    pub fn watch(self, inputs: Sender<Input>, status: &Arc<Status>) -> anyhow::Result<Watching> {
        match self {
            Source::Manifests(source) => {
                let listening = Listening::new(Arc::clone(status));
                let watch = source.watch(move |batch| {
                    listening.status.source_spoke();
                    let _ = inputs.send(Input::Events(batch.events));
                    let _ = inputs.send(Input::SourceDiagnostics(batch.diagnostics));
                });
                Ok(Watching::Manifests { _watch: watch.context("cannot watch the manifests")? })
            }
            Source::Api(source) => {
                let source = source.observed_by(counting(Arc::clone(status)));
                let watch = source.watch(move |update| {
                    let _ = inputs.send(match update {
                        Update::Events(events) => Input::Events(events),
                        Update::Listed => Input::Listed,
                        Update::Troubles(found) => Input::SourceDiagnostics(found),
                    });
                });
                let watch = Arc::new(watch.context("cannot watch the API server")?);
                status.tell_people_by(watch.recorder());
                feel_the_pulse(Arc::downgrade(&watch), Arc::clone(status));
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

/// Tells the status how the watches do, until there is no watch any more.
fn feel_the_pulse(watch: Weak<KubeWatch>, status: Arc<Status>) {
    let work = move || {
        while let Some(watch) = watch.upgrade() {
            status.source(watch.liveness().resources.into_iter().filter_map(watch_of).collect());
            drop(watch);
            thread::sleep(PULSE);
        }
    };
    if let Err(error) = thread::Builder::new().name("pulse".into()).spawn(work) {
        warn!("readiness will not know of the API server: cannot start a thread: {error}");
    }
}

/// One that is being opened again counts as alive for a while: that happens every few minutes. ServiceCIDRs are left
/// out: not every cluster has them, and rules are right without.
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

/// Held by whoever listens to the manifests: when that ends, however it ends, the status says so.
struct Listening {
    status: Arc<Status>,
}

impl Listening {
    /// They have been read once.
    fn new(status: Arc<Status>) -> Listening {
        status.source_spoke();
        Listening { status }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.status.source_ended();
    }
}
