//! The Ruleset of an accelerated dataplane: the packet rules, and the maps above them.

use std::fmt;
use std::net::IpAddr;

use ferroxy_core::{Diagnostic, Origin, Packet, Protocol, ServiceIntent};
use ferroxy_dataplane::{Ruleset, Step, Trace};
use serde_json::{Value, json};

use crate::entry::{Clients, FrontendKey};
use crate::render::entries;
use crate::state::{Entry, State};
use crate::terms::Terms;

#[derive(Debug)]
pub struct AcceleratedRuleset {
    pub packets: Box<dyn Ruleset>,
    pub state: State,
    pub terms: Terms,
}

impl fmt::Display for AcceleratedRuleset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.packets, self.state)
    }
}

impl Ruleset for AcceleratedRuleset {
    /// The verdict is that of the packet rules: sockets reach the same endpoints. An added step says where sockets connect directly.
    fn trace(&self, packet: &Packet) -> Trace {
        let mut trace = self.packets.trace(packet);
        let (clients, who) = match packet.origin {
            Origin::Host => (Clients::HOST, "an unbound socket of the host"),
            Origin::Interface(_) => (Clients::PODS, "an unbound socket of a pod on this node"),
        };
        let key = FrontendKey::new(packet.destination, packet.port);
        let frontend = self.state.frontends.get(&key).filter(|it| it.clients().contains(clients));
        if let Some(frontend) = frontend.filter(|_| packet.protocol == Protocol::Tcp) {
            let step = Step {
                place: "sockets".to_owned(),
                rule: format!("{} tcp for {}", key.address(), frontend.clients().words()),
                effect: format!(
                    "{who} connects to one of {} endpoints directly, without NAT",
                    frontend.count()
                ),
                is_sticky: false,
            };
            trace.steps.insert(0, step);
        }
        trace
    }

    fn to_json(&self) -> Value {
        let mut all = self.packets.to_json();
        let frontends = self.state.frontends.iter().map(|(key, value)| {
            json!({
                "frontend": key.address().to_string(),
                "clients": value.clients().words(),
                "endpoints": self.state.endpoints_of(value).map(|it| it.to_string()).collect::<Vec<_>>(),
            })
        });
        all["sockets"] = frontends.collect();
        all
    }

    fn makes_local(&self, address: IpAddr) -> bool {
        self.packets.makes_local(address)
    }

    fn traits_of(
        &self,
        service: &ServiceIntent,
        shortcomings: Option<&[Diagnostic]>,
    ) -> Vec<(&'static str, String)> {
        let mut traits = self.packets.traits_of(service, shortcomings);
        let mut translated: Vec<String> = Vec::new();
        entries(service, &self.terms, &mut |entry| {
            if let Entry::Frontend(key, value) = entry {
                translated.push(format!("{} for {}", key.address(), value.clients().words()));
            }
        });
        let words =
            if translated.is_empty() { "packet rules only".to_owned() } else { translated.join(", ") };
        traits.push(("sockets", words));
        traits
    }
}
