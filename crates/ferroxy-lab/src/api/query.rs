//! A request as tests see it: resource, verb and parameters. `answer` answers it.

use std::collections::BTreeMap;

use hyper::{Method, http::request::Parts};

use super::kind::{Kind, Place};
use super::proxy::Target;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    Get,
    /// One page of a list, or all of it.
    List,
    /// A watch that begins with all objects (`sendInitialEvents`).
    StreamList,
    Watch,
    Create,
    /// An object is applied, or its status merged.
    Patch,
    /// A request to a port of a pod.
    Proxy,
    /// Paths that are no resource, such as `/version` and `/livez`; methods that the server does not know.
    Other,
}

/// A received request, kept for assertions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// None if the path is not that of a resource.
    pub kind: Option<Kind>,
    pub verb: Verb,
    pub path: String,
    /// Decoded.
    pub query: BTreeMap<String, String>,
    pub user_agent: String,
    /// The header `Accept`.
    pub accept: String,
    /// The object or the namespace the path names.
    pub(super) place: Option<Place>,
    /// The port of a pod that the path leads to.
    pub(super) target: Option<Target>,
}

impl Request {
    pub(super) fn read(head: &Parts) -> Request {
        let path = head.uri.path().to_owned();
        let query = parse_query(head.uri.query().unwrap_or_default());
        let place = Place::from_path(&path);
        let target = Target::from_path(&path);
        let header = |name| {
            let value = head.headers.get(name);
            value.map(|value| String::from_utf8_lossy(value.as_bytes()).into()).unwrap_or_default()
        };
        let mut request = Request {
            kind: place.as_ref().map(|place| place.kind).or(target.as_ref().map(|_| Kind::Pod)),
            verb: Verb::Other,
            path,
            query,
            user_agent: header(hyper::header::USER_AGENT),
            accept: header(hyper::header::ACCEPT),
            place,
            target,
        };
        request.verb = request.find_verb(&head.method);
        request
    }

    fn find_verb(&self, method: &Method) -> Verb {
        if self.target.is_some() {
            return Verb::Proxy;
        }
        let Some(place) = &self.place else { return Verb::Other };
        match (method, &place.name) {
            (&Method::PATCH, Some(_)) => Verb::Patch,
            _ if place.status => Verb::Other,
            (&Method::POST, None) => Verb::Create,
            (&Method::GET, Some(_)) => Verb::Get,
            (&Method::GET, None) if !self.flag("watch") => Verb::List,
            (&Method::GET, None) if self.flag("sendInitialEvents") => Verb::StreamList,
            (&Method::GET, None) => Verb::Watch,
            _ => Verb::Other,
        }
    }

    /// Empty if missing, as in API servers.
    pub fn parameter(&self, name: &str) -> &str {
        self.query.get(name).map(String::as_str).unwrap_or_default()
    }

    pub fn flag(&self, name: &str) -> bool {
        matches!(self.parameter(name), "true" | "1")
    }
}

fn parse_query(query: &str) -> BTreeMap<String, String> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(n, v)| (decode(n), decode(v)))
        .collect()
}

/// Decodes percent-encoding. Invalid sequences stay unchanged.
fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let hex = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
        let (byte, after) = match (first, after.split_at_checked(2)) {
            (b'%', Some((digits, beyond))) => hex(digits).map_or((b'%', after), |byte| (byte, beyond)),
            (b'+', _) => (b' ', after),
            _ => (first, after),
        };
        bytes.push(byte);
        rest = after;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, uri: &str) -> Request {
        let request = hyper::Request::builder().method(method).uri(uri).header("User-Agent", "t/1").body(());
        Request::read(&request.unwrap().into_parts().0)
    }

    #[test]
    fn verbs() {
        for (method, uri, kind, verb) in [
            ("GET", "/api/v1/services", Some(Kind::Service), Verb::List),
            ("GET", "/api/v1/services?watch=0", Some(Kind::Service), Verb::List),
            ("GET", "/api/v1/services?watch=1&resourceVersion=5", Some(Kind::Service), Verb::Watch),
            ("GET", "/api/v1/nodes?watch=true&sendInitialEvents=true", Some(Kind::Node), Verb::StreamList),
            ("GET", "/api/v1/nodes/ka", Some(Kind::Node), Verb::Get),
            ("POST", "/apis/events.k8s.io/v1/namespaces/default/events", Some(Kind::Event), Verb::Create),
            ("PATCH", "/api/v1/nodes/ka", Some(Kind::Node), Verb::Patch),
            ("PATCH", "/api/v1/nodes/ka/status", Some(Kind::Node), Verb::Patch),
            ("GET", "/api/v1/nodes/ka/status", Some(Kind::Node), Verb::Other),
            ("DELETE", "/api/v1/nodes/ka", Some(Kind::Node), Verb::Other),
            ("GET", "/api/v1/namespaces/a/pods/b:80/proxy/api/v1/status", Some(Kind::Pod), Verb::Proxy),
            ("GET", "/livez", None, Verb::Other),
        ] {
            let request = request(method, uri);
            assert_eq!((request.kind, request.verb), (kind, verb), "{method} {uri}");
            assert_eq!(request.user_agent, "t/1");
        }
    }

    #[test]
    fn parameters_are_decoded() {
        let request = request(
            "GET",
            "/x?labelSelector=%21a.io%2Fb&fieldSelector=spec.clusterIP%21%3DNone&e&f=a+b&g=%zz%4",
        );
        assert_eq!(request.parameter("labelSelector"), "!a.io/b");
        assert_eq!(request.parameter("fieldSelector"), "spec.clusterIP!=None");
        assert_eq!((request.parameter("e"), request.parameter("f")), ("", "a b"));
        assert_eq!(request.parameter("g"), "%zz%4");
        assert_eq!(request.parameter("none"), "");
    }
}
