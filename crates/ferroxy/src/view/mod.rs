//! The answers of commands and of the page's API as JSON: `--output json` and `/api/v1` print the same. `docs/api.md` has the
//! schema. No queries and no decisions.

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

/// Adds the version and the kind to an answer.
pub fn document(kind: &str, mut value: Value) -> Value {
    if let Value::Object(fields) = &mut value {
        fields.insert("apiVersion".into(), API_VERSION.into());
        fields.insert("kind".into(), kind.into());
    }
    value
}

/// An error as an answer.
pub fn error(code: u16, message: &str) -> Value {
    document("Error", json!({ "code": code, "message": message }))
}
