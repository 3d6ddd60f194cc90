//! Sends a packet through a State as the kernel does: hook by hook, rule by rule, with the virtual servers between.
//!
//! It reads the text of the rules and the members of the sets, so it finds rules that do not do what was intended. It
//! knows the matches and targets of our rules; a rule with any other match or target has no effect.

use std::net::{IpAddr, SocketAddr};

use ferroxy_core::{Family, Origin, Packet, Verdict};
use ferroxy_dataplane::{Step, Trace};
use ferroxy_iptables::TableName;
use ferroxy_iptables::matching::{Target, came_in_on, mark_and_mask, target_if};
use ferroxy_iptables::state::{Rules, Table};
use ipnet::IpNet;

use crate::set::{Kind, Member, SetName};
use crate::state::{Address, State};

/// What happens to the first packet of a connection.
pub fn interpret(state: &State, packet: &Packet) -> Verdict {
    trace(state, packet).verdict
}

/// Like [`interpret`], with the rules and virtual servers that had an effect, for the first of the possible endpoints.
pub fn trace(state: &State, packet: &Packet) -> Trace {
    if Family::of(packet.source) != Family::of(packet.destination) {
        return Trace { verdict: Verdict::Pass, steps: Vec::new() };
    }
    let rules = state.all_rules();
    let start = Address { ip: packet.destination, protocol: packet.protocol, port: packet.port };
    let first = Run::new(state, &rules, packet).through(0);
    let steps = first.steps;
    if let Some(end) = first.end {
        return Trace { verdict: end, steps };
    }
    let Some(server) = state.servers.get(&start).filter(|_| first.to.is_some()) else {
        return Trace { verdict: Verdict::Pass, steps };
    };
    // One run for each endpoint that the scheduler can pick.
    let count = server.endpoints.values().filter(|weight| **weight > 0).count();
    let mut endpoints = std::collections::BTreeMap::new();
    for choice in 0..count {
        let run = Run::new(state, &rules, packet).through(choice);
        match (run.end, run.to) {
            (Some(end), _) => return Trace { verdict: end, steps },
            (None, Some(to)) => drop(endpoints.insert(to, run.masqueraded)),
            (None, None) => {}
        }
    }
    Trace { verdict: Verdict::Endpoints(endpoints), steps }
}

enum Flow {
    Next,
    Return,
    Accept,
    End(Verdict),
}

struct Run<'a> {
    state: &'a State,
    rules: &'a ferroxy_iptables::State,
    packet: &'a Packet,
    family: Family,
    /// The packet as it is now.
    at: Address,
    mark: u32,
    /// The endpoint that the virtual server at the packet's destination picked.
    to: Option<SocketAddr>,
    masqueraded: bool,
    end: Option<Verdict>,
    steps: Vec<Step>,
}

impl<'a> Run<'a> {
    fn new(state: &'a State, rules: &'a ferroxy_iptables::State, packet: &'a Packet) -> Run<'a> {
        Run {
            state,
            rules,
            packet,
            family: Family::of(packet.destination),
            at: Address { ip: packet.destination, protocol: packet.protocol, port: packet.port },
            mark: 0,
            to: None,
            masqueraded: false,
            end: None,
            steps: Vec::new(),
        }
    }

    fn through(mut self, choice: usize) -> Run<'a> {
        use TableName::{Filter, Nat};
        let from_host = self.packet.origin == Origin::Host;
        if from_host {
            self.hook(Nat, "OUTPUT");
            self.balance(choice);
            self.hook(Filter, "OUTPUT");
        } else {
            self.hook(Nat, "PREROUTING");
        }
        if self.to.is_none() && self.is_local() {
            // A packet of the host to itself that no virtual server took passes INPUT after OUTPUT.
            self.hook(Filter, "INPUT");
            if !from_host {
                self.balance(choice);
            }
        } else if !from_host {
            self.hook(Filter, "FORWARD");
        }
        self.hook(Nat, "POSTROUTING");
        self
    }

