//! The network of the demo: its nodes, pods and clients, their addresses, and a picture of it. The Services are in
//! `shop.rs`.

use std::net::{Ipv4Addr, Ipv6Addr};

use ferroxy_lab::{Network, Result, prefixes};
use ferroxy_netlink::route::Route;

/// All its addresses follow from its number: node 1 is 172.18.0.11 and has the pods 10.244.1.0/24.
#[derive(Debug)]
pub struct Node {
    pub name: &'static str,
    pub number: u8,
}

#[derive(Debug)]
pub struct Pod {
    pub name: &'static str,
    pub node: &'static Node,
    /// The last number of its addresses.
    pub number: u8,
}

pub const NODES: [Node; 2] = [Node { name: "node-1", number: 1 }, Node { name: "node-2", number: 2 }];

pub const PODS: [Pod; 9] = [
    Pod { name: "web-1", node: &NODES[0], number: 11 },
    Pod { name: "cart-1", node: &NODES[0], number: 21 },
    Pod { name: "api-1", node: &NODES[0], number: 31 },
    Pod { name: "reviews-1", node: &NODES[0], number: 41 },
    Pod { name: "web-2", node: &NODES[1], number: 12 },
    Pod { name: "cart-2", node: &NODES[1], number: 22 },
    Pod { name: "api-2", node: &NODES[1], number: 32 },
    Pod { name: "api-3", node: &NODES[1], number: 33 },
    Pod { name: "dns-1", node: &NODES[1], number: 53 },
];

/// A host outside the cluster.
pub const VISITOR: (&str, &str) = ("visitor", "172.18.0.100");
/// Another host outside the cluster. One Service admits it, but not the visitor.
pub const OFFICE: (&str, &str) = ("office", "172.18.0.50");

/// All pod addresses.
pub const CLUSTER_CIDR: &str = "10.244.0.0/16,fd00:244::/32";

impl Node {
    pub fn ipv4(&self) -> Ipv4Addr {
        Ipv4Addr::new(172, 18, 0, 10 + self.number)
    }

    pub fn ipv6(&self) -> Ipv6Addr {
        Ipv6Addr::new(0xfd00, 0x172, 0x18, 0, 0, 0, 0, self.number.into())
    }

    pub fn pod_ranges(&self) -> [String; 2] {
        [format!("{}/24", self.pod_ipv4(0)), format!("{}/64", self.pod_ipv6(0))]
    }

    /// The default gateways of this node's pods: the addresses of their bridge.
    fn gateways(&self) -> (Ipv4Addr, Ipv6Addr) {
        (self.pod_ipv4(1), self.pod_ipv6(1))
    }

    fn pod_ipv4(&self, number: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 244, self.number, number)
    }

    fn pod_ipv6(&self, number: u8) -> Ipv6Addr {
        Ipv6Addr::new(0xfd00, 0x244, self.number.into(), 0, 0, 0, 0, number.into())
    }
}

impl Pod {
    pub fn ipv4(&self) -> Ipv4Addr {
        self.node.pod_ipv4(self.number)
    }

    pub fn ipv6(&self) -> Ipv6Addr {
        self.node.pod_ipv6(self.number)
    }
}

/// Builds the network; every pod answers requests.
pub fn build() -> Result<Network> {
    let mut network = Network::new()?;
    for node in &NODES {
        let (v4, v6) = node.gateways();
        let uplink = prefixes([&format!("{}/16", node.ipv4()), &format!("{}/64", node.ipv6())])?;
        network.add_node(node.name, &uplink, &prefixes([&format!("{v4}/24"), &format!("{v6}/64")])?)?;
    }
    for pod in &PODS {
        let addresses = prefixes([&format!("{}/24", pod.ipv4()), &format!("{}/64", pod.ipv6())])?;
        network.add_pod(pod.name, pod.node.name, &addresses)?;
        send_everything_through_the_node(&network, pod)?;
    }
    for (name, address) in [VISITOR, OFFICE] {
        network.add_client(name, &prefixes([&format!("{address}/16")])?)?;
        // Like a router in front of the cluster: routes to the load balancers' addresses and to the external ones.
        network.add_routes_via(name, NODES[0].name, &prefixes(["203.0.113.0/24", "198.51.100.0/24"])?)?;
    }
    for node in &NODES {
        // The kernel looks up a route before our rules see packets that the node itself sends to a Service.
        network.add_routes_via(node.name, VISITOR.0, &prefixes(["0.0.0.0/0"])?)?;
    }
    Ok(network)
}

/// Two pods on one bridge would answer each other directly, past the rules that know the Service's address. Clusters
/// load br_netfilter to avoid that; routes work without the module, so that the demo runs on every kernel.
fn send_everything_through_the_node(network: &Network, pod: &Pod) -> Result<()> {
    let namespace = network.namespace(pod.name)?;
    // The node would send redirects to the direct route.
    for key in [
        "ipv4/conf/all/accept_redirects",
        "ipv4/conf/eth0/accept_redirects",
        "ipv6/conf/eth0/accept_redirects",
    ] {
        namespace.set_sysctl(&format!("net/{key}"), "0")?;
    }
    let (v4, v6) = pod.node.gateways();
    let mut connection = namespace.connection()?;
    // More specific than the route to the bridge's range, with all pods in it.
    let (range_v4, range_v6) = (pod.node.pod_ipv4(0).into(), pod.node.pod_ipv6(0).into());
    let route = |destination, prefix_length, gateway| Route {
        destination,
        prefix_length,
        gateway: Some(gateway),
        link: None,
    };
    connection.add_route(route(range_v4, 25, v4.into()))?;
    connection.add_route(route(range_v6, 65, v6.into()))?;
    Ok(())
}

/// Printed at the beginning of the demo.
pub fn picture() -> String {
    let mut lines = vec![
        [format!("{} {}", VISITOR.0, VISITOR.1), format!("{} {}", OFFICE.0, OFFICE.1)],
        ["   |", "   |"].map(Into::into),
        [format!("---+{:-<29}", "--- outside "), "---+--------------------------".into()],
        ["   |", "   |"].map(Into::into),
        NODES.each_ref().map(|node| format!("{} {}", node.name, node.ipv4())),
    ];
    let [left, right] = NODES.each_ref().map(|node| {
        let pods = PODS.iter().filter(|pod| pod.node.number == node.number);
        pods.map(|pod| format!("   +-- {:9} {}", pod.name, pod.ipv4())).collect::<Vec<_>>()
    });
    for number in 0..left.len().max(right.len()) {
        lines.push([&left, &right].map(|column| column.get(number).cloned().unwrap_or_default()));
    }
    let text = |[left, right]: &[String; 2]| format!("{}\n", format!("  {left:33}{right}").trim_end());
    lines.iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_follow_from_the_numbers() {
        assert_eq!(NODES[1].ipv4().to_string(), "172.18.0.12");
        assert_eq!(PODS[0].ipv4().to_string(), "10.244.1.11");
        assert_eq!(PODS[8].ipv6().to_string(), "fd00:244:2::35");
        assert_eq!(NODES[0].pod_ranges(), ["10.244.1.0/24", "fd00:244:1::/64"]);
    }

    #[test]
    fn the_picture_shows_everybody() {
        let picture = picture();
        for name in PODS.iter().map(|pod| pod.name).chain(NODES.iter().map(|node| node.name)) {
            assert!(picture.contains(name), "{name} is not in:\n{picture}");
        }
    }
}
