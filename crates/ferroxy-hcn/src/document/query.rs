//! `HostComputeQuery`: which objects an enumeration lists.

use serde::Serialize;
use serde_json::json;

use super::SchemaVersion;
use crate::guid::Guid;

/// The default lists everything.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Query {
    pub schema_version: SchemaVersion,
    /// A JSON object as a string.
    #[serde(skip_serializing_if = "String::is_empty")]
    filter: String,
}

impl Query {
    pub fn named(name: &str) -> Query {
        Query { filter: json!({ "Name": name }).to_string(), ..Query::default() }
    }

    /// Endpoints of a network. The name of the field is that of the first version.
    pub fn of_network(id: Guid) -> Query {
        Query { filter: json!({ "VirtualNetwork": id }).to_string(), ..Query::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_json_in_a_string() {
        let text = serde_json::to_string(&Query::named("cbr0")).unwrap();
        assert_eq!(text, r#"{"SchemaVersion":{"Major":2,"Minor":0},"Filter":"{\"Name\":\"cbr0\"}"}"#);
        let everything = serde_json::to_string(&Query::default()).unwrap();
        assert_eq!(everything, r#"{"SchemaVersion":{"Major":2,"Minor":0}}"#);
    }
}
