//! The encodings of answers, JSON and protobuf: which one a request gets, and how objects, lists, events and errors are
//! written in it.

use bytes::{BufMut, Bytes, BytesMut};
use hyper::header::{ACCEPT, HeaderValue};
use hyper::http::request::Parts;
use serde_json::{Value, json};

use super::fault::{Fault, Faults};
use super::kind::Kind;
use super::object::{Object, Version};
use super::protobuf;
use super::query::Request;
use super::status::Status;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wire {
    Json,
    Protobuf,
}

/// The content of an event of a watch.
#[derive(Debug, Clone, Copy)]
pub(super) enum Sent<'a> {
    Object(&'a Object),
    /// The last state, with the version of the deletion.
    Deleted(&'a Object, Version),
    Bookmark {
        kind: Kind,
        version: Version,
        ends_initial_events: bool,
    },
    Error(&'a Status),
}

impl Wire {
    /// The first of the accepted encodings that the server has. JSON if the request has no header `Accept`.
    pub fn of(head: &Parts, request: &Request, faults: &Faults) -> Result<Wire, Status> {
        let accepted = head.headers.get(ACCEPT).map(|value| String::from_utf8_lossy(value.as_bytes()));
        let accepted = accepted.unwrap_or("*/*".into());
        let types = accepted.split(',').map(|entry| entry.split(';').next().unwrap_or_default().trim());
        let mut known = types.filter_map(|media_type| match media_type {
            "application/vnd.kubernetes.protobuf" => Some(Wire::Protobuf),
            "application/json" | "application/*" | "*/*" => Some(Wire::Json),
            _ => None,
        });
        let json_only = faults.strikes(request.kind, request.verb, &Fault::NoProtobuf);
        known.find(|wire| !json_only || *wire == Wire::Json).ok_or_else(Status::not_acceptable)
    }

    pub fn content_type(self, of_a_watch: bool) -> HeaderValue {
        HeaderValue::from_static(match (self, of_a_watch) {
            (Wire::Json, _) => "application/json",
            (Wire::Protobuf, false) => "application/vnd.kubernetes.protobuf",
            (Wire::Protobuf, true) => "application/vnd.kubernetes.protobuf;stream=watch",
        })
    }

    pub fn object(self, object: &Object) -> Bytes {
        match self {
            Wire::Json => object.text().clone(),
            Wire::Protobuf => body(object.kind, object.message()).into(),
        }
    }

    pub fn status(self, status: &Status) -> Bytes {
        match self {
            Wire::Json => status.text(),
            Wire::Protobuf => status_body(status).into(),
        }
    }

    /// A whole list. Its protobuf begins with its length.
    pub fn list(self, kind: Kind, version: Version, next: Option<&str>, objects: &[&Object]) -> Bytes {
        match self {
            Wire::Json => json_list(kind, version, next, objects).freeze(),
            Wire::Protobuf => {
                let metadata = json!({"resourceVersion": version.to_string(), "continue": next});
                let list = protobuf::list(&metadata, objects.iter().map(|object| object.message().as_ref()));
                protobuf::body(kind.api_version(), &format!("{kind}List"), &list).into()
            }
        }
    }

    /// Appends an event of a watch.
    pub fn put_event(self, to: &mut BytesMut, event: &str, sent: Sent<'_>) {
        match self {
            Wire::Json => put_line(to, event, &sent.json()),
            Wire::Protobuf => to.put_slice(&protobuf::frame(event, &sent.protobuf())),
        }
    }

    /// The beginning of an event.
    pub fn half_an_event(self, kind: Kind) -> Vec<u8> {
        match self {
            Wire::Json => format!(r#"{{"type":"MODIFIED","object":{{"kind":"{kind}","meta"#).into_bytes(),
            Wire::Protobuf => {
                let mut frame = protobuf::frame("MODIFIED", &body(kind, b""));
                frame.truncate(frame.len() - 4);
                frame
            }
        }
    }
}

impl Sent<'_> {
    fn json(self) -> Bytes {
        match self {
            Sent::Object(object) => object.text().clone(),
            Sent::Deleted(object, version) => object.text_with_version(version),
            Sent::Bookmark { kind, version, ends_initial_events } => {
                bookmark(kind, version, ends_initial_events).into()
            }
            Sent::Error(status) => status.text(),
        }
    }

    /// The content in protobuf, with the envelope.
    fn protobuf(self) -> Vec<u8> {
        let written = |kind, json: &[u8]| body(kind, &protobuf::object(kind, &parsed(json)));
        match self {
            Sent::Object(object) => body(object.kind, object.message()),
            Sent::Deleted(object, version) => written(object.kind, &object.text_with_version(version)),
            Sent::Bookmark { kind, version, ends_initial_events } => {
                written(kind, bookmark(kind, version, ends_initial_events).as_bytes())
            }
            Sent::Error(status) => status_body(status),
        }
    }
}

fn body(kind: Kind, message: &[u8]) -> Vec<u8> {
    protobuf::body(kind.api_version(), kind.name(), message)
}

fn status_body(status: &Status) -> Vec<u8> {
    protobuf::body("v1", "Status", &protobuf::status(&parsed(&status.text())))
}

/// Our own text is always JSON.
fn parsed(json: &[u8]) -> Value {
    serde_json::from_slice(json).unwrap_or_default()
}

fn json_list(kind: Kind, at: Version, next: Option<&str>, objects: &[&Object]) -> BytesMut {
    let next = next.map(|token| format!(r#","continue":"{token}""#)).unwrap_or_default();
    let version = kind.api_version();
    let head = format!(
        r#"{{"kind":"{kind}List","apiVersion":"{version}","metadata":{{"resourceVersion":"{at}"{next}}},"items":["#
    );
    let mut text = BytesMut::from(head.as_str());
    for (index, object) in objects.iter().enumerate() {
        text.extend_from_slice(if index == 0 { b"{" } else { b",{" });
        text.extend_from_slice(object.fields_in_list());
    }
    text.extend_from_slice(b"]}\n");
    text
}

fn bookmark(kind: Kind, version: Version, ends_initial_events: bool) -> String {
    let (api_version, fields) = (kind.api_version(), kind.zero_fields());
    let annotations = match ends_initial_events {
        true => r#","annotations":{"k8s.io/initial-events-end":"true"}"#,
        false => "",
    };
    format!(
        r#"{{"kind":"{kind}","apiVersion":"{api_version}","metadata":{{"resourceVersion":"{version}","creationTimestamp":null{annotations}}}{fields}}}"#
    )
}

fn put_line(to: &mut BytesMut, event: &str, object: &[u8]) {
    to.reserve(object.len() + 32);
    to.extend_from_slice(b"{\"type\":\"");
    to.extend_from_slice(event.as_bytes());
    to.extend_from_slice(b"\",\"object\":");
    to.extend_from_slice(object);
    to.extend_from_slice(b"}\n");
}
