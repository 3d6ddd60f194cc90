//! The metrics of this mode: those of its rules, and those of the proxy.

use ferroxy_dataplane::Metric;
use ferroxy_netfilter::metrics::{FULL_SYNC_SECONDS, PARTIAL_SYNC_SECONDS};
use ferroxy_pools::metrics::METRICS as OF_PROXY;

const OF_RULES: [Metric; 2] = [FULL_SYNC_SECONDS, PARTIAL_SYNC_SECONDS];

pub const METRICS: &[Metric] = &all();

const fn all() -> [Metric; OF_RULES.len() + OF_PROXY.len()] {
    let mut all = [FULL_SYNC_SECONDS; OF_RULES.len() + OF_PROXY.len()];
    let mut at = 0;
    while at < all.len() {
        all[at] = if at < OF_RULES.len() { OF_RULES[at] } else { OF_PROXY[at - OF_RULES.len()] };
        at += 1;
    }
    all
}
