//! `/metrics` and `/metrics/slis`: kube-proxy's metrics by their names, and our own (`ferroxy_…`) for what kube-proxy does
//! not have. Metrics of single modes are in `metrics/modes.rs`.
//!
//! Common alerts compare the versions in `kubernetes_build_info` across a cluster: ours is the version of the API server,
//! and appears once the API server has reported it.

mod modes;

use ferroxy_core::Family;
use ferroxy_dataplane::Mode;

use super::changes::Tally;
use super::counts::{Connections, Counts};
use super::exposition::{Exposition, Histogram, Kind};
use super::moment::Moment;
use super::process;
use super::sockets::Sockets;
use super::status::{Now, Status};
use super::traffic::Collector;
use super::without_local::Policy;
use crate::config::FeatureGates;
use crate::{log, otlp};

pub fn page(
    status: &Status,
    mode: &Mode,
    gates: &FeatureGates,
    traffic: &Collector,
    sockets: &Sockets,
) -> String {
    let mut page = Exposition::default();
    agent(&mut page, &status.refreshed(), mode);
    status.probes.write(&mut page);
    traffic.write(status, &mut page);
    sockets.write(&mut page);
    page.begin(Kind::Gauge, "kubernetes_feature_enabled", "[BETA] Feature gates, and whether they are on.");
    for (name, stage, on) in gates.all() {
        page.sample("kubernetes_feature_enabled", &[("name", name), ("stage", stage)], u8::from(on));
    }
    process::write(&mut page);
    page.finish()
}

/// `/metrics/slis`: the results of the health checks, in the form that Kubernetes components use.
pub fn slis(status: &Status) -> String {
    let now = status.refreshed();
    let moment = Moment::now();
    let healthy = now.is_healthy(moment);
    let checks = [
        ("/healthz", "healthz", healthy && now.node_eligible),
        ("/livez", "livez", healthy),
        ("/readyz", "readyz", now.is_ready(moment)),
    ];
    let mut page = Exposition::default();
    let name = "kubernetes_healthcheck";
    page.begin(Kind::Gauge, name, "[STABLE] Whether this check succeeds now.");
    for (_, kind, succeeds) in checks {
        page.sample(name, &[("name", "proxy"), ("type", kind)], u8::from(succeeds));
    }
    let name = "kubernetes_healthchecks_total";
    page.begin(Kind::Counter, name, "[STABLE] Health checks answered, by outcome.");
    for (path, kind, _) in checks {
        for (code, outcome) in [(200, "success"), (503, "error")] {
            let labels = [("name", "proxy"), ("status", outcome), ("type", kind)];
            page.sample(name, &labels, now.counts.health_answers.get(&(path, code)).unwrap_or(&0));
        }
    }
    page.finish()
}

fn agent(page: &mut Exposition, now: &Now, mode: &Mode) {
    syncs(page, now);
    changes(page, &now.counts);
    modes::write(page, now, mode);
    health(page, &now.counts);
    connections(page, &now.counts);
    now.counts.requests.write(page);
    build_info(page, now);
    ours(page, now);
    watches(page, now);
}

/// Both families are programmed by the same call of the dataplane, so both have the same values.
fn syncs(page: &mut Exposition, now: &Now) {
    let counts = &now.counts;
    let name = "kubeproxy_sync_proxy_rules_duration_seconds";
    let of = |_| &counts.sync;
    by_family_histogram(page, now, name, "Duration of a sync.", of);
    let name = "kubeproxy_network_programming_duration_seconds";
    let help = "Time from a change of endpoints in the API until the kernel has it.";
    by_family_histogram(page, now, name, help, |family| {
        &counts.of_family[family as usize].network_programming
    });
    let moments = [
        ("last_timestamp_seconds", "When the last sync ended, as Unix time.", counts.last_sync),
        ("last_queued_timestamp_seconds", "When a sync was last queued, as Unix time.", counts.last_queued),
    ];
    for (name, help, moment) in moments {
        let value = moment.as_ref().map_or(0.0, Moment::unix_seconds);
        by_family(page, now, Kind::Gauge, &format!("kubeproxy_sync_proxy_rules_{name}"), help, value);
    }
    let name = "kubeproxy_sync_proxy_rules_no_local_endpoints_total";
    page.begin(
        Kind::Gauge,
        name,
        &alpha("Service ports with traffic policy Local and no endpoint on this node."),
    );
    for (policy, word) in [(Policy::Internal, "internal"), (Policy::External, "external")] {
        for family in &now.families {
            let labels = [("ip_family", &*family.to_string()), ("traffic_policy", word)];
            page.sample(name, &labels, now.without_local.total(policy, *family));
        }
    }
}

