//! Names of chains: a prefix for the kind, then a hash of the owner. Other tools know these names.

use std::net::SocketAddr;

use data_encoding::BASE32;
use ferroxy_core::{Endpoint, PortIntent, ServiceIntent};
use sha2::{Digest, Sha256};

/// Prefixes of the chains that belong to one Service port.
pub const CLUSTER: &str = "KUBE-SVC-";
pub const LOCAL: &str = "KUBE-SVL-";
pub const EXTERNAL: &str = "KUBE-EXT-";
pub const FIREWALL: &str = "KUBE-FW-";
pub const ENDPOINT: &str = "KUBE-SEP-";

/// The names of one Service port's chains.
#[derive(Debug, Clone)]
pub struct Names {
    /// After `ns/name:porttcp`: the names of endpoints continue from here.
    hasher: Sha256,
    hash: String,
}

impl Names {
    pub fn of(service: &ServiceIntent, port: &PortIntent) -> Names {
        Names::new(&service.name.port(&port.name), port.protocol.lowercase())
    }

    fn new(port: &str, protocol: &str) -> Names {
        let hasher = Sha256::new().chain_update(port).chain_update(protocol);
        Names { hash: letters(hasher.clone()), hasher }
    }

    /// A chain of the Service port.
    pub fn chain(&self, prefix: &str) -> String {
        format!("{prefix}{}", self.hash)
    }

    /// The chain of one of its endpoints.
    pub fn endpoint(&self, endpoint: &Endpoint) -> String {
        let address = SocketAddr::new(endpoint.ip, endpoint.port).to_string();
        format!("{ENDPOINT}{}", letters(self.hasher.clone().chain_update(address)))
    }
}

/// Sixteen letters encode ten bytes: more do not fit into the name of a chain.
fn letters(hasher: Sha256) -> String {
    BASE32.encode(&hasher.finalize()[..10])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_original() {
        let endpoint = |text: &str| {
            let address: SocketAddr = text.parse().unwrap();
            Endpoint { ip: address.ip(), port: address.port(), is_local: false }
        };
        let names = Names::new("ns1/svc1:p80", "tcp");
        assert_eq!(names.chain(CLUSTER), "KUBE-SVC-XPGD46QRK7WJZT7O");
        assert_eq!(names.endpoint(&endpoint("10.0.0.0:80")), "KUBE-SEP-DKGQUZGBKLTPAR56");
        let unnamed = Names::new("default/web", "tcp");
        assert_eq!(unnamed.chain(FIREWALL), "KUBE-FW-LOLE4ISW44XBNF3G");
        assert_eq!(unnamed.endpoint(&endpoint("[fd00:10:244:2::5]:80")), "KUBE-SEP-RF2PMJAGCBAOP2Y6");
        assert_eq!(Names::new("default/dns", "udp").chain(LOCAL), "KUBE-SVL-CR2V5ZP3AXU5XYAF");
    }
}
