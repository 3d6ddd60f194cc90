//! The metrics of modes with a proxy: the counters of the proxy, summed up over Services.

use ferroxy_dataplane::{Counted, Metric};
use ferroxy_proxy::{Counters, PoolCounters};

pub const METRICS: [Metric; 15] = [
    counter("ferroxy_proxy_connections_total", "accepted", "Connections that the proxy accepted."),
    counter(
        "ferroxy_proxy_unrouted_total",
        "unrouted",
        "Connections and datagrams to addresses and ports that no Service has.",
    ),
    counter(
        "ferroxy_proxy_accept_pauses_total",
        "pauses",
        "Pauses in accepting, for lack of descriptors or memory.",
    ),
    counter(
        "ferroxy_proxy_full_total",
        "full",
        "Pauses in accepting, because as many connections are open as the limit of open files allows.",
    ),
    counter(
        "ferroxy_proxy_shed_total",
        "shed",
        "Connections reset because the proxy lacked descriptors or memory.",
    ),
    counter(
        "ferroxy_proxy_evicted_sessions_total",
        "evicted",
        "UDP sessions ended to make room for new ones.",
    ),
    counter("ferroxy_proxy_failed_dials_total", "failed-dials", "Dials to endpoints that failed."),
    counter("ferroxy_proxy_retries_total", "retries", "Dials to another endpoint after one had failed."),
    counter("ferroxy_proxy_ejections_total", "ejections", "Endpoints left out because of failed dials."),
    counter("ferroxy_proxy_held_total", "held", "Connections that waited for an endpoint."),
    counter(
        "ferroxy_proxy_refused_total",
        "refused",
        "Connections reset: no endpoint, none reachable, or a limit.",
    ),
    counter(
        "ferroxy_proxy_timed_out_total",
        "timed-out",
        "Connections that the idle timeout or the half-close timeout ended.",
    ),
    counter(
        "ferroxy_proxy_dropped_datagrams_total",
        "dropped",
        "Datagrams that were not forwarded: no endpoint, a full socket, or a limit.",
    ),
    counter("ferroxy_proxy_received_bytes_total", "received", "Bytes from clients to endpoints."),
    counter("ferroxy_proxy_sent_bytes_total", "sent", "Bytes from endpoints to clients."),
];

const fn counter(name: &'static str, key: &'static str, help: &'static str) -> Metric {
    Metric { name, help, counts: Counted::Packets(key) }
}

/// The values, by the keys above.
pub fn values(counters: &Counters) -> Vec<(&'static str, u64)> {
    let engine = &counters.engine;
    let sum = |of: fn(&PoolCounters) -> u64| counters.pools.values().map(of).sum::<u64>();
    vec![
        ("accepted", engine.accepted),
        ("unrouted", engine.unrouted),
        ("pauses", engine.pauses),
        ("full", engine.full),
        ("shed", engine.shed),
        ("evicted", engine.evicted_sessions),
        ("failed-dials", sum(|it| it.failed_dials)),
        ("retries", sum(|it| it.retries)),
        ("ejections", sum(|it| it.ejections)),
        ("held", sum(|it| it.held)),
        ("refused", sum(|it| it.refused_empty + it.refused_unreachable + it.refused_limit)),
        ("timed-out", sum(|it| it.timed_out)),
        ("dropped", sum(|it| it.dropped_datagrams)),
        ("received", sum(|it| it.bytes_in)),
        ("sent", sum(|it| it.bytes_out)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_has_a_value() {
        let values = values(&Counters::default());
        let keys: Vec<&str> = values.iter().map(|(key, _)| *key).collect();
        let wanted: Vec<&str> = METRICS
            .iter()
            .filter_map(|metric| if let Counted::Packets(key) = metric.counts { Some(key) } else { None })
            .collect();
        assert_eq!(keys, wanted);
    }
}
