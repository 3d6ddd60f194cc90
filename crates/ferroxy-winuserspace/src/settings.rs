//! The settings of winuserspace mode: the fields of the configuration file that it reads.

use std::time::Duration;

use ferroxy_core::Policy;
use ferroxy_core::policy::NodePortAddress;
use ferroxy_dataplane::{self as contract, Field, Flag, Kind};
pub use ferroxy_iptables::settings::{MIN_SYNC_PERIOD, SYNC_PERIOD};
use ferroxy_pools::balancing::ANNOTATIONS;
use ferroxy_pools::settings::udp_idle;
pub use ferroxy_pools::settings::{PORT_RANGE, UDP_IDLE_TIMEOUT};

/// The interface that gets the addresses if none is configured, as in the original.
pub const USUAL_INTERFACE: &str = "vEthernet (HNS Internal NIC)";

/// The environment variable that names the interface, as for the original.
pub const INTERFACE_VARIABLE: &str = "INTERFACE_TO_ADD_SERVICE_IP";

/// What listeners and addresses depend on, besides the Intent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// `None`: neither the file nor a flag names one.
    pub interface: Option<String>,
    /// The idle time that ends UDP sessions; `None` leaves it to the engine.
    pub udp_idle: Option<Duration>,
}

impl Settings {
    pub fn read(values: &contract::Settings) -> Settings {
        let interface = Some(values.text(&INTERFACE)).filter(|name| !name.is_empty());
        Settings { interface, udp_idle: udp_idle(values) }
    }

    /// `environment`: the value of [`INTERFACE_VARIABLE`].
    pub fn interface(&self, environment: Option<String>) -> String {
        let named = self.interface.clone().or(environment.filter(|name| !name.is_empty()));
        named.unwrap_or_else(|| USUAL_INTERFACE.to_owned())
    }
}

/// The values where nothing is configured.
impl Default for Settings {
    fn default() -> Settings {
        Settings::read(&contract::Settings::default())
    }
}

/// Adapts the policy to this mode.
pub fn shape(_: &contract::Settings, policy: &mut Policy) {
    policy.annotations = &ANNOTATIONS;
    // A socket can recognise this host only by its addresses.
    policy.know_host_addresses = true;
    if policy.node_port_addresses.is_empty() {
        policy.node_port_addresses = vec![NodePortAddress::All];
    }
}

/// As in the original, `portRange` has no effect: nothing is translated, so the proxy needs no ports of its own.
pub static FIELDS: &[Field] = &[INTERFACE, PORT_RANGE, UDP_IDLE_TIMEOUT, SYNC_PERIOD, MIN_SYNC_PERIOD];

pub static INTERFACE: Field = Field {
    name: "winuserspace.interfaceName",
    kind: Kind::Text { default: "" },
    flag: Some(Flag {
        name: "winuserspace-interface",
        help: "Interface that gets the addresses of Services (default: INTERFACE_TO_ADD_SERVICE_IP of the environment, \
               else \"vEthernet (HNS Internal NIC)\")",
        value_name: "NAME",
    }),
    is_live: false,
    is_of_the_original: false,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_names_the_interface_if_nothing_else_does() {
        let unset = Settings::default();
        assert_eq!(unset.interface(None), USUAL_INTERFACE);
        assert_eq!(unset.interface(Some(String::new())), USUAL_INTERFACE);
        assert_eq!(unset.interface(Some("Ethernet".into())), "Ethernet");
        let set = [("winuserspace.interfaceName", contract::Value::Text("Loopback".into()))];
        let set = Settings::read(&set.into_iter().collect());
        assert_eq!(set.interface(Some("Ethernet".into())), "Loopback");
    }
}
