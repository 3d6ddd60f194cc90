//! The journal, as JSON: kind `Journal`, and its entries, which the event stream has, too.

use serde_json::{Value, json};

use super::document;
use crate::journal::{Entry, Part};

pub fn journal(part: &Part) -> Value {
    let items: Vec<Value> = part.entries.iter().map(entry).collect();
    document("Journal", json!({ "items": items, "first": part.first, "last": part.last }))
}

pub fn entry(entry: &Entry) -> Value {
    let frontends = entry.sizes.map(|sizes| sizes.map(|it| it.frontends));
    let endpoints = entry.sizes.map(|sizes| sizes.map(|it| it.endpoints));
    json!({
        "number": entry.number,
        "time": entry.time.rfc3339(),
        "kind": entry.what.word(),
        "service": entry.service.as_ref().map(ToString::to_string),
        "text": entry.sentence(),
        "frontends": frontends,
        "endpoints": endpoints,
        "apiToKernelSeconds": entry.api_to_kernel,
        "tookSeconds": entry.took,
        "operations": entry.operations,
        "together": entry.together,
    })
}
