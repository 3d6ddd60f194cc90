//! The API's protobuf form, written from JSON as a real API server writes it: fields in the order of their numbers, and
//! every field that is not a pointer. A value of the wrong type in JSON has no form in protobuf: it is written as
//! absent.

mod schema;

use jiff::Timestamp;
use serde_json::Value;

use super::kind::Kind;
use schema::{Field, Message, Type, Written};

/// The first bytes of every body.
const MAGIC: &[u8] = b"k8s\0";

/// An object as it is in a list: the message alone.
pub fn object(kind: Kind, object: &Value) -> Vec<u8> {
    write(schema::of_kind(kind), object)
}

/// A body with an object, or with a list or a Status.
pub fn body(api_version: &str, kind: &str, message: &[u8]) -> Vec<u8> {
    let mut type_meta = Vec::new();
    put_bytes(&mut type_meta, 1, api_version.as_bytes());
    put_bytes(&mut type_meta, 2, kind.as_bytes());
    let mut body = MAGIC.to_vec();
    put_bytes(&mut body, 1, &type_meta);
    put_bytes(&mut body, 2, message);
    // Content encoding and content type.
    put_bytes(&mut body, 3, b"");
    put_bytes(&mut body, 4, b"");
    body
}

/// The message of a list with this metadata and these messages of objects.
pub fn list<'a>(metadata: &Value, items: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut list = Vec::new();
    put_bytes(&mut list, 1, &write(schema::LIST_META, metadata));
    for item in items {
        put_bytes(&mut list, 2, item);
    }
    list
}

pub fn status(status: &Value) -> Vec<u8> {
    write(schema::STATUS, status)
}

/// A frame of a watch, with its length: an event about the object in a body.
pub fn frame(event: &str, body: &[u8]) -> Vec<u8> {
    let mut raw = Vec::new();
    put_bytes(&mut raw, 1, body);
    let mut watch_event = Vec::new();
    put_bytes(&mut watch_event, 1, event.as_bytes());
    put_bytes(&mut watch_event, 2, &raw);
    // Tests send no longer events.
    let length = u32::try_from(watch_event.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes(), watch_event.as_slice()].concat()
}

fn write(message: Message, value: &Value) -> Vec<u8> {
    let mut written = Vec::new();
    for field in message {
        let value = &value[field.name];
        match field.written {
            Written::Always => put(&mut written, field, value),
            Written::IfPresent if is(field.value, value) => put(&mut written, field, value),
            Written::IfPresent => {}
            Written::Each => {
                let entries = value.as_array().into_iter().flatten();
                entries
                    .filter(|entry| is(field.value, entry))
                    .for_each(|entry| put(&mut written, field, entry));
            }
        }
    }
    written
}

/// Whether a value has this type.
fn is(expected: Type, value: &Value) -> bool {
    match expected {
        Type::Text | Type::Time => value.is_string(),
        Type::Number => value.is_i64(),
        Type::Flag => value.is_boolean(),
        Type::NumberOrName => value.is_i64() || value.is_string(),
        Type::Map | Type::Message(_) => value.is_object(),
        Type::Json => !value.is_null(),
    }
}

fn put(to: &mut Vec<u8>, field: &Field, value: &Value) {
    let number = field.number;
    match field.value {
        Type::Text => put_bytes(to, number, value.as_str().unwrap_or_default().as_bytes()),
        Type::Number => put_number(to, number, value.as_i64().unwrap_or_default()),
        Type::Flag => put_number(to, number, i64::from(value.as_bool().unwrap_or_default())),
        Type::Time => put_bytes(to, number, &time(value)),
        Type::NumberOrName => put_bytes(to, number, &number_or_name(value)),
        Type::Map => put_map(to, number, value),
        Type::Json => {
            let mut raw = Vec::new();
            put_bytes(&mut raw, 1, value.to_string().as_bytes());
            put_bytes(to, number, &raw);
        }
        Type::Message(fields) => put_bytes(to, number, &write(fields, value)),
    }
}

