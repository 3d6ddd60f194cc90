//! A small cluster network: nodes and external clients on one switch, pods behind the bridge of each node. Members can be
//! added and removed while it runs. It has no proxy: tests start one in the namespace of a node.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use ferroxy_netlink::route::{Address, Connection, Route};
use ipnet::IpNet;

use crate::cgroup::Cgroups;
use crate::error::{LabError, Result};
use crate::namespace::Namespace;
use crate::patience::PATIENCE;
use crate::pod::PodServer;

/// All its namespaces and threads end when it is dropped.
#[derive(Debug)]
pub struct Network {
    switch: Namespace,
    members: BTreeMap<String, Member>,
}

#[derive(Debug)]
struct Member {
    role: Role,
    namespace: Namespace,
    /// The addresses of its uplink.
    addresses: Vec<IpNet>,
}

#[derive(Debug)]
enum Role {
    /// The addresses of the bridge are the gateways of pods; their prefixes are the pod CIDRs of the node.
    Node {
        bridge: Vec<IpNet>,
    },
    Pod {
        node: String,
        server: Option<PodServer>,
    },
    Client,
}

/// The one link of a pod or client, and a node's link to the switch.
const UPLINK: &str = "eth0";
/// The bridge of a node's pods.
const POD_BRIDGE: &str = "cbr0";
/// The bridge that is the switch.
const SWITCH_BRIDGE: &str = "switch";

impl Network {
    /// A switch without members.
    pub fn new() -> Result<Network> {
        let switch = Namespace::new("switch")?;
        let mut connection = switch.connection()?;
        create_bridge(&mut connection, SWITCH_BRIDGE)?;
        // The switch must not filter: by default its frames would pass netfilter.
        set_bridge_netfilter(&switch, "0")?;
        Ok(Network { switch, members: BTreeMap::new() })
    }

    /// The network on which the conformance corpus was recorded: see `conformance/README.md`.
    pub fn conformance() -> Result<Network> {
        let mut network = Network::new()?;
        let (a, b) = (["10.244.1.1/24", "fd00:10:244:1::1/64"], ["10.244.2.1/24", "fd00:10:244:2::1/64"]);
        network.add_node("ka", &prefixes(["172.18.0.2/16", "fd00:172:18::2/64"])?, &prefixes(a)?)?;
        network.add_node("kb", &prefixes(["172.18.0.3/16", "fd00:172:18::3/64"])?, &prefixes(b)?)?;
        network.add_pod("a1", "ka", &prefixes(["10.244.1.5/24", "fd00:10:244:1::5/64"])?)?;
        network.add_pod("a2", "ka", &prefixes(["10.244.1.6/24", "fd00:10:244:1::6/64"])?)?;
        network.add_pod("b1", "kb", &prefixes(["10.244.2.5/24", "fd00:10:244:2::5/64"])?)?;
        network.add_pod("b2", "kb", &prefixes(["10.244.2.6/24", "fd00:10:244:2::6/64"])?)?;
        network.add_client("ext", &prefixes(["172.18.0.100/16", "fd00:172:18::100/64"])?)?;
        for node in ["ka", "kb"] {
            network.add_routes_via(node, "ext", &prefixes(["0.0.0.0/0", "::/0"])?)?;
        }
        let services = ["10.96.0.0/16", "203.0.113.0/24", "198.51.100.0/24", "fd00:10:96::/112"];
        network.add_routes_via("ext", "ka", &prefixes(services)?)?;
        let (near, far) = (prefixes(["172.31.255.2/30"])?, prefixes(["172.31.255.1/30"])?);
        network.add_direct_client("api", &far, "ka", "api1", &near)?;
        Ok(network)
    }

    /// A node on the switch, with a bridge for pods. Nodes have routes to each other's pod CIDRs.
    pub fn add_node(&mut self, name: &str, addresses: &[IpNet], bridge: &[IpNet]) -> Result<()> {
        let namespace = self.plug_into_switch(name, addresses)?;
        namespace.set_sysctl("net/ipv4/ip_forward", "1")?;
        namespace.set_sysctl("net/ipv6/conf/all/forwarding", "1")?;
        create_bridge(&mut namespace.connection()?, POD_BRIDGE)?;
        set_addresses(&namespace, POD_BRIDGE, bridge)?;
        set_bridge_netfilter(&namespace, "1")?;

        let other_nodes: Vec<(String, Vec<IpNet>)> = self.nodes_with_pod_ranges().collect();
        let role = Role::Node { bridge: bridge.to_vec() };
        self.insert(name, role, namespace, addresses);
        for (other, ranges) in other_nodes {
            self.add_routes_via(name, &other, &ranges)?;
            self.add_routes_via(&other, name, &pod_ranges(bridge))?;
        }
        Ok(())
    }

