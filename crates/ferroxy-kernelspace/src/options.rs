//! The mode's settings as typed values. The fields are in `settings.rs`.

use std::net::IpAddr;

use ferroxy_dataplane::Settings;

use crate::settings::{
    ENABLE_DSR, FORWARD_HEALTH_CHECK_VIP, NETWORK_NAME, ROOT_HNS_ENDPOINT_NAME, SOURCE_VIP,
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// `None`: neither the file nor the environment names one.
    pub network: Option<String>,
    /// As configured. `None`: the address of an endpoint that the network plugin made for it is used.
    pub source_vip: Option<String>,
    pub enable_dsr: bool,
    /// The host's own endpoint, if health checks are forwarded to it.
    pub root_endpoint: Option<String>,
}

impl Options {
    /// `None`: not set, or not an address.
    pub fn source_vip(&self) -> Option<IpAddr> {
        self.source_vip.as_deref()?.parse().ok()
    }

    /// `environment`: the value of `KUBE_NETWORK`.
    pub fn new(settings: &Settings, environment: Option<String>) -> Options {
        let text = |field| Some(settings.text(field)).filter(|text| !text.is_empty());
        Options {
            network: text(&NETWORK_NAME).or(environment.filter(|name| !name.is_empty())),
            source_vip: text(&SOURCE_VIP),
            enable_dsr: settings.truth(&ENABLE_DSR),
            root_endpoint: settings
                .truth(&FORWARD_HEALTH_CHECK_VIP)
                .then(|| text(&ROOT_HNS_ENDPOINT_NAME).unwrap_or_else(|| "cbr0".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use ferroxy_dataplane::Value;

    use super::*;

    #[test]
    fn the_environment_names_the_network_if_nothing_else_does() {
        let unset = Settings::default();
        assert_eq!(Options::new(&unset, None).network, None);
        assert_eq!(Options::new(&unset, Some("cbr0".into())).network.as_deref(), Some("cbr0"));
        let set: Settings = [
            ("winkernel.networkName", Value::Text("vxlan0".into())),
            ("winkernel.sourceVip", Value::Text("10.244.1.9".into())),
            ("winkernel.forwardHealthCheckVip", Value::Truth(true)),
        ]
        .into_iter()
        .collect();
        let options = Options::new(&set, Some("cbr0".into()));
        assert_eq!(options.network.as_deref(), Some("vxlan0"));
        assert_eq!(options.source_vip(), Some([10, 244, 1, 9].into()));
        assert_eq!((options.root_endpoint.as_deref(), options.enable_dsr), (Some("cbr0"), false));
    }
}
