//! The source of Services and EndpointSlices for the agent: manifests, or the Kubernetes API.

// Without the feature, a type of the same name that has no values: only this place has to distinguish.
#[cfg_attr(not(feature = "api"), path = "source/no_api.rs")]
mod api;
#[cfg(all(test, feature = "api"))]
mod tests;

use std::sync::Arc;

use anyhow::Context;
use ferroxy_source::manifest::{LastLook, ManifestSource, ManifestWatch};

pub use api::{ApiSource, ApiWatch};

use crate::agent::{Input, Sender};
use crate::serve::status::SourceState;
use crate::serve::{Moment, Status};

#[derive(Debug)]
pub enum Source {
    /// Was read once already.
    Manifests(ManifestSource),
    /// Was not queried yet.
    Api(ApiSource),
}

/// Changes are sent to the agent until this is dropped.
#[derive(Debug)]
pub enum Watching {
    Manifests { _watch: ManifestWatch },
    Api { _watch: ApiWatch },
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
    pub fn watch(self, inputs: Sender, status: &Arc<Status>) -> anyhow::Result<Watching> {
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
            Source::Api(source) => Ok(Watching::Api { _watch: source.watch(inputs, status)? }),
        }
    }
}

fn state_of_manifests(last_look: &LastLook) -> SourceState {
    SourceState { last_sign: Moment::ago(last_look.age()), is_following: true, watches: Vec::new() }
}

/// Owned by the thread of a source. When the thread ends, for any reason, the status reports it.
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
