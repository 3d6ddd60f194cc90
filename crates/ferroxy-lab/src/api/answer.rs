//! Answers one request: first faults, then authentication, then the resource.

use std::future::pending;
use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::http::request::Parts;
use hyper::{Response, StatusCode};

use super::body::AnswerBody;
use super::fault::Fault;
use super::kind::{Kind, Place};
use super::list::list;
use super::lock;
use super::object::Key;
use super::proxy::pass_on;
use super::query::{Request, Verb};
use super::selector::Selector;
use super::server::Shared;
use super::status::Status;
use super::store::Selection;
use super::watch::watch;
use super::wire::Wire;
use super::write::{create_event, patch};

/// `certificate` is the client's, in DER, if it has shown one.
pub(super) async fn answer(
    shared: Arc<Shared>,
    certificate: Option<Bytes>,
    request: hyper::Request<Incoming>,
) -> Response<AnswerBody> {
    let (head, body) = request.into_parts();
    let request = Request::read(&head);
    lock(&shared.requests).push(request.clone());
    let (kind, verb) = (request.kind, request.verb);
    if shared.faults.strikes(kind, verb, &Fault::HangRequests) {
        pending::<()>().await;
    }
    // An error is in JSON if the request accepts nothing that the server has.
    let wire = Wire::of(&head, &request, &shared.faults);
    let refusals = *wire.as_ref().unwrap_or(&Wire::Json);
    let answered = async {
        struck(&shared, &request)?;
        let token = bearer_token(&head);
        if !lock(&shared.access).admits(token, certificate.as_deref()) {
            return Err(Status::unauthorized());
        }
        respond(&shared, &request, wire?, &head, body).await
    };
    answered.await.unwrap_or_else(|status: Status| refuse(&status, refusals))
}

fn struck(shared: &Shared, request: &Request) -> Result<(), Status> {
    let status = shared.faults.strike(request.kind, request.verb, |fault| match fault {
        Fault::Answer { code, retry_after } => Some(Status::of_code(*code, *retry_after)),
        _ => None,
    });
    status.map_or(Ok(()), Err)
}

fn bearer_token(head: &Parts) -> Option<&str> {
    head.headers.get(AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")
}

async fn respond(
    shared: &Arc<Shared>,
    request: &Request,
    wire: Wire,
    head: &Parts,
    body: Incoming,
) -> Result<Response<AnswerBody>, Status> {
    if let Some(target) = &request.target {
        return pass_on(shared, target, head, body).await;
    }
    let Some(place) = &request.place else { return no_resource(request) };
    match request.verb {
        Verb::Get => get(shared, place, wire),
        Verb::Create if place.kind == Kind::Event => {
            let text = create_event(shared, place, head, body).await?;
            Ok(json(StatusCode::CREATED, whole(text)))
        }
        _ if place.kind == Kind::Event => Err(Status::method_not_allowed()),
        Verb::List => {
            let list = list(shared, request, &selection(place, request)?, wire)?;
            Ok(encoded(StatusCode::OK, wire.content_type(false), list))
        }
        Verb::Watch | Verb::StreamList => {
            let watch = watch(shared, request, selection(place, request)?, wire)?;
            Ok(encoded(StatusCode::OK, wire.content_type(true), watch))
        }
        Verb::Patch => Ok(json(StatusCode::OK, whole(patch(shared, place, head, body).await?))),
        Verb::Create | Verb::Proxy | Verb::Other => Err(Status::method_not_allowed()),
    }
}

fn no_resource(request: &Request) -> Result<Response<AnswerBody>, Status> {
    match request.path.as_str() {
        "/livez" | "/readyz" | "/healthz" => Ok(Response::new(whole("ok"))),
        "/version" => {
            let version =
                r#"{"major":"1","minor":"37","gitVersion":"v1.37.0+ferroxy-lab","platform":"linux/amd64"}"#;
            Ok(json(StatusCode::OK, whole(version)))
        }
        _ => Err(Status::no_such_path()),
    }
}

fn selection(place: &Place, request: &Request) -> Result<Selection, Status> {
    let (labels, fields) = (request.parameter("labelSelector"), request.parameter("fieldSelector"));
    let selector = Selector::parse(labels, fields).map_err(Status::bad_request)?;
    Ok(Selection { kind: place.kind, namespace: place.namespace.clone(), selector })
}

fn get(shared: &Shared, place: &Place, wire: Wire) -> Result<Response<AnswerBody>, Status> {
    let name = place.name.as_deref().unwrap_or_default();
    let key = Key::new(place.namespace.as_deref().unwrap_or_default(), name);
    let store = lock(&shared.store);
    let object = store.get(place.kind, &key).ok_or_else(|| Status::not_found(place.kind, name))?;
    Ok(encoded(StatusCode::OK, wire.content_type(false), whole(wire.object(object))))
}

fn refuse(status: &Status, wire: Wire) -> Response<AnswerBody> {
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = encoded(code, wire.content_type(false), whole(wire.status(status)));
    if let Some(after) = status.retry_after {
        response.headers_mut().insert(RETRY_AFTER, after.as_secs().into());
    }
    response
}

/// For objects that were written and for paths that are no resource: no client needs them in protobuf.
fn json(code: StatusCode, body: AnswerBody) -> Response<AnswerBody> {
    encoded(code, Wire::Json.content_type(false), body)
}

fn encoded(code: StatusCode, content_type: HeaderValue, body: AnswerBody) -> Response<AnswerBody> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

fn whole(text: impl Into<Bytes>) -> AnswerBody {
    AnswerBody::Whole(Some(text.into()))
}
