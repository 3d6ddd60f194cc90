//! The metrics that only some modes have, as the mode's descriptor lists them.

use std::collections::BTreeSet;

use ferroxy_dataplane::{Counted, Metric, Mode};

use super::super::counts::Rules;
use super::super::exposition::{Exposition, Kind};
use super::super::status::Now;
use super::{alpha, by_family, by_family_histogram};

pub fn write(page: &mut Exposition, now: &Now, mode: &Mode) {
    let mut written = BTreeSet::new();
    for metric in mode.metrics.iter().filter(|metric| written.insert(metric.name)) {
        write_one(page, now, metric);
    }
}

fn write_one(page: &mut Exposition, now: &Now, metric: &Metric) {
    let (counts, Metric { name, help, counts: counted }) = (&now.counts, metric);
    let of = |family| &counts.of_family[family as usize];
    match *counted {
        Counted::FullSyncSeconds => by_family_histogram(page, now, name, help, |_| &counts.full_sync),
        Counted::PartialSyncSeconds => by_family_histogram(page, now, name, help, |_| &counts.partial_sync),
        Counted::SyncFailures => by_family(page, now, Kind::Counter, name, help, counts.sync_failures()),
        Counted::FullSyncFailures => {
            by_family(page, now, Kind::Counter, name, help, counts.full_sync_failures);
        }
        Counted::PartialSyncFailures => {
            by_family(page, now, Kind::Counter, name, help, counts.partial_sync_failures);
        }
        Counted::TidyFailures => by_family(page, now, Kind::Counter, name, help, counts.cleanup_failures),
        Counted::Rules { label } => rules(page, now, metric, label, |rules| rules.total),
        Counted::RulesWritten { label } => rules(page, now, metric, label, |rules| rules.last),
        Counted::Packets(key) => {
            let packets = counts.packets.get(key).copied().unwrap_or_default();
            page.single(Kind::Counter, name, &alpha(help), packets);
        }
        Counted::Refusals(key) => refusals(page, now, metric, key),
        Counted::SweepSeconds => {
            by_family_histogram(page, now, name, help, |family| &of(family).conntrack_sweep);
        }
        Counted::SweptConnections => {
            page.begin(Kind::Counter, name, &alpha(help));
            for family in &now.families {
                page.sample(name, &[("ip_family", &family.to_string())], of(*family).conntrack_deleted);
            }
        }
    }
}

fn rules(page: &mut Exposition, now: &Now, metric: &Metric, label: &str, of: fn(&Rules) -> u64) {
    page.begin(Kind::Gauge, metric.name, &alpha(metric.help));
    for ((family, group), rules) in &now.counts.rules {
        page.sample(metric.name, &[("ip_family", &family.to_string()), (label, group)], of(rules));
    }
}

fn refusals(page: &mut Exposition, now: &Now, metric: &Metric, key: &str) {
    page.begin(Kind::Counter, metric.name, &alpha(metric.help));
    for it in now.counts.refusals.iter().filter(|it| it.key == key) {
        let family = it.family.to_string();
        let labels: Vec<(&str, &str)> =
            [("ip_family", &*family)].into_iter().chain(it.labels.iter().copied()).collect();
        page.sample(metric.name, &labels, it.count);
    }
}
