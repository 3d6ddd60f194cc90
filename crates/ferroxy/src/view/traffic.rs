//! Traffic of Services, as JSON: kind `Traffic`. Counters since the start; a rate is the difference of two answers.

use ferroxy_dataplane::capability::traffic::Traffic;
use serde_json::{Value, json};

use super::document;
use crate::serve::Moment;
use crate::serve::frontends::ServicePort;
use crate::serve::traffic::Totals;

/// `None`: traffic is not counted.
pub(crate) fn traffic(totals: Option<&Totals>, started: Moment) -> Value {
    let read_at = totals.map_or_else(Moment::now, |it| it.read_at);
    let services = totals.iter().flat_map(|it| &it.services).map(|(port, traffic)| row(port, traffic));
    let endpoints = totals.iter().flat_map(|it| &it.endpoints).map(|(port, endpoint, traffic)| {
        let mut row = row(port, traffic);
        row["endpoint"] = endpoint.to_string().into();
        row
    });
    document(
        "Traffic",
        json!({
            "counted": totals.is_some(),
            "time": read_at.rfc3339(),
            "monotonicSeconds": started.age(read_at).as_secs_f64(),
            "items": services.collect::<Vec<_>>(),
            "endpoints": endpoints.collect::<Vec<_>>(),
        }),
    )
}

fn row(port: &ServicePort, traffic: &Traffic) -> Value {
    json!({
        "service": port.service.to_string(),
        "port": &*port.port,
        "packets": traffic.received.packets,
        "bytes": traffic.received.bytes,
        "replyPackets": traffic.sent.packets,
        "replyBytes": traffic.sent.bytes,
        "connections": traffic.connections + traffic.at_sockets,
    })
}
