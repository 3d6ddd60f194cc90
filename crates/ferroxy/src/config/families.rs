//! Checks a configuration against the IP families of the host. The caller provides them.

use std::net::IpAddr;

use ferroxy_core::Family;
use ferroxy_core::policy::NodePortAddress;
use ferroxy_dataplane::Kind;
use ipnet::IpNet;

use super::{Config, DetectLocalMode};

impl Config {
    /// Warnings for a host that has only these families, or the errors that make the configuration unusable there.
    pub fn check_families(&self, families: &[Family]) -> Result<Vec<String>, Vec<String>> {
        let [family] = families else { return Ok(Vec::new()) };
        let (mut warnings, mut wrong) = (Vec::new(), Vec::new());
        let only = format!("and this host has only {}", name(*family));
        if !self.bind_address.is_unspecified() && of_address(self.bind_address) != *family {
            wrong.push(format!("bindAddress: {} is of the other IP family, {only}", self.bind_address));
        }
        for (field, cidrs) in self.ranges() {
            let others: Vec<String> =
                cidrs.iter().filter(|cidr| of_cidr(cidr) != *family).map(ToString::to_string).collect();
            let line = format!("{field}: {} is of the other IP family, {only}", others.join(", "));
            match others.len() {
                0 => {}
                // Without a range of its family, no pod traffic is recognised as local.
                all if field == "clusterCIDR" && all == cidrs.len() => wrong.push(line),
                _ => warnings.push(line),
            }
        }
        let addresses =
            [("healthzBindAddress", self.healthz), ("metricsBindAddress", self.metrics_address())];
        for (field, address) in addresses {
            if let Some(address) = address.filter(|it| of_address(it.ip()) != *family) {
                warnings.push(format!("{field}: {address} is of the other IP family, {only}"));
            }
        }
        if wrong.is_empty() { Ok(warnings) } else { Err(wrong) }
    }

    /// The ranges that this configuration uses, by field.
    fn ranges(&self) -> Vec<(&'static str, Vec<IpNet>)> {
        let node_ports = self.node_port_addresses.iter().filter_map(|address| match address {
            NodePortAddress::Cidr(cidr) => Some(*cidr),
            _ => None,
        });
        let mut ranges = vec![("nodePortAddresses", node_ports.collect())];
        if self.detect_local_mode == DetectLocalMode::ClusterCidr {
            ranges.push(("clusterCIDR", self.cluster_cidrs.clone()));
        }
        let of_modes = self.modes.fields().into_iter();
        let of_modes = of_modes.filter(|field| field.kind == Kind::Cidrs && self.reads(field.name));
        ranges.extend(of_modes.map(|field| (field.name, self.values.cidrs(field))));
        ranges
    }
}

fn name(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

fn of_address(address: IpAddr) -> Family {
    if address.is_ipv4() { Family::V4 } else { Family::V6 }
}

fn of_cidr(cidr: &IpNet) -> Family {
    of_address(cidr.addr())
}
