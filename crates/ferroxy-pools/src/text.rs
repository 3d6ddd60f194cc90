//! Pools and frontends of the proxy as text.

use ferroxy_proxy::{Arrival, Frontend, Pool, Protocol};

/// Shows only what differs from the engine's defaults.
pub fn pool_text(key: &str, pool: &Pool) -> String {
    let usual = Pool::default();
    let endpoints: Vec<String> = pool.endpoints.iter().map(ToString::to_string).collect();
    let mut text = format!("pool {key} {{ {} }}", endpoints.join(", "));
    let mut add = |differs: bool, words: String| {
        if differs {
            text.push_str(&words);
        }
    };
    let (limits, times) = (&pool.limits, &pool.timeouts);
    add(pool.policy != usual.policy, format!(" policy {:?}", pool.policy));
    add(true, pool.affinity.map(|it| format!(" affinity {:?}", it.timeout)).unwrap_or_default());
    add(true, pool.slow_start.map(|it| format!(" slow-start {:?}", it.window)).unwrap_or_default());
    let ejection = pool.ejection.map_or("off".to_owned(), |it| it.failures.to_string());
    add(pool.ejection != usual.ejection, format!(" eject-after {ejection}"));
    add(times.connect != usual.timeouts.connect, format!(" connect {:?}", times.connect));
    add(times.attempts != usual.timeouts.attempts, format!(" attempts {}", times.attempts));
    add(true, times.hold.map(|it| format!(" hold {it:?}")).unwrap_or_default());
    add(true, times.idle.map(|it| format!(" idle {it:?}")).unwrap_or_default());
    add(true, limits.connections.map(|it| format!(" connections {it}")).unwrap_or_default());
    add(pool.proxy_protocol, " proxy-protocol v2".to_owned());
    text
}

pub fn frontend_text(frontend: &Frontend) -> String {
    let mut text = match frontend.arrival {
        Arrival::Socket { protocol, address, .. } => format!("listen {} {address}", word(protocol)),
        Arrival::OriginalDestination(address) => format!("redirected tcp {address}"),
    };
    for route in &frontend.routes {
        let class = if route.classes.is_empty() { "" } else { "local " };
        let pool = route.pool.as_deref().unwrap_or("none");
        text.push_str(&format!(" {class}-> {pool}"));
    }
    text
}

fn word(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
    }
}
