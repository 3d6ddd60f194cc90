//! One object of a kind that a proxy reads: its key, and the event that reports it. Not a wire type.

use ferroxy_core::event::{EndpointSlice, Event, Node, Service, ServiceCidr};
use ferroxy_core::{Object as Subject, ObjectKind};

/// An object that exists.
#[derive(Debug, Clone, PartialEq)]
pub struct Object {
    key: Key,
    event: Event,
}

/// The kinds that a proxy reads. Changes are reported in this order: objects that others refer to come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Node,
    ServiceCidr,
    Service,
    Slice,
}

/// Identifies an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub kind: Kind,
    /// Empty for cluster-wide kinds.
    pub namespace: String,
    pub name: String,
}

impl Object {
    pub fn service(object: Service) -> Object {
        let key = Key::new(Kind::Service, &object.namespace, &object.name);
        Object { key, event: Event::Service(object) }
    }

    pub fn slice(object: EndpointSlice) -> Object {
        let key = Key::new(Kind::Slice, &object.namespace, &object.name);
        Object { key, event: Event::Slice(object) }
    }

    pub fn node(object: Node) -> Object {
        Object { key: Key::new(Kind::Node, "", &object.name), event: Event::Node(object) }
    }

    pub fn service_cidr(object: ServiceCidr) -> Object {
        Object { key: Key::new(Kind::ServiceCidr, "", &object.name), event: Event::ServiceCidr(object) }
    }

    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The event that reports this object.
    pub fn event(&self) -> &Event {
        &self.event
    }
}

impl From<Object> for Event {
    fn from(object: Object) -> Event {
        object.event
    }
}

impl Kind {
    fn is_cluster_wide(self) -> bool {
        matches!(self, Kind::Node | Kind::ServiceCidr)
    }

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
    /// Cluster-wide kinds ignore the namespace.
    pub(crate) fn new(kind: Kind, namespace: &str, name: &str) -> Key {
        let namespace = if kind.is_cluster_wide() { "" } else { namespace };
        Key { kind, namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// The event that reports the removal of this object.
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
