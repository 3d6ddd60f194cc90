//! Single requests with the rights of the person who runs a command: pods, nodes, a Secret, and ports of pods through
//! the API server. The agent does not use it.

mod objects;

use std::io;
use std::path::Path;
use std::time::Duration;

use ::kube::client::{Body, Client};
use futures_util::{StreamExt, stream};
use http::Request;
use http::header::ACCEPT;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::OpenError;
use super::access::{Access, failure, with_causes};

pub use objects::AgentPod;

const USER_AGENT: &str = concat!("kubectl-ferroxy/", env!("CARGO_PKG_VERSION"));

/// The most bytes of one part of a list, which has 500 objects.
const LARGEST_LIST: usize = 64 << 20;

/// A person's connection to the API server.
pub struct Person {
    runtime: Runtime,
    client: Client,
    server: String,
    namespace: String,
    limit: Duration,
}

/// A path at a port of a pod.
#[derive(Debug, Clone)]
pub struct Target {
    pub namespace: String,
    pub pod: String,
    pub port: u16,
    /// Below `/`, with its query.
    pub path: String,
    /// The most bytes of an answer.
    pub largest: usize,
}

/// Why there is no answer. Each message is one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    #[error("the API server {server} does not answer: {reason}")]
    NoServer { server: String, reason: String },
    #[error("the API server does not accept these credentials (401): {message}")]
    Unauthorized { message: String },
    /// The namespace is empty for objects that belong to none.
    #[error("permission denied: `{permission}`{} is needed ({message})", place(namespace))]
    Denied { permission: &'static str, namespace: String, message: String },
    #[error("{message}")]
    NotFound { message: String },
    /// The API server cannot reach an agent at the target.
    #[error("{message}")]
    Unreachable { message: String },
    /// The message of the agent.
    #[error("{message}")]
    Agent { code: u16, message: String },
    #[error("{0}")]
    Other(String),
}

fn place(namespace: &str) -> String {
    if namespace.is_empty() { String::new() } else { format!(" in namespace {namespace}") }
}

impl Person {
    /// Runs an exec plugin, if the kubeconfig names one; no request is sent to the API server yet.
    pub fn open(
        kubeconfig: Option<&Path>,
        context: Option<&str>,
        limit: Duration,
    ) -> Result<Person, OpenError> {
        let access = Access::of_person(kubeconfig, context, USER_AGENT)?;
        let server = access.server();
        let unusable = |reason: String| OpenError::Unusable { server: server.clone(), reason };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error: io::Error| unusable(error.to_string()))?;
        let client = {
            let _inside = runtime.enter();
            access.client().map_err(unusable)?
        };
        Ok(Person { client, server, namespace: access.namespace().to_owned(), runtime, limit })
    }

    /// The namespace of the context.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Asks many pods, `at_a_time` of them in parallel. Answers are in the order of `targets`.
    pub fn ask_all(
        &self,
        targets: Vec<Target>,
        token: Option<&str>,
        at_a_time: usize,
    ) -> Vec<Result<Value, AskError>> {
        let asking = targets.iter().map(|target| self.ask(target, token));
        self.runtime.block_on(stream::iter(asking).buffered(at_a_time.max(1)).collect())
    }

    async fn ask(&self, target: &Target, token: Option<&str>) -> Result<Value, AskError> {
        let Target { namespace, pod, port, path, largest } = target;
        let place = format!("/api/v1/namespaces/{namespace}/pods/http:{pod}:{port}/proxy/{path}");
        let (code, value) = self.get(&place, token, *largest).await?;
        judged(code, value, "get pods/proxy", namespace)
    }

    /// The status code and the body of an answer.
    async fn get(&self, path: &str, token: Option<&str>, largest: usize) -> Result<(u16, Value), AskError> {
        let no_server = |reason: String| AskError::NoServer { server: self.server.clone(), reason };
        let mut request = Request::get(path).header(ACCEPT, "application/json");
        if let Some(token) = token {
            // The API server's proxy removes `Authorization` and passes other headers on.
            request = request.header("x-ferroxy-token", token);
        }
        let request = request.body(Body::empty()).map_err(|error| AskError::Other(error.to_string()))?;
        let answered = async {
            let answer = self.client.send(request).await.map_err(|error| no_server(failure(&error)))?;
            let code = answer.status().as_u16();
            let body = Limited::new(answer.into_body(), largest).collect().await;
            Ok((code, body.map_err(|error| cut_short(error.as_ref(), largest))?.to_bytes()))
        };
        let late = || AskError::Unreachable { message: format!("no answer within {:?}", self.limit) };
        let (code, body) = timeout(self.limit, answered).await.unwrap_or_else(|_| Err(late()))?;
        let value = serde_json::from_slice(&body);
        let foreign = |_| AskError::Other(format!("the answer ({code}) is not that of a Ferroxy agent"));
        Ok((code, value.map_err(foreign)?))
    }
}

fn cut_short(error: &(dyn std::error::Error + Send + Sync + 'static), largest: usize) -> AskError {
    if error.is::<LengthLimitError>() {
        return AskError::Other(format!("the answer is longer than {largest} bytes"));
    }
    AskError::Unreachable { message: with_causes(error) }
}

/// Distinguishes answers of an agent from those of the API server, whose `apiVersion` is `v1`.
fn judged(code: u16, value: Value, permission: &'static str, namespace: &str) -> Result<Value, AskError> {
    if code == 200 {
        return Ok(value);
    }
    let message = value["message"].as_str().unwrap_or("no reason given").to_owned();
    if value["apiVersion"] != "v1" {
        return Err(AskError::Agent { code, message });
    }
    Err(match code {
        401 => AskError::Unauthorized { message },
        403 => AskError::Denied { permission, namespace: namespace.to_owned(), message },
        404 => AskError::NotFound { message },
        502..=504 => AskError::Unreachable { message },
        _ => AskError::Other(format!("the API server answers {code}: {message}")),
    })
}

impl std::fmt::Debug for Person {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Person").field("server", &self.server).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn judge(code: u16, value: Value) -> String {
        judged(code, value, "get pods/proxy", "kube-system").unwrap_err().to_string()
    }

    #[test]
    fn words_of_the_agent_and_of_the_server_are_distinguished() {
        let agent = judge(401, json!({ "apiVersion": "ferroxy.io/v1", "message": "a token is needed" }));
        assert_eq!(agent, "a token is needed");
        let server = |code| judge(code, json!({ "apiVersion": "v1", "kind": "Status", "message": "m" }));
        assert!(server(401).contains("does not accept these credentials"));
        assert_eq!(server(403), "permission denied: `get pods/proxy` in namespace kube-system is needed (m)");
        let body = json!({ "apiVersion": "v1", "message": "m" });
        let of_cluster = judged(403, body, "list nodes", "").unwrap_err().to_string();
        assert_eq!(of_cluster, "permission denied: `list nodes` is needed (m)");
        assert_eq!((server(404), server(503)), ("m".to_owned(), "m".to_owned()));
        assert_eq!(server(500), "the API server answers 500: m");
    }
}
