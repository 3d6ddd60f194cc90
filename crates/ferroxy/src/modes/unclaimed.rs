//! Fields of the original's configuration file that no mode of this binary reads: they are accepted, with a warning, and written
//! back. A mode that lists such a field in its own table takes it over.

use ferroxy_dataplane::{Field, Flag, Kind};

pub(super) static UNCLAIMED: [Field; 5] = [
    truth("winkernel.enableDSR", "enable-dsr"),
    truth("winkernel.forwardHealthCheckVip", "forward-healthcheck-vip"),
    text("winkernel.networkName", "network-name"),
    text("winkernel.rootHnsEndpointName", "root-hnsendpoint-name"),
    text("winkernel.sourceVip", "source-vip"),
];

const HELP: &str = "No mode of this binary uses it";

const fn truth(name: &'static str, flag: &'static str) -> Field {
    let flag = Some(Flag { name: flag, help: HELP, value_name: "" });
    Field { name, kind: Kind::Truth { default: false }, flag, is_live: true }
}

const fn text(name: &'static str, flag: &'static str) -> Field {
    let flag = Some(Flag { name: flag, help: HELP, value_name: "TEXT" });
    Field { name, kind: Kind::Text { default: "" }, flag, is_live: true }
}
