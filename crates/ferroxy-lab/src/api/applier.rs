//! Puts objects into an API server through its API, as `kubectl apply --server-side` does. Used with the real API
//! server.

use std::collections::BTreeSet;
use std::sync::Mutex;

use bytes::Bytes;
use hyper::Method;
use serde_json::{Value, json};

use super::caller::{Caller, Reply};
use super::kind::Kind;
use super::lock;
use crate::error::{LabError, Result};

#[derive(Debug)]
pub(super) struct Applier {
    caller: Caller,
    /// Namespaces that are known to exist.
    namespaces: Mutex<BTreeSet<String>>,
}

impl Applier {
    pub fn new(caller: Caller) -> Applier {
        let namespaces = Mutex::new(BTreeSet::from(["default".to_owned(), "kube-system".to_owned()]));
        Applier { caller, namespaces }
    }

    pub fn put(&self, object: &Value) -> Result<()> {
        let (path, namespace) = place_of(object)?;
        if let Some(namespace) = namespace {
            self.ensure_namespace(&namespace)?;
        }
        self.apply(&path, &applied(object))?;
        match object["status"].as_object() {
            Some(status) if !status.is_empty() => self.set_status(&path, &json!({"status": status})),
            _ => Ok(()),
        }
    }

    pub fn delete(&self, kind: Kind, namespace: &str, name: &str) -> Result<()> {
        let path = format!("{}/{name}", kind.path(kind.namespaced().then_some(namespace)));
        let reply = self.caller.call(Method::DELETE, &path, "application/json", Bytes::new())?;
        expect(&reply, &[200, 202], || format!("delete {path}"))
    }

    /// Server-side apply: creates the object, or replaces what an earlier apply has set.
    fn apply(&self, path: &str, object: &Value) -> Result<()> {
        let path = format!("{path}?fieldManager=ferroxy-lab&force=true");
        let body = Bytes::from(object.to_string());
        let reply = self.caller.call(Method::PATCH, &path, "application/apply-patch+yaml", body)?;
        expect(&reply, &[200, 201], || format!("apply {path}"))
    }

    /// The status is merged, which replaces lists as a whole. It cannot be applied: the key of a node's addresses is
    /// their type, so that two addresses of one type, for example one of each family, are rejected.
    fn set_status(&self, path: &str, status: &Value) -> Result<()> {
        let path = format!("{path}/status");
        let body = Bytes::from(status.to_string());
        let reply = self.caller.call(Method::PATCH, &path, "application/merge-patch+json", body)?;
        expect(&reply, &[200], || format!("set {path}"))
    }

    fn ensure_namespace(&self, namespace: &str) -> Result<()> {
        if lock(&self.namespaces).contains(namespace) {
            return Ok(());
        }
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        self.apply(&format!("/api/v1/namespaces/{namespace}"), &object)?;
        lock(&self.namespaces).insert(namespace.to_owned());
        Ok(())
    }
}

/// The path of an object, and the namespace that must exist for it.
fn place_of(object: &Value) -> Result<(String, Option<String>)> {
    let wrong = |what: &str| LabError::Api(format!("an object without a known {what}: {object}"));
    let kind = object["kind"].as_str().and_then(Kind::from_name).ok_or_else(|| wrong("kind"))?;
    let name = object["metadata"]["name"].as_str().ok_or_else(|| wrong("name"))?;
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
    let namespace = kind.namespaced().then(|| namespace.to_owned());
    Ok((format!("{}/{name}", kind.path(namespace.as_deref())), namespace))
}

/// The object without fields that only the server may set, and without the status, which has a path of its own. (The
/// server ignores a status here, but tries to merge it first.)
fn applied(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for field in ["resourceVersion", "uid", "creationTimestamp", "generation", "managedFields"] {
            metadata.remove(field);
        }
    }
    object
}

/// The error has the server's message.
fn expect(reply: &Reply, codes: &[u16], action: impl Fn() -> String) -> Result<()> {
    if codes.contains(&reply.code) {
        return Ok(());
    }
    let status: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
    let message = status["message"].as_str().unwrap_or("no message");
    Err(LabError::Api(format!("{}: {} {message}", action(), reply.code)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::caller::Target;
    use crate::api::{Options, Server};

    fn ours() -> (Server, Applier) {
        let server = Server::start(Options::default()).unwrap();
        let target = Target { address: server.address(), authority: None, token: String::new() };
        let applier = Applier::new(Caller::new(target).unwrap());
        (server, applier)
    }

    fn node() -> Value {
        let address = |address: &str| json!({"type": "InternalIP", "address": address});
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "ka", "uid": "7"},
            "spec": {"podCIDR": "10.244.1.0/24"},
            "status": {"addresses": [address("172.18.0.2"), address("fd00:172:18::2")]},
        })
    }

    #[test]
    fn a_node_with_two_internal_addresses_is_put() {
        let (_server, applier) = ours();
        for _ in 0..2 {
            applier.put(&node()).unwrap();
        }
        let reply = applier.caller.call(Method::GET, "/api/v1/nodes/ka", "", Bytes::new()).unwrap();
        let found: Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!((&found["spec"], &found["status"]), (&node()["spec"], &node()["status"]));
    }

    #[test]
    fn a_refusal_has_the_servers_message() {
        let (_server, applier) = ours();
        let error = applier.apply("/api/v1/nodes/ka", &node()).unwrap_err().to_string();
        assert!(error.contains(": 500 ") && error.contains("duplicate entries"), "{error}");
        let mut same_twice = node();
        same_twice["status"]["addresses"][1] = same_twice["status"]["addresses"][0].clone();
        let error = applier.put(&same_twice).unwrap_err().to_string();
        assert!(error.contains(": 422 ") && error.contains("status.addresses"), "{error}");
        let mut service = json!({"kind": "Service", "metadata": {"name": "web"}});
        service["spec"] = json!({"clusterIPs": ["10.96.0.80", "fd00:10:96::80"]});
        let error = applier.put(&service).unwrap_err().to_string();
        assert!(error.contains(": 422 ") && error.contains("spec.ipFamilyPolicy"), "{error}");
    }

    #[test]
    fn objects_go_where_they_belong_without_what_is_the_servers() {
        let slice = json!({
            "kind": "EndpointSlice", "metadata": {"name": "web-1", "namespace": "shop", "uid": "7"}, "status": {},
        });
        let (path, namespace) = place_of(&slice).unwrap();
        assert_eq!(path, "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices/web-1");
        assert_eq!(namespace.as_deref(), Some("shop"));
        let expected = json!({"kind": "EndpointSlice", "metadata": {"name": "web-1", "namespace": "shop"}});
        assert_eq!(applied(&slice), expected);
        assert_eq!(place_of(&node()).unwrap(), ("/api/v1/nodes/ka".to_owned(), None));
        place_of(&json!({"kind": "Ingress", "metadata": {"name": "x"}})).unwrap_err();
    }
}
