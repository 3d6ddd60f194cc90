//! Interprets a State: the path of a packet through the rules to a listener, and which endpoints its pool has.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use ferroxy_core::{Family, Packet, Protocol, Verdict};
use ferroxy_dataplane::{Step, Trace};
use ferroxy_proxy::{self as proxy, Class, Frontend, Key, Pool};

use crate::fragment::{original_key, socket_key, unspecified};
use crate::state::State;
use crate::text::{frontend_text, pool_text};

/// What happens to the first packet of a connection.
pub fn interpret(state: &State, packet: &Packet) -> Verdict {
    trace(state, packet).verdict
}

/// Like [`interpret`], with the rules and the listener that the packet meets on its way.
pub fn trace(state: &State, packet: &Packet) -> Trace {
    let routed = state.routes.contains(&packet.destination);
    let packet = &Packet { to_this_host: packet.to_this_host || routed, ..packet.clone() };
    let nftables = ferroxy_nftables::trace(&state.rules.nftables, packet);
    let mut trace = match nftables.verdict {
        Verdict::Pass => ferroxy_iptables::trace(&state.rules.iptables, packet),
        _ => nftables,
    };
    let translated = match &trace.verdict {
        Verdict::Endpoints(endpoints) => endpoints.keys().next().copied(),
        Verdict::Pass if packet.to_this_host => None,
        _ => return trace,
    };
    let arrives = translated.unwrap_or_else(|| SocketAddr::new(packet.destination, packet.port));
    match arrival(state, packet, arrives) {
        Some((frontend, pool)) => {
            trace.steps.extend(steps(frontend, pool));
            trace.verdict = verdict(pool);
        }
        // SCTP, which is translated to endpoints; or a port where nothing of ours listens.
        None if packet.protocol == Protocol::Sctp || translated.is_none() => {}
        None => trace.verdict = Verdict::Reject,
    }
    trace
}

/// The frontend that gets a connection which arrives at this address of the host, and the pool for this client.
fn arrival<'s>(
    state: &'s State,
    packet: &Packet,
    at: SocketAddr,
) -> Option<(&'s Frontend, Option<(&'s Key, &'s Pool)>)> {
    let protocol = match packet.protocol {
        Protocol::Tcp => proxy::Protocol::Tcp,
        Protocol::Udp => proxy::Protocol::Udp,
        Protocol::Sctp => return None,
    };
    let on_any = |address: SocketAddr| SocketAddr::new(any(address.ip()), address.port());
    let redirect = state.redirects.values().find(|it| it.address == at && protocol == proxy::Protocol::Tcp);
    let (frontend, class) = match redirect {
        Some(redirect) => {
            let original = SocketAddr::new(packet.destination, packet.port);
            let found = [original, on_any(original)].map(original_key);
            (found.iter().find_map(|key| state.frontends.get(key))?, redirect.class)
        }
        None => {
            let found = [at, on_any(at)].map(|address| socket_key(protocol, address));
            (found.iter().find_map(|key| state.frontends.get(key))?, Class::default())
        }
    };
    let route = frontend.routes.iter().find(|route| route.matches(packet.source, class));
    let pool = route.and_then(|route| route.pool.as_ref());
    Some((frontend, pool.and_then(|key| state.pools.get_key_value(key))))
}

fn any(address: IpAddr) -> IpAddr {
    unspecified(Family::of(address))
}

/// A connection that waits for an endpoint is refused in the end.
fn verdict(pool: Option<(&Key, &Pool)>) -> Verdict {
    let endpoints = pool.map(|(_, pool)| pool.endpoints.as_slice()).unwrap_or_default();
    if endpoints.is_empty() {
        return Verdict::Reject;
    }
    Verdict::Endpoints(endpoints.iter().map(|endpoint| (*endpoint, true)).collect::<BTreeMap<_, _>>())
}

fn steps(frontend: &Frontend, pool: Option<(&Key, &Pool)>) -> Vec<Step> {
    let step = |place: &str, rule: String, effect: String, is_sticky| Step {
        place: place.to_owned(),
        rule,
        effect,
        is_sticky,
    };
    let accepted = step("proxy", frontend_text(frontend), "accepted".to_owned(), false);
    let chosen = pool.map(|(key, pool)| {
        let first = pool.endpoints.first().map_or("no endpoint".to_owned(), |it| format!("to {it}"));
        step("proxy", pool_text(key, pool), first, pool.affinity.is_some())
    });
    std::iter::once(accepted).chain(chosen).collect()
}
