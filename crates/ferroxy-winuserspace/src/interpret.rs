//! Interprets a State: the listener that a packet meets, and which endpoints its pool has.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use ferroxy_core::{Family, Packet, Verdict};
use ferroxy_dataplane::{Step, Trace};
use ferroxy_pools::text::{frontend_text, pool_text};
use ferroxy_pools::{proxied, socket_key, unspecified};
use ferroxy_proxy::{Class, Frontend, Key, Pool, Protocol};

use crate::state::{State, node_port_key};

/// What happens to the first packet of a connection.
pub fn interpret(state: &State, packet: &Packet) -> Verdict {
    trace(state, packet).verdict
}

/// Like [`interpret`], with the listener that the packet meets.
pub fn trace(state: &State, packet: &Packet) -> Trace {
    let is_ours = state.addresses.contains(&packet.destination);
    if !is_ours && !packet.to_this_host {
        return Trace { verdict: Verdict::Pass, steps: Vec::new() };
    }
    let Some((protocol, frontend)) = listener(state, packet) else {
        // No listener: the host refuses it, or another program of the host has the port.
        let verdict = if is_ours { Verdict::Reject } else { Verdict::Pass };
        return Trace { verdict, steps: Vec::new() };
    };
    let route = frontend.routes.iter().find(|route| route.matches(packet.source, Class::default()));
    let pool = route.and_then(|it| it.pool.as_ref()).and_then(|key| state.pools.get_key_value(key));
    Trace { verdict: verdict(protocol, pool), steps: steps(frontend, pool) }
}

/// A listener on an address of a Service comes before a node port on that address, and that before one on all addresses.
fn listener<'s>(state: &'s State, packet: &Packet) -> Option<(Protocol, &'s Frontend)> {
    let protocol = proxied(packet.protocol)?;
    let at = SocketAddr::new(packet.destination, packet.port);
    let on_any = SocketAddr::new(unspecified(Family::of(packet.destination)), packet.port);
    let keys = [socket_key(protocol, at), node_port_key(protocol, at), node_port_key(protocol, on_any)];
    let frontend = keys.iter().find_map(|key| state.frontends.get(key))?;
    Some((protocol, frontend))
}

/// The proxy connects to the endpoint itself. It resets connections, and drops datagrams, of clients that it does not serve. A
/// connection that waits for an endpoint is reset in the end.
fn verdict(protocol: Protocol, pool: Option<(&Key, &Pool)>) -> Verdict {
    let endpoints = pool.map(|(_, pool)| pool.endpoints.as_slice()).unwrap_or_default();
    if endpoints.is_empty() {
        return if protocol == Protocol::Tcp { Verdict::Reject } else { Verdict::Drop };
    }
    Verdict::Endpoints(endpoints.iter().map(|endpoint| (*endpoint, true)).collect::<BTreeMap<_, _>>())
}

fn steps(frontend: &Frontend, pool: Option<(&Key, &Pool)>) -> Vec<Step> {
    let step =
        |rule: String, effect: String, is_sticky| Step { place: "proxy".to_owned(), rule, effect, is_sticky };
    let accepted = if pool.is_some() { "accepted" } else { "not for this client" };
    let accepted = step(frontend_text(frontend), accepted.to_owned(), false);
    let chosen = pool.map(|(key, pool)| {
        let first = pool.endpoints.first().map_or("no endpoint".to_owned(), |it| format!("to {it}"));
        step(pool_text(key, pool), first, pool.affinity.is_some())
    });
    std::iter::once(accepted).chain(chosen).collect()
}
