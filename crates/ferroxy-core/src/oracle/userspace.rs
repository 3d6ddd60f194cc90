//! The oracle of userspace mode: [`super::oracle`], and what a proxy must do differently.
//!
//! The proxy connects to endpoints itself, so they see an address of this node, as if every connection was masqueraded.
//! (SCTP is translated by the kernel, as in the other modes.) Node ports are sockets of this host: where they answer on
//! all addresses, they answer on loopback addresses, too, and only this host can be the client there. On loopback
//! addresses, no rule rejects or drops: if nothing listens, the host itself refuses.

use super::{family, oracle};
use crate::intent::{Intent, NodePortAddresses};
use crate::name::{Family, Protocol};
use crate::packet::{Origin, Packet, Verdict};

pub fn userspace(intent: &Intent, packet: &Packet) -> Verdict {
    if packet.protocol == Protocol::Sctp {
        return oracle(intent, packet);
    }
    let verdict = match packet.destination.is_loopback() {
        true => on_loopback(intent, packet),
        false => oracle(intent, packet),
    };
    match verdict {
        Verdict::Endpoints(endpoints) => {
            Verdict::Endpoints(endpoints.into_keys().map(|endpoint| (endpoint, true)).collect())
        }
        other => other,
    }
}

fn on_loopback(intent: &Intent, packet: &Packet) -> Verdict {
    if !packet.to_this_host || family(intent, packet).node_port_addresses != NodePortAddresses::AllLocal {
        return oracle(intent, packet);
    }
    let mut intent = intent.clone();
    match Family::of(packet.destination) {
        Family::V4 => intent.node.v4.node_ports_on_loopback = true,
        Family::V6 => intent.node.v6.node_ports_on_loopback = true,
    }
    let packet = Packet { origin: Origin::Host, ..packet.clone() };
    match oracle(&intent, &packet) {
        Verdict::Reject | Verdict::Drop => Verdict::Pass,
        verdict => verdict,
    }
}
