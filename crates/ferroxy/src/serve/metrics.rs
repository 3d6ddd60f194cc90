//! `/metrics`: the original's names for what the agent does, and our own for what the original does not have.
//!
//! Left out until there is something to tell: network programming latency (needs the API's trigger times), conntrack,
//! localhost node ports. `kubernetes_build_info` stays out for good: alerts compare its versions across a cluster.

use super::exposition::{Exposition, Histogram, Kind};
use super::moment::Moment;
use super::process;
use super::status::{Changes, Counts, Now, Status};
use super::without_local::Policy;
use crate::config::FeatureGates;

pub fn page(status: &Status, gates: &FeatureGates) -> String {
    let mut page = Exposition::default();
    agent(&mut page, &status.now());
    page.begin(Kind::Gauge, "kubernetes_feature_enabled", "[BETA] Feature gates, and whether they are on.");
    for (name, stage, on) in gates.all() {
        page.sample("kubernetes_feature_enabled", &[("name", name), ("stage", stage)], u8::from(on));
    }
    process::write(&mut page);
    page.finish()
}

fn agent(page: &mut Exposition, now: &Now) {
    syncs(page, now);
    changes(page, &now.counts);
    failures(page, now);
    health(page, &now.counts);
    ours(page, now);
}

/// Both families are programmed in one transaction: what is true of one is true of the other.
fn syncs(page: &mut Exposition, now: &Now) {
    let counts = &now.counts;
    let durations: [(&str, &str, &Histogram); 3] = [
        ("kubeproxy_sync_proxy_rules_duration_seconds", "Time of a sync.", &counts.sync),
        (
            "kubeproxy_sync_full_proxy_rules_duration_seconds",
            "Time of a sync of everything.",
            &counts.full_sync,
        ),
        (
            "kubeproxy_sync_partial_proxy_rules_duration_seconds",
            "Time of a sync of what changed.",
            &counts.partial_sync,
        ),
    ];
    for (name, help, histogram) in durations {
        page.begin(Kind::Histogram, name, &alpha(help));
        for family in &now.families {
            page.histogram(name, &[("ip_family", &family.to_string())], histogram);
        }
    }
    let moments = [
        ("last_timestamp_seconds", "When the last sync ended, as Unix time.", counts.last_sync),
        (
            "last_queued_timestamp_seconds",
            "When a sync was last asked for, as Unix time.",
            counts.last_queued,
        ),
    ];
    for (name, help, moment) in moments {
        let value = moment.as_ref().map_or(0.0, Moment::unix_seconds);
        by_family(page, now, Kind::Gauge, &format!("kubeproxy_sync_proxy_rules_{name}"), help, value);
    }
    let name = "kubeproxy_sync_proxy_rules_no_local_endpoints_total";
    page.begin(
        Kind::Gauge,
        name,
        &alpha("Service ports with the policy Local and no endpoint on this node."),
    );
    for (policy, word) in [(Policy::Internal, "internal"), (Policy::External, "external")] {
        for family in &now.families {
            let labels = [("ip_family", &*family.to_string()), ("traffic_policy", word)];
            page.sample(name, &labels, now.without_local.total(policy, *family));
        }
    }
}

fn changes(page: &mut Exposition, counts: &Counts) {
    let kinds: [(&str, &str, &Changes); 2] = [
        ("endpoint", "EndpointSlices", &counts.endpoint_changes),
        ("service", "Services", &counts.service_changes),
    ];
    for (kind, objects, changes) in kinds {
        let name = |end: &str| format!("kubeproxy_sync_proxy_rules_{kind}_changes_{end}");
        let pending = alpha(&format!("Changes of {objects} that wait to be programmed."));
        page.single(Kind::Gauge, &name("pending"), &pending, changes.pending);
        let total = alpha(&format!("Changes of {objects} heard of."));
        page.single(Kind::Counter, &name("total"), &total, changes.total);
    }
}

fn failures(page: &mut Exposition, now: &Now) {
    let kinds = [
        ("sync", "Syncs, or parts of one, that the kernel refused.", now.counts.sync_failures),
        (
            "cleanup",
            "Attempts to remove what is unused that the kernel refused.",
            now.counts.cleanup_failures,
        ),
    ];
    for (kind, help, value) in kinds {
        let name = format!("kubeproxy_sync_proxy_rules_nftables_{kind}_failures_total");
        by_family(page, now, Kind::Counter, &name, help, value);
    }
}

fn health(page: &mut Exposition, counts: &Counts) {
    let paths = [("/healthz", "kubeproxy_proxy_healthz_total"), ("/livez", "kubeproxy_proxy_livez_total")];
    for (path, name) in paths {
        page.begin(Kind::Counter, name, &alpha(&format!("Answers to {path}, by code.")));
        for (code, word) in [(200, "200"), (503, "503")] {
            page.sample(name, &[("code", word)], counts.health_answers.get(&(path, code)).unwrap_or(&0));
        }
    }
}

fn ours(page: &mut Exposition, now: &Now) {
    let counts = &now.counts;
    let help = "Times that somebody else's changes of our rules were undone.";
    page.single(Kind::Counter, "ferroxy_drift_repairs_total", help, counts.drift_repairs);
    page.single(
        Kind::Gauge,
        "ferroxy_queue_length",
        "Services that wait to be programmed.",
        now.queue_length,
    );
    let refused = now.refused.len();
    page.single(Kind::Gauge, "ferroxy_refused_services", "Services that the kernel refuses.", refused);
    let help = "Netlink messages sent to program the kernel.";
    page.single(Kind::Counter, "ferroxy_kernel_messages_total", help, counts.kernel_messages);
    let help = "Bytes sent to program the kernel.";
    page.single(Kind::Counter, "ferroxy_kernel_bytes_total", help, counts.kernel_bytes);
    let help = "Whether the first sync is done and changes are heard of.";
    page.single(Kind::Gauge, "ferroxy_ready", help, u8::from(now.is_ready()));
    let last_word = now.source.last_word.as_ref().map_or(0.0, Moment::unix_seconds);
    let help = "When the source last told something, as Unix time.";
    page.single(Kind::Gauge, "ferroxy_source_last_word_timestamp_seconds", help, last_word);
    page.begin(Kind::Gauge, "ferroxy_build_info", "Which Ferroxy this is; always 1.");
    page.sample("ferroxy_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
}

fn by_family(page: &mut Exposition, now: &Now, kind: Kind, name: &str, help: &str, value: impl ToString) {
    page.begin(kind, name, &alpha(help));
    for family in &now.families {
        page.sample(name, &[("ip_family", &family.to_string())], value.to_string());
    }
}

/// Where the original's metrics stand in Kubernetes' promise of stability.
fn alpha(help: &str) -> String {
    format!("[ALPHA] {help}")
}
