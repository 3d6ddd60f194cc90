//! The conditions that decide, besides a Service itself, which of its frontends are translated at sockets.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ferroxy_core::intent::NodePortAddresses;
use ferroxy_core::{Family, NodeIntent, ServiceName};
use ferroxy_dataplane::ChoiceOfEndpoints;
use sha2::{Digest, Sha256};

use crate::entry::{Clients, PoolId};

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Terms {
    /// The clients whose connections are translated.
    pub clients: Clients,
    pub masquerade_all: bool,
    /// Connections of each frontend and endpoint are counted.
    pub count_traffic: bool,
    /// Whether packets of pods can be recognised, in each family.
    pub detects_pods: [bool; 2],
    /// Addresses that the host has on an interface.
    pub host_addresses: BTreeSet<IpAddr>,
    /// Addresses on which node ports answer, in each family. Empty if they answer on all addresses of the host.
    pub node_port_addresses: [BTreeSet<IpAddr>; 2],
    /// How the packets' dataplane chooses endpoints.
    pub choice: ChoiceOfEndpoints,
    pub salt: Salt,
}

/// Random, and kept with the maps: a user who does not know it cannot name a Service so that its pool id is that of another Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Salt(pub u64);

/// Which endpoints of a Service port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pool {
    Cluster,
    Local,
}

impl Terms {
    pub fn new(node: &NodeIntent, clients: Clients, choice: ChoiceOfEndpoints, salt: Salt) -> Terms {
        Terms {
            clients,
            masquerade_all: node.masquerade_all,
            count_traffic: node.count_traffic,
            detects_pods: Family::ALL.map(|family| node.family(family).local_detector.is_some()),
            host_addresses: node.host_addresses.clone(),
            node_port_addresses: Family::ALL.map(|family| match &node.family(family).node_port_addresses {
                NodePortAddresses::These(these) => these.clone(),
                NodePortAddresses::AllLocal => BTreeSet::new(),
            }),
            choice,
            salt,
        }
    }

    pub fn detects_pods(&self, family: Family) -> bool {
        self.detects_pods[family as usize]
    }

    /// A function of names, so that it is the same after a restart. Only TCP ports have pools.
    pub fn pool(&self, service: &ServiceName, port: &str, family: Family, pool: Pool) -> PoolId {
        let mut hash = Sha256::new();
        hash.update(self.salt.0.to_be_bytes());
        hash.update(service.as_str());
        // No name contains a zero.
        hash.update([0]);
        hash.update(port);
        hash.update([0, family as u8]);
        let digest = hash.finalize();
        let mut first = [0; 8];
        first.iter_mut().zip(digest.iter()).for_each(|(to, from)| *to = *from);
        PoolId(u64::from_be_bytes(first) & PoolId::PORT | pool as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_depends_on_everything_that_distinguishes_it() {
        let terms = |salt| Terms { salt: Salt(salt), ..Terms::default() };
        let web = ServiceName::new("default", "web");
        let one = terms(1).pool(&web, "http", Family::V4, Pool::Cluster);
        assert_eq!(one, terms(1).pool(&web, "http", Family::V4, Pool::Cluster));
        let others = [
            terms(2).pool(&web, "http", Family::V4, Pool::Cluster),
            terms(1).pool(&ServiceName::new("default", "web2"), "http", Family::V4, Pool::Cluster),
            terms(1).pool(&web, "https", Family::V4, Pool::Cluster),
            terms(1).pool(&web, "http", Family::V6, Pool::Cluster),
            terms(1).pool(&web, "http", Family::V4, Pool::Local),
        ];
        assert!(others.iter().all(|other| *other != one));
    }
}
