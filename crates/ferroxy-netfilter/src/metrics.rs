//! The metrics that several netfilter modes have. Their names are those of kube-proxy.

use ferroxy_dataplane::{Counted, Metric};

pub const FULL_SYNC_SECONDS: Metric = Metric {
    name: "kubeproxy_sync_full_proxy_rules_duration_seconds",
    help: "Time of a sync of everything.",
    counts: Counted::FullSyncSeconds,
};

pub const PARTIAL_SYNC_SECONDS: Metric = Metric {
    name: "kubeproxy_sync_partial_proxy_rules_duration_seconds",
    help: "Time of a sync of what changed.",
    counts: Counted::PartialSyncSeconds,
};

/// Of every mode that sweeps connections.
pub const SWEEP_SECONDS: Metric = Metric {
    name: "kubeproxy_conntrack_reconciler_sync_duration_seconds",
    help: "Time of a search for stale connections.",
    counts: Counted::SweepSeconds,
};

/// Of every mode that sweeps connections.
pub const SWEPT_CONNECTIONS: Metric = Metric {
    name: "kubeproxy_conntrack_reconciler_deleted_entries_total",
    help: "Stale connections removed.",
    counts: Counted::SweptConnections,
};