/// Empty for a value that is not a time, as for the zero time.
fn time(value: &Value) -> Vec<u8> {
    let time: Option<Timestamp> = value.as_str().and_then(|text| text.parse().ok());
    let mut message = Vec::new();
    if let Some(time) = time {
        put_number(&mut message, 1, time.as_second());
        put_number(&mut message, 2, 0);
    }
    message
}

fn number_or_name(value: &Value) -> Vec<u8> {
    let mut message = Vec::new();
    put_number(&mut message, 1, i64::from(value.is_string()));
    put_number(&mut message, 2, value.as_i64().unwrap_or_default());
    put_bytes(&mut message, 3, value.as_str().unwrap_or_default().as_bytes());
    message
}

fn put_map(to: &mut Vec<u8>, number: u32, value: &Value) {
    let texts = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
    for (key, value) in value.as_object().into_iter().flatten().filter_map(texts) {
        let mut entry = Vec::new();
        put_bytes(&mut entry, 1, key.as_bytes());
        put_bytes(&mut entry, 2, value.as_bytes());
        put_bytes(to, number, &entry);
    }
}

fn put_number(to: &mut Vec<u8>, field: u32, number: i64) {
    put_varint(to, u64::from(field << 3));
    put_varint(to, number.cast_unsigned());
}

fn put_bytes(to: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    put_varint(to, u64::from(field << 3 | 2));
    put_varint(to, bytes.len() as u64);
    to.extend_from_slice(bytes);
}

fn put_varint(to: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::conformance;

    fn recorded(name: &str) -> Vec<u8> {
        fs::read(conformance::corpus().join("protobuf").join(name)).unwrap()
    }

    fn recorded_json(name: &str) -> Value {
        serde_json::from_slice(&recorded(name)).unwrap()
    }

    /// The JSON of a real API server gives the bytes of the same server.
    #[test]
    fn lists_are_as_the_original_writes_them() {
        for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::ServiceCidr] {
            let json = recorded_json(&format!("{}.list.json", kind.resource()));
            let items: Vec<Vec<u8>> =
                json["items"].as_array().unwrap().iter().map(|item| object(kind, item)).collect();
            let list = list(&json["metadata"], items.iter().map(Vec::as_slice));
            let body = body(kind.api_version(), &format!("{kind}List"), &list);
            assert_eq!(body, recorded(&format!("{}.list.pb", kind.resource())), "{kind}");
        }
    }

    #[test]
    fn watches_are_as_the_original_writes_them() {
        for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::ServiceCidr] {
            let lines = recorded(&format!("{}.watch.json", kind.resource()));
            let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            let frame = |line: &[u8]| {
                let event: Value = serde_json::from_slice(line).unwrap();
                let body = body(kind.api_version(), kind.name(), &object(kind, &event["object"]));
                frame(event["type"].as_str().unwrap(), &body)
            };
            let frames: Vec<u8> = lines.flat_map(frame).collect();
            assert_eq!(frames, recorded(&format!("{}.watch.pb", kind.resource())), "{kind}");
        }
    }

    #[test]
    fn errors_are_as_the_original_writes_them() {
        for name in ["absent", "unauthorized"] {
            let message = status(&recorded_json(&format!("{name}.json")));
            assert_eq!(body("v1", "Status", &message), recorded(&format!("{name}.pb")), "{name}");
        }
    }

    #[test]
    fn what_has_the_wrong_type_is_absent() {
        let odd = serde_json::json!({
            "metadata": {"name": "x", "labels": ["none"], "creationTimestamp": "yesterday"},
            "spec": {"clusterIP": 17, "ports": "none", "externalIPs": [{}]},
        });
        let plain = serde_json::json!({"metadata": {"name": "x"}});
        assert_eq!(object(Kind::Service, &odd), object(Kind::Service, &plain));
    }
}