    fn is_local(&self) -> bool {
        self.packet.to_this_host || self.state.device.as_ref().is_some_and(|own| own.contains(&self.at.ip))
    }

    fn balance(&mut self, choice: usize) {
        if self.end.is_some() {
            return;
        }
        let Some(server) = self.state.servers.get(&self.at) else { return };
        let rule = format!("{} {}", self.at, server.treatment);
        let mut serving = server.endpoints.iter().filter(|(_, weight)| **weight > 0);
        match serving.nth(choice) {
            Some((endpoint, _)) => {
                self.note("virtual server", &rule, format!("to {endpoint}"));
                if let Some(step) = self.steps.last_mut() {
                    step.is_sticky = server.treatment.persistence.is_some();
                }
                self.to = Some(*endpoint);
                self.at = Address { ip: endpoint.ip(), port: endpoint.port(), ..self.at };
            }
            None => {
                // The kernel answers "port unreachable".
                self.note("virtual server", &rule, "rejected: it has no endpoint".into());
                self.end = Some(Verdict::Reject);
            }
        }
    }

    fn hook(&mut self, table: TableName, builtin: &str) {
        let rules: &'a ferroxy_iptables::State = self.rules;
        let Some(table) = rules.table(self.family, table) else { return };
        if self.end.is_none()
            && let Some(jumps) = table.jumps.get(builtin)
            && let Flow::End(end) = self.chain(table, builtin, jumps, 0)
        {
            self.end = Some(end);
        }
    }

    fn chain(&mut self, table: &'a Table, name: &str, rules: &'a Rules, depth: u8) -> Flow {
        // The kernel refuses loops when a rule is added. This limit is for States that were never in a kernel.
        const DEEPEST: u8 = 16;
        if depth > DEEPEST {
            return Flow::End(Verdict::Drop);
        }
        for rule in rules.iter() {
            let Some(target) = target_if(rule, |option, words| self.holds(option, words)) else { continue };
            let flow = match table.chains.get(target.name) {
                Some(rules) => match self.chain(table, target.name, rules, depth + 1) {
                    Flow::Return => Flow::Next,
                    flow => flow,
                },
                None => self.act(name, rule, target),
            };
            if !matches!(flow, Flow::Next) {
                return flow;
            }
        }
        Flow::Next
    }

    /// Whether one condition holds; `None` for an option that our rules do not use.
    fn holds(&self, option: &str, words: &mut dyn Iterator<Item = &str>) -> Option<bool> {
        if option == "--physdev-is-in" {
            // True if the packet came in on a bridge port, as packets of pods do.
            return Some(matches!(&self.packet.origin, Origin::Interface(name) if name.starts_with("cbr")));
        }
        let value = words.next()?;
        Some(match option {
            "-m" | "--comment" => true,
            "-s" => value.parse::<IpNet>().ok()?.contains(&self.packet.source),
            "-i" => came_in_on(self.packet, value),
            "-p" => self.packet.protocol.lowercase() == value,
            "--match-set" => self.is_in(SetName::parse(value)?, words.next()?)?,
            "--src-type" => value == "LOCAL" && self.packet.origin == Origin::Host,
            "--dst-type" => value == "LOCAL" && self.to.is_none() && self.is_local(),
            "--ctstate" => value.split(',').any(|state| state == "NEW"),
            "--mark" => {
                let (mark, mask) = mark_and_mask(value)?;
                self.mark & mask == mark
            }
            // The address of the virtual server that took the packet: the packet's original destination.
            "--vaddr" => self.to.is_some() && value.parse() == Ok(self.packet.destination),
            "--vport" => self.to.is_some() && value.parse() == Ok(self.packet.port),
            "--vproto" => self.to.is_some() && value.parse() == Ok(self.packet.protocol.number()),
            _ => return None,
        })
    }

