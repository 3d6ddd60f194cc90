//! `ferroxy trace FROM TO:PORT[/PROTOCOL]`: the way of one packet through the rendered ruleset.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, bail};
use clap::Args;
use ferroxy_core::intent::LocalDetector;
use ferroxy_core::{Facts, Family, Intent, Origin, Packet, Protocol, ServiceName, Verdict, resolve};
use ferroxy_dataplane::Trace as PacketTrace;
use serde_json::{Value, json};

use super::input::Input;
use super::{Answer, Output};
use crate::modes::Modes;
use crate::output::{Paint, Table};

#[derive(Debug, Args)]
pub struct Trace {
    /// Who sends it: an address, or `node` for this node itself
    #[arg(value_name = "FROM")]
    from: String,
    /// Where to: `10.96.0.80:80`, `[fd00::80]:53/udp`, or a Service's cluster IP as `namespace/name:80`
    #[arg(value_name = "TO:PORT[/PROTOCOL]")]
    to: String,
    /// The interface it comes in on; matters when pods are known by interface
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// How to print it
    #[arg(long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    input: Input,
}

impl Trace {
    pub fn run(self, modes: Modes) -> anyhow::Result<Answer> {
        let (settings, cluster) = self.input.look(modes)?;
        let (intent, _) = resolve::all(&cluster.facts);
        let mut packet = self.packet(&cluster.facts, &intent)?;
        let ruleset = settings.ruleset(&intent, &cluster.facts);
        // The node speaks to an address of its own from that very address.
        if self.from == "node" && ruleset.makes_local(packet.destination) {
            packet.source = packet.destination;
        }
        let trace = ruleset.trace(&packet);
        let mut out = io::stdout().lock();
        match self.output {
            Output::Text => {
                let who =
                    sender(&packet, intent.node.family(Family::of(packet.source)).local_detector.as_ref());
                out.write_all(text(&packet, &who, &trace, Paint::stdout()).as_bytes())?;
            }
            Output::Json => writeln!(out, "{:#}", to_json(&packet, &trace))?,
        }
        Ok(if matches!(trace.verdict, Verdict::Endpoints(_)) { Answer::Yes } else { Answer::No })
    }