    /// A pod on a node, with its servers running.
    pub fn add_pod(&mut self, name: &str, node: &str, addresses: &[IpNet]) -> Result<()> {
        let namespace = self.new_host(name)?;
        let Member { role: Role::Node { bridge: gateways }, namespace: host, .. } = self.member(node)? else {
            return Err(LabError::unknown("node", node));
        };
        connect_pod(&namespace, addresses, host, gateways)?;
        let server = Some(PodServer::start(&namespace)?);
        self.insert(name, Role::Pod { node: node.to_owned(), server }, namespace, addresses);
        Ok(())
    }

    /// A host on the switch that is not a node: it does not forward and has no routes to pods.
    pub fn add_client(&mut self, name: &str, addresses: &[IpNet]) -> Result<()> {
        let namespace = self.plug_into_switch(name, addresses)?;
        self.insert(name, Role::Client, namespace, addresses);
        Ok(())
    }

    /// A host that is connected to `member` instead of the switch; the interface there is called `link`.
    pub fn add_direct_client(
        &mut self,
        name: &str,
        addresses: &[IpNet],
        member: &str,
        link: &str,
        link_addresses: &[IpNet],
    ) -> Result<()> {
        let namespace = self.new_host(name)?;
        let near = self.namespace(member)?;
        near.connection()?.create_veth(link, UPLINK, Some(namespace.as_fd()))?;
        set_addresses(near, link, link_addresses)?;
        set_addresses(&namespace, UPLINK, addresses)?;
        wait_until_operational(&mut near.connection()?, link)?;
        wait_until_operational(&mut namespace.connection()?, UPLINK)?;
        self.insert(name, Role::Client, namespace, addresses);
        Ok(())
    }

    /// Routes on `on` to `destinations` through the address of `via` in the same family.
    pub fn add_routes_via(&self, on: &str, via: &str, destinations: &[IpNet]) -> Result<()> {
        let gateways = &self.member(via)?.addresses;
        let mut connection = self.namespace(on)?.connection()?;
        for destination in destinations {
            let gateway = gateways.iter().find(|gateway| same_family(gateway, destination));
            let gateway = gateway.ok_or_else(|| LabError::NoGateway { via: via.into(), to: *destination })?;
            let route = Route {
                destination: destination.network(),
                prefix_length: destination.prefix_len(),
                gateway: Some(gateway.addr()),
                link: None,
            };
            connection.add_route(route)?;
        }
        Ok(())
    }

    /// Stops the servers of a pod but keeps its addresses: new connections are refused.
    pub fn stop_servers(&mut self, pod: &str) -> Result<()> {
        match self.members.get_mut(pod) {
            Some(Member { role: Role::Pod { server, .. }, .. }) => *server = None,
            _ => return Err(LabError::unknown("pod", pod)),
        }
        Ok(())
    }

    /// Removes a pod: its addresses no longer answer.
    pub fn remove_pod(&mut self, pod: &str) -> Result<()> {
        let Role::Pod { node, .. } = &self.member(pod)?.role else {
            return Err(LabError::unknown("pod", pod));
        };
        let mut connection = self.namespace(node)?.connection()?;
        // The kernel removes the link with the namespace, but only later.
        let port = connection.link(&pod_port(pod))?;
        connection.delete_link(port.index)?;
        self.members.remove(pod);
        Ok(())
    }

    /// From now on, everything that runs on a node is in a cgroup with the node's name, and its pods are in `kubepods` below.
    pub fn enter_cgroups(&mut self, cgroups: &Cgroups) -> Result<()> {
        for (name, member) in &mut self.members {
            let cgroup = match &member.role {
                Role::Node { .. } => format!("{name}/system"),
                Role::Pod { node, .. } => format!("{node}/kubepods/{name}"),
                Role::Client => continue,
            };
            member.namespace.set_cgroup(cgroups.create(cgroup)?);
        }
        Ok(())
    }

