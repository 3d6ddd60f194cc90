//! The path of a packet, as JSON: kind `Trace`.

use std::net::SocketAddr;

use ferroxy_core::{Packet, Verdict};
use ferroxy_dataplane::Trace as PacketTrace;
use serde_json::{Value, json};

use super::document;

pub fn to_json(packet: &Packet, trace: &PacketTrace) -> Value {
    let steps: Vec<Value> = trace
        .steps
        .iter()
        .map(|step| json!({ "chain": step.place, "rule": step.rule, "effect": step.effect }))
        .collect();
    let (verdict, endpoints) = match &trace.verdict {
        Verdict::Endpoints(endpoints) => {
            let one = |(endpoint, masqueraded): (&SocketAddr, &bool)| json!({ "endpoint": endpoint.to_string(), "masqueraded": masqueraded });
            ("endpoints", endpoints.iter().map(one).collect())
        }
        Verdict::Reject => ("reject", Vec::new()),
        Verdict::Drop => ("drop", Vec::new()),
        Verdict::Pass => ("pass", Vec::new()),
    };
    document(
        "Trace",
        json!({
            "source": packet.source,
            "destination": SocketAddr::new(packet.destination, packet.port).to_string(),
            "protocol": packet.protocol.lowercase(),
            "steps": steps,
            "verdict": verdict,
            "endpoints": endpoints,
        }),
    )
}
