//! Requests that write: Events are created, objects are applied, and their status is merged. As in a real API server,
//! as far as clients here need it: apply replaces the previous object and knows no field managers.

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::http::request::Parts;
use serde_json::{Value, json};

use super::kind::{Kind, Place};
use super::lock;
use super::object::Key;
use super::rules;
use super::server::Shared;
use super::status::Status;
use super::watch::Nudge;

/// More than any API server takes in one request.
const LARGEST_BODY: usize = 4 << 20;

const CREATE: &str = "application/json";
const APPLY: &str = "application/apply-patch+yaml";
const MERGE: &str = "application/merge-patch+json";

/// Creates an Event, and returns its text.
pub(super) async fn create_event(
    shared: &Shared,
    place: &Place,
    head: &Parts,
    body: Incoming,
) -> Result<Bytes, Status> {
    expect_type(head, CREATE)?;
    let mut event = read(body).await?;
    let metadata = &mut event["metadata"];
    let version = lock(&shared.store).version();
    if let (None, Some(prefix)) = (metadata["name"].as_str(), metadata["generateName"].as_str()) {
        metadata["name"] = format!("{prefix}{version:05}").into();
    }
    if let Some(namespace) = &place.namespace {
        metadata["namespace"] = namespace.clone().into();
    }
    rules::check(Kind::Event, &event)?;
    put(shared, place.kind, &event)
}

/// Applies an object or merges its status, and returns the new text of the object.
pub(super) async fn patch(
    shared: &Shared,
    place: &Place,
    head: &Parts,
    body: Incoming,
) -> Result<Bytes, Status> {
    expect_type(head, if place.status { MERGE } else { APPLY })?;
    let mut object = read(body).await?;
    let name = place.name.as_deref().unwrap_or_default();
    let key = Key::new(place.namespace.as_deref().unwrap_or_default(), name);
    let before = lock(&shared.store).get(place.kind, &key).map(|object| object.text().clone());
    let before: Option<Value> = before.and_then(|text| serde_json::from_slice(&text).ok());
    if place.status {
        let mut whole = before.ok_or_else(|| Status::not_found(place.kind, name))?;
        merge(&mut whole["status"], &object["status"]);
        rules::check(place.kind, &whole)?;
        object = whole;
    } else {
        rules::check_apply(place.kind, &object)?;
        rules::check(place.kind, &object)?;
        // An object's status has a path of its own: the status in this request is ignored.
        object["kind"] = place.kind.name().into();
        object["metadata"]["name"] = name.into();
        object["status"] = before.map_or_else(|| json!({}), |before| before["status"].clone());
    }
    put(shared, place.kind, &object)
}

/// RFC 7386: objects field by field, lists as a whole, null removes.
fn merge(target: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, value) in fields {
        if !value.is_null() {
            merge(&mut target[name], value);
        } else if let Some(target) = target.as_object_mut() {
            target.remove(name);
        }
    }
}

fn put(shared: &Shared, kind: Kind, object: &Value) -> Result<Bytes, Status> {
    let stored = lock(&shared.store).put(object.to_string().as_bytes());
    let stored = stored.map_err(|error| Status::bad_request(error.to_string()))?;
    shared.nudge(kind, &Nudge::Changed);
    Ok(stored.text().clone())
}

fn expect_type(head: &Parts, expected: &str) -> Result<(), Status> {
    let content_type = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    if content_type.starts_with(expected) { Ok(()) } else { Err(Status::media_type(content_type)) }
}

async fn read(body: Incoming) -> Result<Value, Status> {
    let body = Limited::new(body, LARGEST_BODY).collect().await;
    let body = body.map_err(|error| Status::bad_request(format!("the body cannot be read: {error}")))?;
    serde_json::from_slice(&body.to_bytes())
        .map_err(|error| Status::bad_request(format!("the object provided is unrecognized: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merge_replaces_lists_and_removes_nulls() {
        let mut target = json!({"a": [1, 2], "b": {"c": 1, "d": 2}});
        merge(&mut target, &json!({"a": [3], "b": {"c": null, "e": 4}}));
        assert_eq!(target, json!({"a": [3], "b": {"d": 2, "e": 4}}));
        let mut nothing = Value::Null;
        merge(&mut nothing, &json!({"a": 1}));
        assert_eq!(nothing, json!({"a": 1}));
    }
}
