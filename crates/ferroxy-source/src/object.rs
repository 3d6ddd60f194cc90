//! One object of a kind a proxy reads, and its name. Not a wire type.

use ferroxy_core::event::{EndpointSlice, Event, Node, Service, ServiceCidr};
use ferroxy_core::{Object as Subject, ObjectKind};

#[derive(Debug, Clone, PartialEq, Hash)]
#[allow(clippy::large_enum_variant, reason = "passes by one at a time and is never kept, like the events")]
pub enum Object {
    Service(Service),
    Slice(EndpointSlice),
    Node(Node),
    ServiceCidr(ServiceCidr),
}

/// The kinds a proxy reads. Their order is the order changes are told in: what others refer to comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Node,
    ServiceCidr,
    Service,
    Slice,
}

/// What makes two objects the same one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub kind: Kind,
    /// Empty for cluster-wide kinds.
    pub namespace: String,
    pub name: String,
}

impl Object {
    pub fn key(&self) -> Key {
        let (kind, namespace, name) = match self {
            Object::Service(it) => (Kind::Service, it.namespace.as_str(), &it.name),
            Object::Slice(it) => (Kind::Slice, it.namespace.as_str(), &it.name),
            Object::Node(it) => (Kind::Node, "", &it.name),
            Object::ServiceCidr(it) => (Kind::ServiceCidr, "", &it.name),
        };
        Key { kind, namespace: namespace.to_owned(), name: name.clone() }
    }
}

impl From<Object> for Event {
    fn from(object: Object) -> Event {
        match object {
            Object::Service(it) => Event::Service(it),
            Object::Slice(it) => Event::Slice(it),
            Object::Node(it) => Event::Node(it),
            Object::ServiceCidr(it) => Event::ServiceCidr(it),
        }
    }
}

impl Kind {
    /// The API's spelling.
    pub fn as_str(self) -> &'static str {
        ObjectKind::from(self).as_str()
    }
}

impl From<Kind> for ObjectKind {
    fn from(kind: Kind) -> ObjectKind {
        match kind {
            Kind::Node => ObjectKind::Node,
            Kind::ServiceCidr => ObjectKind::ServiceCidr,
            Kind::Service => ObjectKind::Service,
            Kind::Slice => ObjectKind::EndpointSlice,
        }
    }
}

impl Key {
    /// The event that says this object is no more.
    pub fn gone(self) -> Event {
        let Key { kind, namespace, name } = self;
        match kind {
            Kind::Node => Event::NodeGone { name },
            Kind::ServiceCidr => Event::ServiceCidrGone { name },
            Kind::Service => Event::ServiceGone { namespace, name },
            Kind::Slice => Event::SliceGone { namespace, name },
        }
    }

    /// The object as a [`Diagnostic`](ferroxy_core::Diagnostic) names it.
    pub fn subject(&self) -> Subject {
        let name = match self.namespace.as_str() {
            "" => self.name.clone(),
            namespace => format!("{namespace}/{}", self.name),
        };
        Subject { kind: self.kind.into(), name }
    }
}
