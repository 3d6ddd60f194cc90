//! Requests to a port of a pod, `…/pods/NAME:PORT/proxy/PATH`: passed on as API servers do, without the caller's credentials.

use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use hyper::http::request::Parts;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use super::body::AnswerBody;
use super::kind::Kind;
use super::lock;
use super::object::Key;
use super::server::Shared;
use super::status::Status;

const LARGEST_BODY: usize = 64 << 20;

/// The port of a pod, and the path there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub pod: Key,
    pub port: u16,
    /// Begins with a slash.
    pub path: String,
}

impl Target {
    /// `/api/v1/namespaces/NS/pods/http:NAME:PORT/proxy/PATH`; the scheme may be missing. There is no TLS to pods here.
    pub fn from_path(path: &str) -> Option<Target> {
        let (namespace, rest) = path.strip_prefix("/api/v1/namespaces/")?.split_once("/pods/")?;
        let (pod, rest) = rest.split_once("/proxy")?;
        let pod = pod.strip_prefix("http:").unwrap_or(pod);
        let (name, port) = pod.split_once(':').unwrap_or((pod, "80"));
        let is_complete = !name.is_empty() && !name.contains('/') && !namespace.contains('/');
        let path = if rest.is_empty() { "/" } else { rest };
        let port = port.parse().ok().filter(|_| is_complete && path.starts_with('/'))?;
        Some(Target { pod: Key::new(namespace, name), port, path: path.to_owned() })
    }
}

pub(super) async fn pass_on(
    shared: &Shared,
    target: &Target,
    head: &Parts,
    body: Incoming,
) -> Result<Response<AnswerBody>, Status> {
    let pod = lock(&shared.store).get(Kind::Pod, &target.pod).map(|object| object.text().clone());
    let pod = pod.ok_or_else(|| Status::not_found(Kind::Pod, &target.pod.name))?;
    let pod: Value = serde_json::from_slice(&pod).unwrap_or_default();
    let address = pod["status"]["podIP"].as_str().unwrap_or_default().to_owned();
    if address.is_empty() {
        return Err(Status::bad_request("address not allowed"));
    }
    let unreachable = |error: &dyn std::fmt::Display| Status::unreachable(&error.to_string());
    let stream = TcpStream::connect((address.as_str(), target.port)).await.map_err(|it| unreachable(&it))?;
    let (mut open, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| unreachable(&error))?;
    // If the connection ends, the request fails.
    tokio::spawn(async move { drop(connection.await) });
    let request = forwarded(target, &format!("{address}:{}", target.port), head, body);
    let request = request.map_err(|error| Status::bad_request(error.to_string()))?;
    let answer = open.send_request(request).await.map_err(|error| unreachable(&error))?;
    let (head, body) = answer.into_parts();
    let body = Limited::new(body, LARGEST_BODY).collect().await.map_err(|error| unreachable(&error))?;
    let mut answer = Response::new(AnswerBody::Whole(Some(body.to_bytes())));
    *answer.status_mut() = head.status;
    *answer.headers_mut() = head.headers;
    for name in [CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING] {
        answer.headers_mut().remove(name);
    }
    Ok(answer)
}

fn forwarded(
    target: &Target,
    host: &str,
    head: &Parts,
    body: Incoming,
) -> hyper::http::Result<Request<Incoming>> {
    let query = head.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let mut request =
        Request::builder().method(&head.method).uri(format!("{}{query}", target.path)).body(body)?;
    *request.headers_mut() = head.headers.clone();
    request.headers_mut().remove(AUTHORIZATION);
    request.headers_mut().remove(CONNECTION);
    request.headers_mut().insert(HOST, hyper::header::HeaderValue::from_str(host)?);
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_pod_a_port_and_a_path() {
        let target = |path: &str| {
            let target = Target::from_path(&format!("/api/v1/namespaces/{path}"))?;
            Some((target.pod.namespace, target.pod.name, target.port, target.path))
        };
        let expected = |port, path: &str| Some(("a".to_owned(), "b".to_owned(), port, path.to_owned()));
        assert_eq!(target("a/pods/http:b:10261/proxy/api/v1/status"), expected(10261, "/api/v1/status"));
        assert_eq!(target("a/pods/b:1/proxy/"), expected(1, "/"));
        assert_eq!(target("a/pods/b/proxy"), expected(80, "/"));
        for path in [
            "a/pods/b",
            "a/pods/https:b:1/proxy/",
            "a/pods/b:x/proxy/",
            "a/pods/:1/proxy/",
            "a/pods/b:1/proxyx",
        ] {
            assert_eq!(target(path), None, "{path}");
        }
    }
}
