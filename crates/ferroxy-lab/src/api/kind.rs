//! The kinds of objects that the server knows: names and paths, not their content.

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Service,
    EndpointSlice,
    Node,
    ServiceCidr,
    /// Only created, never listed or watched: kept for assertions.
    Event,
    /// Only in JSON; requests to a pod's port are passed on (`proxy`).
    Pod,
    /// Only in JSON.
    Secret,
}

impl Kind {
    pub const ALL: [Kind; 7] = [
        Kind::Service,
        Kind::EndpointSlice,
        Kind::Node,
        Kind::ServiceCidr,
        Kind::Event,
        Kind::Pod,
        Kind::Secret,
    ];

    /// As in an object's `kind`.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Service => "Service",
            Kind::EndpointSlice => "EndpointSlice",
            Kind::Node => "Node",
            Kind::ServiceCidr => "ServiceCIDR",
            Kind::Event => "Event",
            Kind::Pod => "Pod",
            Kind::Secret => "Secret",
        }
    }

    pub fn from_name(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// As in an object's `apiVersion`.
    pub fn api_version(self) -> &'static str {
        match self {
            Kind::Service | Kind::Node | Kind::Pod | Kind::Secret => "v1",
            Kind::EndpointSlice => "discovery.k8s.io/v1",
            Kind::ServiceCidr => "networking.k8s.io/v1",
            Kind::Event => "events.k8s.io/v1",
        }
    }

    /// Empty for the core group.
    pub fn group(self) -> &'static str {
        self.api_version().split_once('/').map_or("", |(group, _)| group)
    }

    /// As in a path, and in the messages of errors.
    pub fn resource(self) -> &'static str {
        match self {
            Kind::Service => "services",
            Kind::EndpointSlice => "endpointslices",
            Kind::Node => "nodes",
            Kind::ServiceCidr => "servicecidrs",
            Kind::Event => "events",
            Kind::Pod => "pods",
            Kind::Secret => "secrets",
        }
    }

    pub fn namespaced(self) -> bool {
        !matches!(self, Kind::Node | Kind::ServiceCidr)
    }

    /// `/api/v1/services`, `/apis/discovery.k8s.io/v1/namespaces/default/endpointslices`.
    pub fn path(self, namespace: Option<&str>) -> String {
        let root = if self.group().is_empty() { "api" } else { "apis" };
        let (version, resource) = (self.api_version(), self.resource());
        match namespace {
            Some(namespace) => format!("/{root}/{version}/namespaces/{namespace}/{resource}"),
            None => format!("/{root}/{version}/{resource}"),
        }
    }

    /// The fields of a bookmark's object besides its metadata: the zero value of the type as Go writes it, with nulls. A client
    /// that decodes bookmarks like objects must accept it.
    pub(super) fn zero_fields(self) -> &'static str {
        match self {
            Kind::Service => r#","spec":{},"status":{"loadBalancer":{}}"#,
            Kind::EndpointSlice => r#","addressType":"","endpoints":null,"ports":null"#,
            Kind::Node => r#","spec":{},"status":{"daemonEndpoints":{"kubeletEndpoint":{"Port":0}}}"#,
            Kind::ServiceCidr => r#","spec":{},"status":{}"#,
            Kind::Event | Kind::Pod | Kind::Secret => "",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The target of a path: all objects of a kind, those of a namespace, or one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub kind: Kind,
    pub namespace: Option<String>,
    pub name: Option<String>,
    /// Only the status of that object.
    pub status: bool,
}

impl Place {
    pub fn from_path(path: &str) -> Option<Place> {
        Kind::ALL.into_iter().find_map(|kind| Place::of_kind(kind, path))
    }

    fn of_kind(kind: Kind, path: &str) -> Option<Place> {
        let root = if kind.group().is_empty() { "/api/" } else { "/apis/" };
        let rest = path.strip_prefix(root)?.strip_prefix(kind.api_version())?.strip_prefix('/')?;
        let (namespace, rest) = match rest.strip_prefix("namespaces/") {
            Some(rest) if kind.namespaced() => {
                let (namespace, rest) = rest.split_once('/')?;
                (Some(namespace.to_owned()), rest)
            }
            _ => (None, rest),
        };
        let rest = rest.strip_prefix(kind.resource())?;
        let (rest, status) = match rest.strip_suffix("/status") {
            Some(object) if !object.is_empty() => (object, true),
            _ => (rest, false),
        };
        let name = match rest.strip_prefix('/') {
            Some(name) if !name.is_empty() && !name.contains('/') => Some(name.to_owned()),
            None if rest.is_empty() => None,
            _ => return None,
        };
        // An object of a namespaced kind has no path without its namespace.
        let complete = name.is_none() || namespace.is_some() || !kind.namespaced();
        complete.then_some(Place { kind, namespace, name, status })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(path: &str) -> Option<(Kind, Option<String>, Option<String>)> {
        Place::from_path(path).map(|place| (place.kind, place.namespace, place.name))
    }

    #[test]
    fn every_kind_is_found_at_its_own_path() {
        for kind in Kind::ALL {
            assert_eq!(place(&kind.path(None)), Some((kind, None, None)));
            assert_eq!(Kind::from_name(kind.name()), Some(kind));
        }
        assert_eq!(
            place("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/web-1"),
            Some((Kind::EndpointSlice, Some("default".into()), Some("web-1".into())))
        );
        assert_eq!(place("/api/v1/nodes/ka"), Some((Kind::Node, None, Some("ka".into()))));
    }

    #[test]
    fn other_paths_name_nothing() {
        for path in [
            "/api/v1/configmaps",
            "/api/v1/namespaces/default/pods/web:80/proxy/",
            "/api/v1/servicesx",
            "/api/v1/services/web",
            "/api/v1/services/",
            "/api/v1/namespaces/default/services/web/scale",
            "/api/v1/services/status",
            "/api/v1/namespaces/default/nodes",
            "/apis/v1/services",
            "/api/discovery.k8s.io/v1/endpointslices",
            "/",
        ] {
            assert_eq!(place(path), None, "{path}");
        }
    }
}