    fn packet(&self, facts: &Facts, intent: &Intent) -> anyhow::Result<Packet> {
        let (address_and_port, protocol) = split_protocol(&self.to)?;
        let to = destination(address_and_port, protocol, intent)?;
        let family = Family::of(to.ip());
        let own: Vec<IpAddr> = own_addresses(facts);
        let source = match self.from.as_str() {
            "node" => {
                own.iter().copied().find(|address| Family::of(*address) == family).with_context(|| {
                    format!("FROM: the manifests have no {family} address for this node; give an address")
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
            None => Origin::Interface(self.likely_interface(facts, intent, source)),
        };
        let to_this_host = is_own(to.ip());
        Ok(Packet { source, origin, destination: to.ip(), port: to.port(), protocol, to_this_host })
    }

    /// Where pods are known by interface, an address of this node's pod range comes in on a pod's.
    fn likely_interface(&self, facts: &Facts, intent: &Intent, source: IpAddr) -> String {
        let here =
            facts.own_node().is_some_and(|node| node.pod_cidrs.iter().any(|cidr| cidr.contains(&source)));
        match &intent.node.family(Family::of(source)).local_detector {
            Some(LocalDetector::Interface(name)) if here => name.clone(),
            Some(LocalDetector::InterfacePrefix(prefix)) if here => format!("{prefix}0"),
            _ => "eth0".into(),
        }
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
fn destination(text: &str, protocol: Protocol, intent: &Intent) -> anyhow::Result<SocketAddr> {
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
    let service = intent.services.get(&name).with_context(|| {
        format!("TO: Service {name} has nothing on this node; `ferroxy explain {name}` says why")
    })?;
    let frontend = service.ports.iter().filter(|p| p.protocol == protocol).find_map(|candidate| {
        let frontend = candidate.frontends.iter().find(|frontend| frontend.address.is_some())?;
        let meant = *port == *candidate.name || *port == frontend.port.to_string();
        meant.then(|| SocketAddr::new(frontend.address.unwrap_or(IpAddr::from([0; 4])), frontend.port))
    });
    frontend.with_context(|| format!("TO: Service {name} has no port {port}/{protocol}"))
}

/// Who sends the packet, as the rules tell it.
fn sender(packet: &Packet, detector: Option<&LocalDetector>) -> String {
    match (&packet.origin, detector) {
        (Origin::Host, _) => "sent by this node".to_owned(),
        (Origin::Interface(name), Some(LocalDetector::Interface(pods))) if name == pods => {
            format!("from a pod (it comes in on {name})")
        }
        (Origin::Interface(name), Some(LocalDetector::InterfacePrefix(pods))) if name.starts_with(pods) => {
            format!("from a pod (it comes in on {name})")
        }
        (_, Some(LocalDetector::SourceIn(net))) if net.contains(&packet.source) => {
            format!("from a pod (of {net})")
        }
        (Origin::Interface(_), Some(_)) => "from outside the cluster".to_owned(),
        (Origin::Interface(_), None) => "from somewhere (pods are not distinguished: no detector)".to_owned(),
    }
}

fn text(packet: &Packet, who: &str, trace: &PacketTrace, paint: Paint) -> String {
    let to = SocketAddr::new(packet.destination, packet.port);
    let mut text =
        format!("{} {} -> {to}/{}, {who}\n\n", paint.strong("packet "), packet.source, packet.protocol);
    let mut steps = Table::indented(2);
    for step in &trace.steps {
        steps.row([paint.strong(&step.place), step.effect.clone(), paint.faint(&step.rule)]);
    }
    if trace.steps.is_empty() {
        text.push_str("  no rule of ours concerns it\n");
    }
    text.push_str(&format!("{steps}\n{} ", paint.strong("verdict")));
    match &trace.verdict {
        Verdict::Endpoints(endpoints) => {
            text.push_str(&paint.good(&match endpoints.len() {
                1 => "one endpoint".to_owned(),
                n => format!("one of {n} endpoints, with equal chance"),
            }));
            if trace.steps.iter().any(|step| step.is_sticky) {
                text.push_str("; a returning client keeps its endpoint (session affinity)");
            }
            text.push('\n');
            let mut rows = Table::indented(2);
            for (endpoint, masqueraded) in endpoints {
                rows.row([endpoint.to_string(), format!("sees {}", seen_source(packet, *masqueraded))]);
            }
            text.push_str(&rows.to_string());
        }
        Verdict::Reject => {
            text.push_str(&paint.bad("rejected: the client gets an error at once (connection refused)\n"))
        }
        Verdict::Drop => text.push_str(&paint.bad("dropped: the client waits until its own timeout\n")),
        Verdict::Pass => text.push_str("left alone: no Service has this address and port\n"),
    }
    text
}

fn seen_source(packet: &Packet, masqueraded: bool) -> String {
    if masqueraded {
        "this node's address as the source (masqueraded)".into()
    } else {
        format!("the sender's own address, {}", packet.source)
    }
}

fn to_json(packet: &Packet, trace: &PacketTrace) -> Value {
    let steps: Vec<Value> = trace
        .steps
        .iter()
        .map(|step| json!({ "chain": step.place, "rule": step.rule, "effect": step.effect }))
        .collect();
    let (verdict, endpoints) = match &trace.verdict {
        Verdict::Endpoints(endpoints) => {
            let one = |(endpoint, masqueraded): (&SocketAddr, &bool)| json!({ "endpoint": endpoint.to_string(), "masqueraded": masqueraded });
            ("endpoints", endpoints.iter().map(one).collect())
        }
        Verdict::Reject => ("reject", Vec::new()),
        Verdict::Drop => ("drop", Vec::new()),
        Verdict::Pass => ("pass", Vec::new()),
    };
    json!({
        "source": packet.source,
        "destination": SocketAddr::new(packet.destination, packet.port).to_string(),
        "protocol": packet.protocol.lowercase(),
        "steps": steps,
        "verdict": verdict,
        "endpoints": endpoints,
    })
}