    fn is_in(&self, name: SetName, flags: &str) -> Option<bool> {
        let mut flags = flags.split(',');
        let mut address = || Some(self.address(flags.next()?));
        let set = self.state.sets.get(&name)?;
        Some(match name.set.kind() {
            Kind::Ip => set.members.contains(&Member::Ip(address()?)),
            Kind::Port => set.members.contains(&Member::Port(self.at.port)),
            Kind::IpPort => set.members.contains(&Member::IpPort(Address { ip: address()?, ..self.at })),
            Kind::IpPortIp => {
                let at = Address { ip: address()?, ..self.at };
                address()?;
                set.members.contains(&Member::IpPortIp(at, address()?))
            }
            Kind::IpPortNet => {
                let at = Address { ip: address()?, ..self.at };
                address()?;
                let source = address()?;
                let holds = |member: &Member| matches!(member, Member::IpPortNet(to, net) if *to == at && net.contains(&source));
                set.members.iter().any(holds)
            }
        })
    }

    fn address(&self, flag: &str) -> IpAddr {
        if flag == "src" { self.packet.source } else { self.at.ip }
    }

    fn act(&mut self, chain: &str, rule: &str, target: Target<'_>) -> Flow {
        let (flow, effect) = match (target.name, target.option, target.value) {
            ("ACCEPT", ..) => (Flow::Accept, "accepted".into()),
            ("DROP", ..) => (Flow::End(Verdict::Drop), "dropped".into()),
            ("REJECT", ..) => (Flow::End(Verdict::Reject), "rejected".into()),
            ("RETURN", ..) => (Flow::Return, "return".into()),
            ("MARK", Some("--set-xmark"), Some(value)) => {
                let Some((mark, mask)) = mark_and_mask(value) else { return Flow::Next };
                self.mark = (self.mark & !mask) ^ mark;
                (Flow::Next, format!("mark is {:#x}", self.mark))
            }
            ("MASQUERADE", ..) => {
                self.masqueraded = true;
                (Flow::Accept, "masqueraded".into())
            }
            _ => return Flow::Next,
        };
        self.note(chain, rule, effect);
        flow
    }

    fn note(&mut self, place: &str, rule: &str, effect: String) {
        self.steps.push(Step { place: place.into(), rule: rule.into(), effect, is_sticky: false });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use ferroxy_core::Protocol;

    use super::*;
    use crate::state::{Treatment, VirtualServer, WEIGHT};

    /// The effect of each step with a virtual server with these endpoints, and whether the step is sticky.
    fn steps(persistence: Option<u32>, weights: &[u32]) -> Vec<(String, bool)> {
        let address = Address { ip: [10, 96, 0, 80].into(), protocol: Protocol::Tcp, port: 80 };
        let endpoint = |(number, weight): (usize, &u32)| {
            (SocketAddr::from(([10, 244, 0, 1 + number as u8], 8080)), *weight)
        };
        let server = VirtualServer {
            treatment: Treatment::new(&"rr".into(), persistence),
            endpoints: weights.iter().enumerate().map(endpoint).collect(),
        };
        let state = State {
            servers: BTreeMap::from([(address, server)]),
            device: Some(BTreeSet::from([address.ip])),
            ..State::default()
        };
        let packet = Packet {
            source: [192, 0, 2, 1].into(),
            origin: Origin::Interface("eth0".into()),
            destination: address.ip,
            port: address.port,
            protocol: address.protocol,
            to_this_host: false,
        };
        trace(&state, &packet).steps.into_iter().map(|step| (step.effect, step.is_sticky)).collect()
    }

    #[test]
    fn a_step_is_sticky_where_a_persistent_server_picks_an_endpoint() {
        let picked = || "to 10.244.0.2:8080".to_owned();
        assert_eq!(steps(Some(10_800), &[0, WEIGHT]), [(picked(), true)]);
        assert_eq!(steps(None, &[0, WEIGHT]), [(picked(), false)]);
        // No endpoint is picked: there is nothing to remember.
        let rejected = "rejected: it has no endpoint".to_owned();
        assert_eq!(steps(Some(10_800), &[0]), [(rejected, false)]);
    }
}