fn changes(page: &mut Exposition, counts: &Counts) {
    let kinds: [(&str, &str, &Tally); 2] = [
        ("endpoint", "EndpointSlices", &counts.changes.slices),
        ("service", "Services", &counts.changes.services),
    ];
    for (kind, objects, changes) in kinds {
        let name = |end: &str| format!("kubeproxy_sync_proxy_rules_{kind}_changes_{end}");
        let pending = alpha(&format!("Changes of {objects} that are not programmed yet."));
        page.single(Kind::Gauge, &name("pending"), &pending, changes.pending);
        let total = alpha(&format!("Changes of {objects} received."));
        page.single(Kind::Counter, &name("total"), &total, changes.total);
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

fn connections(page: &mut Exposition, counts: &Counts) {
    let mut write = |kind, name: &str, help, of: fn(&Connections) -> u64| {
        page.begin(kind, name, help);
        for (server, connections) in &counts.connections {
            page.sample(name, &[("server", server)], of(connections));
        }
    };
    let help = "Open connections to the agent's HTTP servers.";
    write(Kind::Gauge, "ferroxy_http_connections", help, |it| it.open as u64);
    let help = "Connections closed to make room for new ones, the idlest first.";
    write(Kind::Counter, "ferroxy_http_connections_evicted_total", help, |it| it.evicted);
    let help = "Failed attempts to accept a connection, such as for lack of file descriptors.";
    write(Kind::Counter, "ferroxy_http_accept_errors_total", help, |it| it.accept_errors);
}

fn ours(page: &mut Exposition, now: &Now) {
    let counts = &now.counts;
    let help = "Repairs of rules that another program had changed.";
    page.single(Kind::Counter, "ferroxy_drift_repairs_total", help, counts.drift_repairs);
    let help = "Services waiting to be programmed.";
    page.single(Kind::Gauge, "ferroxy_queue_length", help, now.progress.waiting);
    let help = "Large Services that are being programmed in portions.";
    page.single(Kind::Gauge, "ferroxy_large_services", help, now.progress.large);
    let inputs = now.inputs;
    let help = "Changes of objects that wait in the input queue.";
    page.single(Kind::Gauge, "ferroxy_input_queue_events", help, inputs.events);
    let help = "Memory that waiting events take, about.";
    page.single(Kind::Gauge, "ferroxy_input_queue_bytes", help, inputs.bytes);
    let help =
        "Whether the input queue is full: reading from the API server or the manifests waits for the agent.";
    page.single(Kind::Gauge, "ferroxy_input_queue_full", help, u8::from(inputs.is_full));
    let refused = now.refused.len();
    page.single(
        Kind::Gauge,
        "ferroxy_refused_services",
        "Services that the kernel refuses to accept.",
        refused,
    );
    let left_out = now.left_out.total();
    let name = "ferroxy_services_left_out";
    let help =
        "Frontends and endpoints that are not programmed because a limit is exceeded (see docs/limits.md).";
    page.begin(Kind::Gauge, name, help);
    page.sample(name, &[("kind", "endpoints")], left_out.endpoints);
    page.sample(name, &[("kind", "frontends")], left_out.frontends);
    let durations = [
        (
            "ferroxy_verification_duration_seconds",
            "Duration of comparing all rules with the kernel and repairing them.",
            &counts.verification,
        ),
        (
            "ferroxy_cleanup_duration_seconds",
            "Duration of removing unused rules and objects.",
            &counts.cleanup,
        ),
    ];
    for (name, help, histogram) in durations {
        page.begin(Kind::Histogram, name, help);
        page.histogram(name, &[], histogram);
    }
    let help = "Messages sent to program the kernel.";
    page.single(Kind::Counter, "ferroxy_kernel_messages_total", help, counts.kernel_messages);
    let help = "Bytes sent to program the kernel.";
    page.single(Kind::Counter, "ferroxy_kernel_bytes_total", help, counts.kernel_bytes);
    lost(page);
    let help = "Whether /readyz succeeds: the first sync is done, and changes are received.";
    page.single(Kind::Gauge, "ferroxy_ready", help, u8::from(now.is_ready(Moment::now())));
    let last_sign = now.source.state.last_sign.as_ref().map_or(0.0, Moment::unix_seconds);
    let help = "Last activity of the API server's watches or of the manifest reader, as Unix time.";
    page.single(Kind::Gauge, "ferroxy_source_last_activity_timestamp_seconds", help, last_sign);
    page.begin(Kind::Gauge, "ferroxy_build_info", "The version of Ferroxy; always 1.");
    page.sample("ferroxy_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
}

/// Log lines and traces that were lost.
fn lost(page: &mut Exposition) {
    let help = "Log lines that were dropped because the stream they go to was full.";
    page.single(Kind::Counter, "ferroxy_log_lines_dropped_total", help, log::dropped());
    let help = "Log lines that were not written because there were too many of their kind.";
    page.single(Kind::Counter, "ferroxy_log_lines_suppressed_total", help, log::suppressed());
    let help = "Changes whose trace was dropped because the collector did not take it in time.";
    page.single(Kind::Counter, "ferroxy_otlp_changes_dropped_total", help, otlp::dropped());
}

/// The cluster's version, under kube-proxy's name for its own.
fn build_info(page: &mut Exposition, now: &Now) {
    let Some(version) = &now.cluster_version else { return };
    let mut parts = version.trim_start_matches('v').split('.');
    let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let platform = format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH);
    let name = "kubernetes_build_info";
    page.begin(Kind::Gauge, name, "[ALPHA] The Kubernetes version that this proxy works with; always 1.");
    let labels = [
        ("build_date", ""),
        ("compiler", "rustc"),
        ("git_commit", ""),
        ("git_tree_state", ""),
        ("git_version", version),
        ("go_version", ""),
        ("major", major),
        ("minor", minor),
        ("platform", &platform),
    ];
    page.sample(name, &labels, 1);
}

fn watches(page: &mut Exposition, now: &Now) {
    let watches = &now.source.state.watches;
    if watches.is_empty() {
        return;
    }
    let name = "ferroxy_watch_alive";
    page.begin(Kind::Gauge, name, "Whether the watch of this resource is established.");
    for watch in watches {
        page.sample(name, &[("resource", watch.resource)], u8::from(watch.alive));
    }
    let name = "ferroxy_watch_last_activity_timestamp_seconds";
    page.begin(Kind::Gauge, name, "Last activity on the watch of this resource, as Unix time.");
    for watch in watches {
        let last = watch.last_activity.as_ref().map_or(0.0, Moment::unix_seconds);
        page.sample(name, &[("resource", watch.resource)], last);
    }
}

fn by_family_histogram<'a>(
    page: &mut Exposition,
    now: &'a Now,
    name: &str,
    help: &str,
    of: impl Fn(Family) -> &'a Histogram,
) {
    page.begin(Kind::Histogram, name, &alpha(help));
    for family in &now.families {
        page.histogram(name, &[("ip_family", &family.to_string())], of(*family));
    }
}

fn by_family(page: &mut Exposition, now: &Now, kind: Kind, name: &str, help: &str, value: impl ToString) {
    page.begin(kind, name, &alpha(help));
    for family in &now.families {
        page.sample(name, &[("ip_family", &family.to_string())], value.to_string());
    }
}

/// The stability level of kube-proxy's metrics.
fn alpha(help: &str) -> String {
    format!("[ALPHA] {help}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::health::Step;
    use crate::serve::requests::Request;
    use crate::serve::status::{SourceState, Watch};
    use ferroxy_dataplane::Counted;
    use ferroxy_dataplane::capability::{RefusalCount, RuleCount};
    use std::time::Duration;

    fn lines(text: &str, beginning: &str) -> Vec<String> {
        text.lines().filter(|line| line.starts_with(beginning)).map(str::to_owned).collect()
    }

    fn page_of(status: &Status, mode: &Mode) -> String {
        page(status, mode, &FeatureGates::default(), &Collector::new(None), &Sockets::default())
    }

    /// A status with values in every metric.
    fn busy() -> Status {
        let status = Status::new(&Family::ALL, Duration::from_secs(30));
        status.failed(Step::Verify, &"no");
        status.failed(Step::Services, &"no");
        status.programmed(Family::V4, 0.3);
        status.swept(Family::V6, Duration::from_millis(3), 7);
        status.rules(&[RuleCount { family: Family::V4, group: "nat", total: 120, last: 6 }]);
        let metrics = ferroxy_iptables::MODE.metrics.iter();
        let keys =
            metrics.filter_map(|it| if let Counted::Packets(key) = it.counts { Some(key) } else { None });
        status.packets(&keys.zip([5, 2]).collect::<Vec<_>>());
        status.refusals(vec![RefusalCount {
            key: "lb_create",
            family: Family::V4,
            labels: vec![("lb_type", "nodeport"), ("error", "port_already_exists")],
            count: 3,
        }]);
        let took = Duration::from_millis(3);
        status.requested(Request { method: "GET", host: "10.0.0.1:6443", code: Some(200), took });
        let watch = Watch { resource: "services", alive: true, last_activity: Some(Moment::now()) };
        status.now().source.state = SourceState::of_watches(vec![watch]);
        status.cluster_version("v1.33.2");
        status
    }

    #[test]
    fn every_mode_has_the_metrics_of_kube_proxy() {
        let status = busy();
        let common = [
            "kubeproxy_network_programming_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.25\"} 0",
            "kubeproxy_network_programming_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.5\"} 1",
            "kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family=\"IPv4\"} 0",
            "kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family=\"IPv6\"} 7",
            "kubeproxy_conntrack_reconciler_sync_duration_seconds_count{ip_family=\"IPv6\"} 1",
        ];
        let full = "kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} 0";
        let failures = "kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family=\"IPv4\"}";
        let modes: [(&Mode, &[&str], &[&str]); 3] = [
            (
                &ferroxy_nftables::MODE,
                &[full, "kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family=\"IPv4\"} 2"],
                &["iptables"],
            ),
            (
                &ferroxy_iptables::MODE,
                &[
                    full,
                    &format!("{failures} 1"),
                    "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total{ip_family=\"IPv6\"} 1",
                    "kubeproxy_sync_proxy_rules_iptables_total{ip_family=\"IPv4\",table=\"nat\"} 120",
                    "kubeproxy_sync_proxy_rules_iptables_last{ip_family=\"IPv4\",table=\"nat\"} 6",
                    "kubeproxy_iptables_ct_state_invalid_dropped_packets_total 5",
                    "kubeproxy_iptables_localhost_nodeports_accepted_packets_total 2",
                ],
                &["nftables_"],
            ),
            (
                &ferroxy_ipvs::MODE,
                &[&format!("{failures} 2")],
                &["nftables_", "full_proxy_rules", "iptables_total"],
            ),
        ];
        for (mode, has, lacks) in modes {
            let text = page_of(&status, mode);
            for line in common.iter().chain(has) {
                assert!(text.lines().any(|it| it == *line), "{}: {line} in {text}", mode.name);
            }
            for word in lacks {
                assert!(!text.contains(word), "{} has {word}: {text}", mode.name);
            }
        }
    }

    #[test]
    fn kernelspace_mode_counts_what_hns_refuses() {
        let text = page_of(&busy(), &ferroxy_kernelspace::MODE);
        let name = "kubeproxy_sync_proxy_rules_winkernel_lb_create_failures_total";
        let labels = "ip_family=\"IPv4\",lb_type=\"nodeport\",error=\"port_already_exists\"";
        assert!(text.contains(&format!("\n{name}{{{labels}}} 3\n")), "{text}");
        assert!(text.contains("winkernel_lb_delete_failures_total"));
    }

    #[test]
    fn the_version_is_the_clusters_and_appears_when_it_is_known() {
        let silent = Status::new(&Family::ALL, Duration::from_secs(30));
        assert!(!page_of(&silent, &ferroxy_nftables::MODE).contains("kubernetes_build_info"));
        let shown = lines(&page_of(&busy(), &ferroxy_nftables::MODE), "kubernetes_build_info{");
        assert!(
            shown[0].contains("git_version=\"v1.33.2\",go_version=\"\",major=\"1\",minor=\"33\""),
            "{shown:?}"
        );
    }

    #[test]
    fn every_sample_belongs_to_the_metric_before_it_and_no_metric_comes_twice() {
        let text = page_of(&busy(), &ferroxy_iptables::MODE);
        let mut seen = std::collections::BTreeSet::new();
        let mut current = "";
        for line in text.lines() {
            match line.strip_prefix("# TYPE ") {
                Some(rest) => {
                    current = rest.split(' ').next().unwrap();
                    assert!(seen.insert(current), "twice: {current}");
                }
                None if line.starts_with('#') => {}
                None => assert!(line.starts_with(current), "{line} after {current}"),
            }
        }
    }

    #[test]
    fn each_watch_has_its_own_series() {
        let text = page_of(&busy(), &ferroxy_nftables::MODE);
        assert_eq!(lines(&text, "ferroxy_watch_alive"), ["ferroxy_watch_alive{resource=\"services\"} 1"]);
        assert_eq!(lines(&text, "ferroxy_watch_last_activity_timestamp_seconds{").len(), 1);
    }

    #[test]
    fn slis_report_the_health_checks() {
        let status = busy();
        let before = slis(&status);
        assert!(before.contains("kubernetes_healthcheck{name=\"proxy\",type=\"livez\"} 1\n"), "{before}");
        assert!(before.contains("kubernetes_healthcheck{name=\"proxy\",type=\"readyz\"} 0\n"), "{before}");
        status.now().counts.health_answers.insert(("/readyz", 503), 4);
        let total = "kubernetes_healthchecks_total{name=\"proxy\",status=\"error\",type=\"readyz\"} 4\n";
        assert!(slis(&status).contains(total));
    }
}
