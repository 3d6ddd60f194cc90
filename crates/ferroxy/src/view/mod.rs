//! What commands and the page's API show, as JSON, once: `--output json` and `/api/v1` print the same. `docs/api.md` has the
//! schema. It asks nobody and decides nothing.

pub mod entry;
pub mod explanation;
pub mod ledger;
pub mod objects;
pub mod services;
pub mod status;
pub mod trace;
pub mod traffic;

use serde_json::{Value, json};

/// Fields are added in this version, and never removed or changed.
pub const API_VERSION: &str = "ferroxy.io/v1";

/// A whole answer: with its version and its kind.
pub fn document(kind: &str, mut value: Value) -> Value {
    if let Value::Object(fields) = &mut value {
        fields.insert("apiVersion".into(), API_VERSION.into());
        fields.insert("kind".into(), kind.into());
    }
    value
}

/// What went wrong.
pub fn error(code: u16, message: &str) -> Value {
    document("Error", json!({ "code": code, "message": message }))
}
