//! The Kubernetes API as a source: list, then watch, on a separate thread.
//!
//! ```text
//! access (who, where) ─▶ link (client, rotation, probe) ─▶ follow (one for each resource) ─▶ hub ─▶ on_update
//!                                                            │ framer ─▶ list_watch (the rules; pure), inventory ─▶ outlet
//! ```
//!
//! Objects are decoded into events; neither the objects nor their names are kept (exceptions: `inventory.rs`).
//! While the server is unreachable no object counts as gone; afterwards the watches continue at their versions.

mod access;
mod ask;
mod backoff;
mod credentials;
mod decode;
mod encoding;
mod follow;
mod framer;
mod hub;
mod inventory;
mod link;
mod list_watch;
mod liveness;
mod observer;
mod outlet;
mod person;
mod probe;
mod recorder;
mod resource;
mod source;

use std::path::PathBuf;

use ferroxy_core::{Diagnostic, Event};

pub use access::OpenError;
pub use decode::event_of;
pub use liveness::{Liveness, ResourceLiveness};
pub use observer::{Observation, Observer};
pub use person::{AgentPod, AskError, Person, Target};
pub use recorder::Recorder;
pub use source::{KubeSource, KubeWatch, ReadError};

/// How to reach the API server, and what to watch.
#[derive(Debug, Clone)]
pub struct Options {
    /// `None`, and no `master` either: the service account of the pod.
    pub kubeconfig: Option<PathBuf>,
    /// The server's URL; overrides the one in the kubeconfig, and is enough alone.
    pub master: Option<String>,
    /// The only Node that is watched.
    pub node_name: String,
    /// Watch ServiceCIDRs as well.
    pub service_cidrs: bool,
    pub user_agent: String,
    /// Requests per second; 0 means 5, a negative value means no limit.
    pub qps: f32,
    /// Burst of requests; 0 means 10.
    pub burst: u32,
    /// The encodings of answers, as in the header `Accept`. Empty: that of `content_type`, or JSON.
    pub accept_content_types: String,
    pub content_type: String,
}

impl Options {
    /// The service account of the pod, kube-proxy's limits, and protobuf.
    pub fn for_node(name: impl Into<String>) -> Options {
        Options {
            kubeconfig: None,
            master: None,
            node_name: name.into(),
            service_cidrs: true,
            user_agent: concat!("ferroxy/", env!("CARGO_PKG_VERSION")).to_owned(),
            qps: 5.0,
            burst: 10,
            accept_content_types: String::new(),
            content_type: "application/vnd.kubernetes.protobuf".to_owned(),
        }
    }
}

/// A list that the server refuses to this user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// 401 (who are you?) or 403 (you may not).
    pub code: u16,
    /// As `kubectl auth can-i list` takes it: `endpointslices.discovery.k8s.io`.
    pub resource: String,
    /// The message of the server, in one line: usually with the name of the user. May be empty.
    pub message: String,
}

/// What a watch reports.
#[derive(Debug, Clone, PartialEq)]
pub enum Update {
    Events(Vec<Event>),
    /// Services, EndpointSlices and the own Node (which may not exist) are complete. Sent once.
    Listed,
    /// Everything that is wrong with the source now; empty if nothing is.
    Troubles(Vec<Diagnostic>),
    /// The server does not let us list this resource. Only for a reader that does not wait for the permission.
    Denied(Denial),
}
