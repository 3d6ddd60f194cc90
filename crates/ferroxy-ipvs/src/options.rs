//! The mode's settings as typed values. The fields are in `settings.rs`.

use std::sync::Arc;
use std::time::Duration;

use ferroxy_dataplane::Settings;
use ferroxy_iptables::settings::masquerade_mark;
use ipnet::IpNet;

use crate::settings::{EXCLUDE_CIDRS, SCHEDULER, STRICT_ARP, TCP_FIN_TIMEOUT, TCP_TIMEOUT, UDP_TIMEOUT};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    pub masquerade_mark: u32,
    /// The kernel's name of the scheduler: `rr`, `lc`, `mh`…
    pub scheduler: Arc<str>,
    pub strict_arp: bool,
    pub timeouts: Timeouts,
    /// Virtual servers at these addresses belong to another program.
    pub exclude_cidrs: Vec<IpNet>,
}

/// How long the kernel remembers connections, in seconds. 0 leaves the kernel's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timeouts {
    pub tcp: u32,
    pub tcp_fin: u32,
    pub udp: u32,
}

impl From<&Settings> for Options {
    fn from(settings: &Settings) -> Options {
        let scheduler = settings.text(&SCHEDULER);
        // Rounded up: 0 would leave the kernel's value.
        let seconds =
            |duration: Duration| u32::try_from(duration.as_millis().div_ceil(1000)).unwrap_or(u32::MAX);
        Options {
            masquerade_mark: masquerade_mark(settings),
            scheduler: if scheduler.is_empty() { "rr" } else { &scheduler }.into(),
            strict_arp: settings.truth(&STRICT_ARP),
            timeouts: Timeouts {
                tcp: seconds(settings.duration(&TCP_TIMEOUT)),
                tcp_fin: seconds(settings.duration(&TCP_FIN_TIMEOUT)),
                udp: seconds(settings.duration(&UDP_TIMEOUT)),
            },
            exclude_cidrs: settings.cidrs(&EXCLUDE_CIDRS),
        }
    }
}

impl Default for Options {
    fn default() -> Options {
        Options::from(&Settings::default())
    }
}

#[cfg(test)]
mod tests {
    use ferroxy_dataplane::Value;

    use super::*;

    #[test]
    fn settings_become_options() {
        let usual = Options::default();
        assert_eq!((usual.masquerade_mark, &*usual.scheduler), (0x4000, "rr"));
        assert_eq!((usual.strict_arp, usual.timeouts), (false, Timeouts::default()));
        let settings: Settings = [
            ("iptables.masqueradeBit", Value::Number(3)),
            ("ipvs.scheduler", Value::Text("mh".into())),
            ("ipvs.strictARP", Value::Truth(true)),
            ("ipvs.tcpTimeout", Value::Duration(Duration::from_millis(1500))),
            ("ipvs.udpTimeout", Value::Duration(Duration::from_millis(1))),
            ("ipvs.excludeCIDRs", Value::Cidrs(vec!["192.0.2.0/24".parse().unwrap()])),
        ]
        .into_iter()
        .collect();
        let expected = Options {
            masquerade_mark: 8,
            scheduler: "mh".into(),
            strict_arp: true,
            timeouts: Timeouts { tcp: 2, tcp_fin: 0, udp: 1 },
            exclude_cidrs: vec!["192.0.2.0/24".parse().unwrap()],
        };
        assert_eq!(Options::from(&settings), expected);
    }
}
