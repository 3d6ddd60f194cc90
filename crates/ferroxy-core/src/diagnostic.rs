//! What is wrong with an object, which field says so, and what it means for traffic.

use std::fmt;

/// The object a diagnostic is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Object {
    /// The API's kind (`Service`), or `File` for a manifest that does not parse.
    pub kind: &'static str,
    /// `namespace/name`, a bare name for cluster-wide kinds, or a path.
    pub name: String,
}

impl Object {
    pub fn service(name: impl fmt::Display) -> Object {
        Object { kind: "Service", name: name.to_string() }
    }

    pub fn slice(name: impl fmt::Display) -> Object {
        Object { kind: "EndpointSlice", name: name.to_string() }
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

/// One thing that could not be used as it was written. Never stops anything else.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Diagnostic {
    pub object: Object,
    /// Path of the field, as in the manifest: `spec.ports[1].nodePort`.
    pub field: String,
    /// What is wrong: `node port 30080 already belongs to default/api`.
    pub reason: String,
    /// What it means: `port 8080 gets no node port`.
    pub effect: String,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}; {}", self.object, self.field, self.reason, self.effect)
    }
}
