//! The defaults of fields that are not set.

use std::net::IpAddr;

use super::file::{self, File};
use super::{duration, fields};
use crate::client;
use crate::modes::Modes;

/// Where the values come from: files and flags differ in what counts as unset.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Origin {
    /// In a file, empty text and zero are "unset" for many fields.
    File,
    /// A flag that is given is always set.
    Flags,
}

/// Fills in every field.
pub(super) fn fill(file: &mut File, modes: Modes, origin: Origin) {
    let fill = Fill { origin };
    file.api_version.get_or_insert_with(|| file::API_VERSION.to_owned());
    file.kind.get_or_insert_with(|| file::KIND.to_owned());
    addresses(file, origin);
    fill.text(&mut file.detect_local_mode, "ClusterCIDR");
    fill.period(&mut file.config_sync_period, "15m");
    for text in [
        &mut file.cluster_cidr,
        &mut file.hostname_override,
        &mut file.mode,
        &mut file.page_address,
        &mut file.page_token_file,
        &mut file.show_hidden_metrics_for_version,
        &mut file.detect_local.bridge_interface,
        &mut file.detect_local.interface_name_prefix,
    ] {
        text.get_or_insert_default();
    }
    file.bind_address_hard_fail.get_or_insert(false);
    file.enable_profiling.get_or_insert(false);
    file.windows_run_as_service.get_or_insert(false);
    file.feature_gates.get_or_insert_default();
    file.node_port_addresses.get_or_insert_default();
    file.oom_score_adj.get_or_insert(-999);
    fill.client_connection(&mut file.client_connection);
    fill.conntrack(&mut file.conntrack);
    fields::fill(&mut file.modes, modes, file.mode.as_deref().unwrap_or_default(), origin);
    fill.logging(&mut file.logging);
}

pub(super) const HEALTHZ_PORT: u16 = 10256;
pub(super) const METRICS_PORT: u16 = 10249;

/// The default addresses of the health and metrics services: of the family of `bindAddress`.
pub(super) fn hosts(bind_address: &str) -> (&'static str, &'static str) {
    match bind_address.parse() {
        Ok(IpAddr::V6(_)) => ("[::]", "[::1]"),
        _ => ("0.0.0.0", "127.0.0.1"),
    }
}

/// `10.0.0.1` → `10.0.0.1:10256`; what is not a bare address stays as it is.
pub(super) fn with_port(address: &str, port: i64) -> String {
    match address.parse() {
        Ok(IpAddr::V4(address)) => format!("{address}:{port}"),
        Ok(IpAddr::V6(address)) => format!("[{address}]:{port}"),
        Err(_) => address.to_owned(),
    }
}

/// A complete file, with an example entry in each list and mapping: all field names and types.
pub(super) fn shape(modes: Modes) -> File {
    let mut shape = File::default();
    fill(&mut shape, modes, Origin::File);
    shape.feature_gates = Some([(String::new(), true)].into());
    shape.node_port_addresses = Some(vec![String::new()]);
    shape.modes = fields::examples(modes);
    shape.logging.vmodule = Some(vec![file::VModule::default()]);
    shape
}

fn addresses(file: &mut File, origin: Origin) {
    let fill = Fill { origin };
    let bind_address = fill.text(&mut file.bind_address, "0.0.0.0");
    let (healthz, metrics) = hosts(bind_address);
    // An empty flag switches the health service off; in a file, empty is "unset".
    if file.healthz_bind_address.is_none() || origin == Origin::File {
        fill.text(&mut file.healthz_bind_address, &format!("{healthz}:{HEALTHZ_PORT}"));
    }
    fill.text(&mut file.metrics_bind_address, &format!("{metrics}:{METRICS_PORT}"));
    for (address, port) in [
        (&mut file.healthz_bind_address, HEALTHZ_PORT),
        (&mut file.metrics_bind_address, METRICS_PORT),
        (&mut file.page_address, client::DEFAULT_PORT),
    ] {
        *address = address.as_deref().map(|it| with_port(it, port.into()));
    }
}

struct Fill {
    origin: Origin,
}

impl Fill {
    fn text<'a>(&self, text: &'a mut Option<String>, default: &str) -> &'a str {
        if text.as_deref().is_none_or(str::is_empty) {
            *text = Some(default.to_owned());
        }
        text.get_or_insert_default()
    }

    /// A duration; in a file, zero is "unset".
    fn period(&self, text: &mut Option<String>, default: &str) {
        let zero = text.as_deref().is_some_and(|it| duration::parse(it) == Ok(0));
        if text.is_none() || (zero && self.origin == Origin::File) {
            *text = Some(default.to_owned());
        }
    }

    fn client_connection(&self, it: &mut file::ClientConnection) {
        self.text(&mut it.content_type, "application/vnd.kubernetes.protobuf");
        it.accept_content_types.get_or_insert_default();
        it.kubeconfig.get_or_insert_default();
        it.qps = it.qps.filter(|qps| *qps != 0.0).or(Some(5.0));
        it.burst = it.burst.filter(|burst| *burst != 0).or(Some(10));
    }

    /// Zero has a meaning here: leave the kernel's value alone.
    fn conntrack(&self, it: &mut file::Conntrack) {
        it.max_per_core.get_or_insert(32_768);
        it.min.get_or_insert(131_072);
        it.tcp_be_liberal.get_or_insert(false);
        it.tcp_established_timeout.get_or_insert_with(|| "24h".to_owned());
        it.tcp_close_wait_timeout.get_or_insert_with(|| "1h".to_owned());
        it.udp_timeout.get_or_insert_with(|| "0s".to_owned());
        it.udp_stream_timeout.get_or_insert_with(|| "0s".to_owned());
    }

    fn logging(&self, it: &mut file::Logging) {
        self.text(&mut it.format, "text");
        self.period(&mut it.flush_frequency, "5s");
        it.verbosity.get_or_insert(0);
        it.vmodule.get_or_insert_default();
        for stream in [&mut it.options.text, &mut it.options.json] {
            self.text(&mut stream.info_buffer_size, "0");
            stream.split_stream.get_or_insert(false);
        }
    }
}
