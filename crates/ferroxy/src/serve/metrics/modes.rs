//! The metrics that only some modes have. A mode tells its own and not the others', as in the original.

use super::super::exposition::{Exposition, Kind};
use super::super::status::Now;
use super::{alpha, by_family, by_family_histogram};
use crate::dataplane::Mode;

pub fn write(page: &mut Exposition, now: &Now, mode: Mode) {
    match mode {
        Mode::Nftables => {
            full_and_partial(page, now);
            nftables(page, now);
        }
        Mode::Iptables => {
            full_and_partial(page, now);
            let counts = &now.counts;
            restore_failures(page, now, counts.full_sync_failures);
            iptables(page, now);
        }
        Mode::Ipvs => restore_failures(page, now, now.counts.sync_failures()),
    }
    conntrack(page, now);
}

fn full_and_partial(page: &mut Exposition, now: &Now) {
    let counts = &now.counts;
    let name = "kubeproxy_sync_full_proxy_rules_duration_seconds";
    by_family_histogram(page, now, name, "Time of a sync of everything.", |_| &counts.full_sync);
    let name = "kubeproxy_sync_partial_proxy_rules_duration_seconds";
    by_family_histogram(page, now, name, "Time of a sync of what changed.", |_| &counts.partial_sync);
}

fn nftables(page: &mut Exposition, now: &Now) {
    let name = "kubeproxy_sync_proxy_rules_nftables_sync_failures_total";
    let help = "Syncs, or parts of one, that the kernel refused.";
    by_family(page, now, Kind::Counter, name, help, now.counts.sync_failures());
    let name = "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total";
    let help = "Attempts to remove what is unused that the kernel refused.";
    by_family(page, now, Kind::Counter, name, help, now.counts.cleanup_failures);
}

fn restore_failures(page: &mut Exposition, now: &Now, failures: u64) {
    let name = "kubeproxy_sync_proxy_rules_iptables_restore_failures_total";
    by_family(page, now, Kind::Counter, name, "Syncs that iptables-restore refused.", failures);
}

fn iptables(page: &mut Exposition, now: &Now) {
    let counts = &now.counts;
    let name = "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total";
    let help = "Syncs of what changed that iptables-restore refused.";
    by_family(page, now, Kind::Counter, name, help, counts.partial_sync_failures);
    for (end, help) in [("total", "Rules that we own."), ("last", "Rules that the last sync wrote.")] {
        let name = format!("kubeproxy_sync_proxy_rules_iptables_{end}");
        page.begin(Kind::Gauge, &name, &alpha(help));
        for ((family, table), rules) in &counts.iptables.rules {
            let value = if end == "total" { rules.total } else { rules.last };
            page.sample(&name, &[("ip_family", &family.to_string()), ("table", table)], value);
        }
    }
    let name = "kubeproxy_iptables_ct_state_invalid_dropped_packets_total";
    let help = alpha("Packets dropped because connection tracking found them invalid.");
    page.single(Kind::Counter, name, &help, counts.iptables.invalid_dropped);
    let name = "kubeproxy_iptables_localhost_nodeports_accepted_packets_total";
    let help = alpha("Packets to node ports on loopback addresses.");
    page.single(Kind::Counter, name, &help, counts.iptables.localhost_accepted);
}

fn conntrack(page: &mut Exposition, now: &Now) {
    let of = |family| &now.counts.of_family[family as usize];
    let name = "kubeproxy_conntrack_reconciler_sync_duration_seconds";
    let help = "Time of a look for stale connections.";
    by_family_histogram(page, now, name, help, |family| &of(family).conntrack_sweep);
    let name = "kubeproxy_conntrack_reconciler_deleted_entries_total";
    page.begin(Kind::Counter, name, &alpha("Stale connections removed."));
    for family in &now.families {
        page.sample(name, &[("ip_family", &family.to_string())], of(*family).conntrack_deleted);
    }
}