    pub fn namespace(&self, name: &str) -> Result<&Namespace> {
        self.member(name).map(|member| &member.namespace)
    }

    /// The names of all members: every namespace except the switch.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.members.keys().map(String::as_str)
    }

    fn member(&self, name: &str) -> Result<&Member> {
        self.members.get(name).ok_or_else(|| LabError::unknown("namespace", name))
    }

    fn insert(&mut self, name: &str, role: Role, namespace: Namespace, addresses: &[IpNet]) {
        self.members.insert(name.to_owned(), Member { role, namespace, addresses: addresses.to_vec() });
    }

    fn nodes_with_pod_ranges(&self) -> impl Iterator<Item = (String, Vec<IpNet>)> {
        self.members.iter().filter_map(|(name, member)| match &member.role {
            Role::Node { bridge } => Some((name.clone(), pod_ranges(bridge))),
            _ => None,
        })
    }

    fn new_host(&self, name: &str) -> Result<Namespace> {
        if self.members.contains_key(name) {
            return Err(LabError::NameTaken(name.to_owned()));
        }
        let namespace = Namespace::new(name)?;
        // IPv6 duplicate address detection would delay every address by a second.
        namespace.set_sysctl("net/ipv6/conf/all/accept_dad", "0")?;
        namespace.set_sysctl("net/ipv6/conf/default/accept_dad", "0")?;
        // IPv4 settings are inherited from the host.
        namespace.set_sysctl("net/ipv4/ip_forward", "0")?;
        namespace.set_sysctl("net/ipv4/conf/all/rp_filter", "0")?;
        namespace.set_sysctl("net/ipv4/conf/default/rp_filter", "0")?;
        // The kernel limits the rate of ICMP errors: rejected packets would look dropped.
        namespace.set_sysctl("net/ipv4/icmp_ratemask", "0")?;
        namespace.set_sysctl("net/ipv6/icmp/ratemask", "\n")?;
        Ok(namespace)
    }

    fn plug_into_switch(&self, name: &str, addresses: &[IpNet]) -> Result<Namespace> {
        let namespace = self.new_host(name)?;
        plug_into_bridge(&mut self.switch.connection()?, SWITCH_BRIDGE, name, &namespace, addresses)?;
        Ok(namespace)
    }
}

/// One line for each member, with the command that enters its namespace.
impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:8} {}", self.switch.name(), self.switch.debug_command())?;
        for (name, member) in &self.members {
            let addresses: Vec<String> = member.addresses.iter().map(IpNet::to_string).collect();
            writeln!(f, "{name:8} {}   # {}", member.namespace.debug_command(), addresses.join(" "))?;
        }
        Ok(())
    }
}

/// Addresses with their prefix lengths, from text.
pub fn prefixes<const N: usize>(texts: [&str; N]) -> Result<Vec<IpNet>> {
    texts.iter().map(|text| text.parse().map_err(|_| LabError::NotAPrefix((*text).to_owned()))).collect()
}

fn connect_pod(pod: &Namespace, addresses: &[IpNet], node: &Namespace, gateways: &[IpNet]) -> Result<()> {
    let mut on_node = node.connection()?;
    let port = plug_into_bridge(&mut on_node, POD_BRIDGE, &pod_port(pod.name()), pod, addresses)?;
    // A pod may reach itself through a Service: the packet then leaves through the port where it came in.
    on_node.set_hairpin(port, true)?;
    // A bridge has a carrier if one of its ports has one: this matters for the first pod.
    wait_until_operational(&mut on_node, POD_BRIDGE)?;
    let mut in_pod = pod.connection()?;
    for gateway in gateways.iter().filter(|gateway| addresses.iter().any(|own| same_family(own, gateway))) {
        let destination = match gateway.addr() {
            IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
        };
        let gateway = Some(gateway.addr());
        in_pod.add_route(Route { destination, prefix_length: 0, gateway, link: None })?;
    }
    Ok(())
}

fn create_bridge(connection: &mut Connection, name: &str) -> Result<()> {
    connection.create_bridge(name)?;
    let bridge = connection.link(name)?;
    Ok(connection.set_up(bridge.index)?)
}

