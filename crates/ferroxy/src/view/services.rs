//! Services in a list, as JSON: kind `ServiceList`.

use ferroxy_core::ServiceName;
use serde_json::{Value, json};

use super::document;
use crate::agent::questions::Row;

/// `next`: the Service after which the list goes on.
pub fn list(items: Vec<Value>, next: Option<&ServiceName>) -> Value {
    document("ServiceList", json!({ "items": items, "next": next.map(ToString::to_string) }))
}

pub fn row(row: &Row) -> Value {
    json!({
        "name": row.name.to_string(),
        "type": row.kind,
        "addresses": row.addresses,
        "addressCount": row.address_count,
        "ports": row.ports.iter().map(|(port, protocol)| format!("{port}/{protocol}")).collect::<Vec<_>>(),
        "portCount": row.port_count,
        "nodePorts": row.node_ports,
        "endpoints": { "used": row.used, "total": row.total },
        "probe": row.is_probed,
        "problems": row.problems,
        "problem": row.problem,
        "state": row.state.words(),
        "notHandled": row.not_handled,
    })
}
