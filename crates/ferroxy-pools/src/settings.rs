//! The fields of the configuration file that modes with a proxy share.

use std::time::Duration;

use ferroxy_dataplane::{Field, Flag, Kind, Zero};

pub static PORT_RANGE: Field = Field {
    name: "portRange",
    kind: Kind::Ports,
    flag: Some(Flag {
        name: "proxy-port-range",
        help: "Ports for the proxy's own listeners: `a-b`, `a` or `a+n`; empty: 15000-29999",
        value_name: "PORTS",
    }),
    is_live: false,
    is_of_the_original: true,
};

/// The original's 250 ms are too short for a DNS server that queries another one.
pub static UDP_IDLE_TIMEOUT: Field = Field {
    name: "udpIdleTimeout",
    kind: Kind::Duration { default: Duration::ZERO, default_in_file: None, zero: Zero::Allowed },
    flag: Some(Flag {
        name: "udp-timeout",
        help: "End UDP sessions that are idle for this long; 0: 30s before the first answer, then 120s",
        value_name: "DURATION",
    }),
    is_live: true,
    is_of_the_original: false,
};

/// How long UDP sessions may be idle; `None` leaves it to the engine.
pub fn udp_idle(values: &ferroxy_dataplane::Settings) -> Option<Duration> {
    let idle = values.duration(&UDP_IDLE_TIMEOUT);
    (!idle.is_zero()).then_some(idle)
}