/// Connects the uplink of a host to a bridge; returns the index of the bridge port, called `port`.
fn plug_into_bridge(
    connection: &mut Connection,
    bridge: &str,
    port: &str,
    host: &Namespace,
    addresses: &[IpNet],
) -> Result<u32> {
    connection.create_veth(port, UPLINK, Some(host.as_fd()))?;
    set_addresses(host, UPLINK, addresses)?;
    let (bridge, index) = (connection.link(bridge)?.index, connection.link(port)?.index);
    connection.set_master(index, Some(bridge))?;
    connection.set_up(index)?;
    wait_until_operational(connection, port)?;
    wait_until_operational(&mut host.connection()?, UPLINK)?;
    Ok(index)
}

fn set_addresses(namespace: &Namespace, link: &str, addresses: &[IpNet]) -> Result<()> {
    let mut connection = namespace.connection()?;
    let index = connection.link(link)?.index;
    if let Some(first) = addresses.first() {
        connection.set_mac(index, mac_of(first.addr()))?;
    }
    connection.set_up(index)?;
    for address in addresses {
        let (ip, prefix_length) = (address.addr(), address.prefix_len());
        connection.add_address(Address { link: index, ip, prefix_length })?;
    }
    wait_until_solicited(namespace, link, addresses)
}

/// The kernel starts the queues of a link and the forwarding of a bridge port some time after the carrier is up. Earlier
/// packets are lost, and their sender retries a second later: too late for a probe.
fn wait_until_operational(connection: &mut Connection, link: &str) -> Result<()> {
    wait(&format!("link {link} to carry packets"), || Ok(connection.link(link)?.operational))
}

/// An IPv6 address answers neighbour solicitations after the link has joined the multicast group for them, which the
/// kernel also does in the background. Until then packets are lost, too.
fn wait_until_solicited(namespace: &Namespace, link: &str, addresses: &[IpNet]) -> Result<()> {
    let groups: Vec<String> = addresses
        .iter()
        .filter_map(|address| match address.addr() {
            IpAddr::V6(address) => {
                Some(format!("ff0200000000000000000001ff{:06x}", address.to_bits() & 0xff_ffff))
            }
            IpAddr::V4(_) => None,
        })
        .collect();
    let joined = || {
        let memberships = fs::read_to_string("/proc/thread-self/net/igmp6")
            .map_err(|e| LabError::system("read multicast memberships", e))?;
        // Index, link, group, and further fields that are not used.
        let on_link = |group: &String| {
            memberships
                .lines()
                .map(|line| line.split_ascii_whitespace().skip(1))
                .any(|mut words| words.next() == Some(link) && words.next() == Some(group))
        };
        Ok(groups.iter().all(on_link))
    };
    namespace.run(|| wait(&format!("the addresses of link {link}"), joined))?
}

fn wait(what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    // One worker of the kernel sets up the addresses of all namespaces: on a busy machine it is behind by seconds.
    let deadline = Instant::now() + PATIENCE;
    while !done()? {
        if Instant::now() > deadline {
            return Err(LabError::WaitedInVain(what.to_owned()));
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// A MAC derived from the address, so that neighbour entries stay valid if a pod is recreated. Setting it also fixes the MAC
/// of a bridge, which by default is the lowest of its ports and would change with a new pod.
fn mac_of(address: IpAddr) -> [u8; 6] {
    let bits = match address {
        IpAddr::V4(address) => address.to_bits(),
        IpAddr::V6(address) => address.to_bits() as u32,
    };
    let [a, b, c, d] = bits.to_be_bytes();
    // Locally administered, unicast.
    [0x02, 0, a, b, c, d]
}

/// Passes bridged frames through the IP rules, as Kubernetes requires on nodes. Without br_netfilter the setting does not
/// exist and they do not pass: tests that need it check `capability` first.
fn set_bridge_netfilter(namespace: &Namespace, value: &str) -> Result<()> {
    for key in ["net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"] {
        if namespace.has_sysctl(key)? {
            namespace.set_sysctl(key, value)?;
        }
    }
    Ok(())
}

/// The interface of a pod on its node.
fn pod_port(pod: &str) -> String {
    format!("veth{pod}")
}

fn pod_ranges(bridge: &[IpNet]) -> Vec<IpNet> {
    bridge.iter().map(IpNet::trunc).collect()
}

fn same_family(one: &IpNet, other: &IpNet) -> bool {
    one.addr().is_ipv4() == other.addr().is_ipv4()
}
