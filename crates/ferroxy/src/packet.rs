//! A packet as people describe it, for `ferroxy trace` and for the page. Knows no rules: a `Ruleset` follows the packet.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use ferroxy_core::intent::LocalDetector;
use ferroxy_core::{Facts, Family, NodeIntent, Origin, Packet, Protocol, ServiceIntent, ServiceName};
use ferroxy_dataplane::{Ruleset, Trace};

#[derive(Debug, Clone, Args)]
pub struct Asked {
    /// Who sends it: an address, or `node` for this node itself
    #[arg(value_name = "FROM")]
    pub from: String,
    /// Where to: `10.96.0.80:80`, `[fd00::80]:53/udp`, or a Service's cluster IP as `namespace/name:80`
    #[arg(value_name = "TO:PORT[/PROTOCOL]")]
    pub to: String,
    /// The interface it comes in on; matters when pods are known by interface
    #[arg(long, value_name = "NAME")]
    pub interface: Option<String>,
}

impl Asked {
    /// The packet that `self` describes. `find` returns what a Service has on this node.
    pub fn packet(
        &self,
        facts: &Facts,
        node: &NodeIntent,
        find: impl Fn(&ServiceName) -> Option<Arc<ServiceIntent>>,
    ) -> anyhow::Result<Packet> {
        let (address_and_port, protocol) = split_protocol(&self.to)?;
        let to = destination(address_and_port, protocol, find)?;
        let family = Family::of(to.ip());
        let own: Vec<IpAddr> = own_addresses(facts);
        let source = match self.from.as_str() {
            "node" => {
                let usual = |address: &&IpAddr| Family::of(**address) == family && !address.is_loopback();
                *own.iter().find(usual).with_context(|| {
                    format!("FROM: no {family} address of this node is known; give an address")
                })?
            }
            text => {
                text.parse().with_context(|| format!("FROM: `{text}` is neither an address nor `node`"))?
            }
        };
        if Family::of(source) != family {
            bail!("FROM is {}, TO is {family}: no packet has both", Family::of(source));
        }
        let is_own = |address: IpAddr| own.contains(&address) || address.is_loopback();
        let origin = match &self.interface {
            Some(name) => Origin::Interface(name.clone()),
            None if is_own(source) => Origin::Host,
            None => Origin::Interface(likely_interface(facts, node, source)),
        };
        let to_this_host = is_own(to.ip());
        Ok(Packet { source, origin, destination: to.ip(), port: to.port(), protocol, to_this_host })
    }

    /// The path of the packet.
    pub fn trace(&self, ruleset: &dyn Ruleset, packet: &mut Packet) -> Trace {
        // The kernel picks a local destination address as the source address, too.
        if self.from == "node" && ruleset.makes_local(packet.destination) {
            packet.source = packet.destination;
        }
        ruleset.trace(packet)
    }
}

/// If the rules detect pods by interface, a source in this node's pod range arrives on a pod's interface.
fn likely_interface(facts: &Facts, node: &NodeIntent, source: IpAddr) -> String {
    let here = facts.own_node().is_some_and(|node| node.pod_cidrs.iter().any(|cidr| cidr.contains(&source)));
    match &node.family(Family::of(source)).local_detector {
        Some(LocalDetector::Interface(name)) if here => name.clone(),
        Some(LocalDetector::InterfacePrefix(prefix)) if here => format!("{prefix}0"),
        _ => "eth0".into(),
    }
}

fn own_addresses(facts: &Facts) -> Vec<IpAddr> {
    let of_node =
        facts.own_node().into_iter().flat_map(|node| node.internal_ips.iter().chain(&node.external_ips));
    of_node.chain(facts.host_addresses().into_iter().flatten()).copied().collect()
}

fn split_protocol(text: &str) -> anyhow::Result<(&str, Protocol)> {
    let protocol =
        |word: &str| Protocol::parse(word).with_context(|| format!("TO: `{word}` is not tcp, udp or sctp"));
    match text.rsplit_once('/') {
        // `namespace/name:80` has a slash, too.
        Some((rest, word)) if !word.contains(':') => Ok((rest, protocol(word)?)),
        _ => Ok((text, Protocol::Tcp)),
    }
}

/// An address and port as they are, or the cluster IP of a Service.
fn destination(
    text: &str,
    protocol: Protocol,
    find: impl Fn(&ServiceName) -> Option<Arc<ServiceIntent>>,
) -> anyhow::Result<SocketAddr> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let no_port = |it: &str| it.parse::<IpAddr>().is_ok();
    let form = "write `10.96.0.80:80`, `[fd00::80]:80`, or `namespace/name:80`";
    let (name, port) = text
        .rsplit_once(':')
        .filter(|_| !no_port(text))
        .with_context(|| format!("TO: `{text}` has no port; {form}"))?;
    let name = ServiceName::parse(name).with_context(|| format!("TO: `{text}` is not understood; {form}"))?;
    let service = find(&name).with_context(|| {
        format!("TO: Service {name} has nothing on this node; `ferroxy explain {name}` says why")
    })?;
    let frontend = service.ports.iter().filter(|p| p.protocol == protocol).find_map(|candidate| {
        let frontend = candidate.frontends.iter().find(|frontend| frontend.address.is_some())?;
        let meant = *port == *candidate.name || *port == frontend.port.to_string();
        meant.then(|| SocketAddr::new(frontend.address.unwrap_or(IpAddr::from([0; 4])), frontend.port))
    });
    frontend.with_context(|| format!("TO: Service {name} has no port {port}/{protocol}"))
}
