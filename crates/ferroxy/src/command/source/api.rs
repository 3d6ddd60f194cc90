//! The Kubernetes API as the source of the agent and of read-only commands.

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::Context;
use ferroxy_core::{Diagnostic, Event};
use ferroxy_source::Kind;
use ferroxy_source::kube::{KubeSource, KubeWatch, Observation, Observer, Options, ResourceLiveness, Update};

use super::Guard;
use crate::agent::{Input, Sender};
use crate::command::input::Settings;
use crate::serve::requests::Request;
use crate::serve::status::{SourceState, Watch};
use crate::serve::{Moment, Status};

/// How long a watch that ended still counts as alive.
const REOPENING: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct ApiSource(pub(super) Box<KubeSource>);

/// Changes are sent to the agent until this is dropped.
#[derive(Debug)]
pub struct ApiWatch {
    _watch: Arc<KubeWatch>,
}

impl ApiSource {
    /// Reads the credentials; sends no request to the API server yet.
    pub fn open(settings: &Settings, master: Option<&str>) -> anyhow::Result<ApiSource> {
        Ok(ApiSource(Box::new(KubeSource::open(options(settings, master))?)))
    }

    /// `https://192.0.2.1:6443`
    pub fn server(&self) -> String {
        self.0.server()
    }

    /// All present objects, as events.
    pub fn read_once(self, limit: Duration) -> anyhow::Result<(Vec<Event>, Vec<Diagnostic>)> {
        Ok(self.0.read_once(limit)?)
    }

    pub fn watch(self, inputs: Sender, status: &Arc<Status>) -> anyhow::Result<ApiWatch> {
        let queue = inputs.gauge();
        let source = self.0.observed_by(counting(Arc::clone(status)));
        // The thread of the watches also keeps connections alive. It stops reading while the queue is full, but never blocks.
        let source = source.held_back_while(move || queue.depth().is_full);
        let guard = Guard::new(status, "the thread that watches the API server has ended");
        let watch = source.watch(move |update| {
            let _held = &guard;
            let _ = inputs.send_now(match update {
                Update::Events(events) => Input::Events(events),
                Update::Listed => Input::Listed,
                Update::Troubles(found) => Input::SourceDiagnostics(found),
                // The agent waits for the permission; `Troubles` say which.
                Update::Denied(_) => return,
            });
        });
        let watch = Arc::new(watch.context("cannot watch the API server")?);
        let recorder = watch.recorder();
        status.record_events_with(move |occurrence| recorder.emit(occurrence));
        let weak = Arc::downgrade(&watch);
        status.probe_source(move || state_of_watches(&weak));
        Ok(ApiWatch { _watch: watch })
    }
}

fn options(settings: &Settings, master: Option<&str>) -> Options {
    let client = &settings.config.client;
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Options {
        kubeconfig: text(&client.kubeconfig).map(PathBuf::from),
        master: master.and_then(text),
        qps: client.qps as f32,
        burst: client.burst,
        accept_content_types: client.accept_content_types.clone(),
        content_type: client.content_type.clone(),
        ..Options::for_node(&settings.node_name)
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

pub(super) fn state_of_watches(watch: &Weak<KubeWatch>) -> SourceState {
    let resources = watch.upgrade().map(|watch| watch.liveness().resources).unwrap_or_default();
    SourceState::of_watches(resources.into_iter().filter_map(watch_of).collect())
}

/// A watch that is being reopened counts as alive for a while: that happens every few minutes. ServiceCIDRs are left
/// out: not every cluster has them, and the rules are right without them.
fn watch_of(liveness: ResourceLiveness) -> Option<Watch> {
    let ResourceLiveness { kind, listed, connected, last_activity, .. } = liveness;
    let resource = match kind {
        Kind::Node => "nodes",
        Kind::Service => "services",
        Kind::Slice => "endpointslices",
        Kind::ServiceCidr => return None,
    };
    let alive = listed && (connected || last_activity.is_some_and(|age| age < REOPENING));
    Some(Watch { resource, alive, last_activity: last_activity.and_then(Moment::ago) })
}
