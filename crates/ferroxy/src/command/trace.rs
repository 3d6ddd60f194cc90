//! `ferroxy trace FROM TO:PORT[/PROTOCOL]`: the path of one packet through the rendered ruleset.

use std::net::SocketAddr;

use clap::Args;
use ferroxy_core::intent::LocalDetector;
use ferroxy_core::{Family, Origin, Packet, Verdict, resolve};
use ferroxy_dataplane::Trace as PacketTrace;

use super::look::Look;
use super::verdicts::{self, warn_of};
use super::{Answer, Output};
use crate::modes::Modes;
use crate::output::{Paint, Table};
use crate::packet::Asked;
use crate::view::trace::to_json;

#[derive(Debug, Args)]
pub struct Trace {
    #[command(flatten)]
    asked: Asked,
    /// How to print it
    #[arg(long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    input: Look,
}

impl Trace {
    pub fn run(self, modes: Modes) -> anyhow::Result<Answer> {
        let (settings, mut cluster) = self.input.look(modes)?;
        warn_of(verdicts::learn(&mut cluster.facts, &settings));
        let (intent, _) = resolve::all(&cluster.facts);
        let find = |name: &_| intent.services.get(name).cloned();
        let mut packet = self.asked.packet(&cluster.facts, &intent.node, find)?;
        let ruleset = settings.ruleset(&intent, &cluster.facts);
        let trace = self.asked.trace(&*ruleset, &mut packet);
        let family = intent.node.family(Family::of(packet.source));
        self.output.print(
            || {
                let who = sender(&packet, family.local_detector.as_ref());
                text(&packet, &who, &trace, Paint::stdout())
            },
            || to_json(&packet, &trace),
        )?;
        Ok(if matches!(trace.verdict, Verdict::Endpoints(_)) { Answer::Yes } else { Answer::No })
    }
}

/// The sender of the packet, as the rules classify it.
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
        (Origin::Interface(_), None) => {
            "from a pod or from outside (unknown: detectLocalMode has no CIDR or interface to recognise pods)"
                .to_owned()
        }
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
        text.push_str("  no rule of Ferroxy matches this packet\n");
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
        Verdict::Pass => {
            text.push_str("not translated: no Service is served at this address and port on this node\n")
        }
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
