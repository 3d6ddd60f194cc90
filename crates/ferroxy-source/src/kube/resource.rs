//! The watched resources: paths, selectors and queries, the same as kube-proxy's.

use std::fmt::Write as _;

use super::ask::Ask;
use crate::object::Kind;

/// One kind of object at the API server.
#[derive(Debug, Clone)]
pub(super) struct Resource {
    pub(super) kind: Kind,
    path: &'static str,
    /// Ready to be part of a query; begins with `&`, or is empty.
    selectors: String,
}

impl Resource {
    pub(super) fn all(node_name: &str, service_cidrs: bool) -> Vec<Resource> {
        let mut all = vec![
            Resource {
                kind: Kind::Node,
                path: "/api/v1/nodes",
                selectors: format!("&fieldSelector={}", encoded(&format!("metadata.name={node_name}"))),
            },
            Resource {
                kind: Kind::Service,
                path: "/api/v1/services",
                selectors: format!(
                    "&labelSelector={}&fieldSelector={}",
                    encoded("!service.kubernetes.io/service-proxy-name"),
                    encoded("spec.clusterIP!=None")
                ),
            },
            Resource {
                kind: Kind::Slice,
                path: "/apis/discovery.k8s.io/v1/endpointslices",
                selectors: format!("&labelSelector={}", encoded("!service.kubernetes.io/headless")),
            },
        ];
        if service_cidrs {
            let path = "/apis/networking.k8s.io/v1/servicecidrs";
            all.push(Resource { kind: Kind::ServiceCidr, path, selectors: String::new() });
        }
        all
    }

    /// As `kubectl auth can-i` takes it: `services`, `endpointslices.discovery.k8s.io`.
    pub(super) fn qualified_name(&self) -> String {
        let mut parts = self.path.trim_start_matches('/').split('/');
        match (parts.next(), parts.next(), parts.next_back()) {
            (Some("apis"), Some(group), Some(name)) => format!("{name}.{group}"),
            (_, _, name) => name.unwrap_or_default().to_owned(),
        }
    }

    /// Path and query. The server ends a watch after `timeout_seconds`.
    pub(super) fn target(&self, ask: &Ask, timeout_seconds: u32) -> String {
        let Resource { path, selectors, .. } = self;
        let watch = format!("watch=1&allowWatchBookmarks=true&timeoutSeconds={timeout_seconds}");
        match ask {
            Ask::StreamingList => {
                format!("{path}?{watch}&sendInitialEvents=true&resourceVersionMatch=NotOlderThan{selectors}")
            }
            Ask::Watch { version } => {
                format!("{path}?{watch}&resourceVersion={}{selectors}", encoded(version))
            }
            Ask::Page { limit, token: None } => format!("{path}?limit={limit}{selectors}"),
            Ask::Page { limit, token: Some(token) } => {
                format!("{path}?limit={limit}&continue={}{selectors}", encoded(token))
            }
        }
    }
}

/// Percent-encodes everything that has a meaning in a query.
fn encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_their_api_group() {
        let names: Vec<String> = Resource::all("ka", true).iter().map(Resource::qualified_name).collect();
        let expected =
            ["nodes", "services", "endpointslices.discovery.k8s.io", "servicecidrs.networking.k8s.io"];
        assert_eq!(names, expected);
    }

    #[test]
    fn the_selectors_of_kube_proxy() {
        let all = Resource::all("ka.example", true);
        let targets: Vec<String> =
            all.iter().map(|it| it.target(&Ask::Page { limit: 5, token: None }, 0)).collect();
        let expected = [
            "/api/v1/nodes?limit=5&fieldSelector=metadata.name%3Dka.example",
            "/api/v1/services?limit=5&labelSelector=%21service.kubernetes.io%2Fservice-proxy-name\
             &fieldSelector=spec.clusterIP%21%3DNone",
            "/apis/discovery.k8s.io/v1/endpointslices?limit=5&labelSelector=%21service.kubernetes.io%2Fheadless",
            "/apis/networking.k8s.io/v1/servicecidrs?limit=5",
        ];
        assert_eq!(targets, expected);
        assert_eq!(Resource::all("ka", false).len(), 3);
    }

    #[test]
    fn every_question() {
        let cidrs = &Resource::all("ka", true)[3];
        let target = |ask| cidrs.target(&ask, 400).split_once('?').unwrap().1.to_owned();
        assert_eq!(
            target(Ask::StreamingList),
            "watch=1&allowWatchBookmarks=true&timeoutSeconds=400&sendInitialEvents=true\
             &resourceVersionMatch=NotOlderThan"
        );
        assert_eq!(
            target(Ask::Watch { version: "7".into() }),
            "watch=1&allowWatchBookmarks=true&timeoutSeconds=400&resourceVersion=7"
        );
        assert_eq!(
            target(Ask::Page { limit: 500, token: Some("a=&b".into()) }),
            "limit=500&continue=a%3D%26b"
        );
    }
}
