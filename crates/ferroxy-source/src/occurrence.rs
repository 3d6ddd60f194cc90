//! An occurrence that users see as an Event of the cluster. The API client sends it (`kube/recorder.rs`).

/// An event to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Occurrence {
    pub regarding: Regarding,
    /// `FailedToStartServiceHealthcheck`
    pub reason: String,
    /// What was being done: `Listen`.
    pub action: String,
    /// The part of the object, where there are several: an endpoint. Empty: all of it.
    pub about: String,
    pub note: String,
    pub warning: bool,
}

/// The object that an event is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Regarding {
    Node(String),
    Service { namespace: String, name: String },
}
