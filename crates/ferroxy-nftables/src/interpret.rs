//! Sends a packet through a State, as the kernel would: expression by expression, register by register.
//!
//! It reads the same expressions that go to the kernel, so what it finds is what the rules say and not what they
//! were meant to say. `trace`, and half of the tests, are made of it.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use ferroxy_core::{Family, Origin, Packet, Verdict};
use ferroxy_netlink::nftables as nl;
use nl::{Expr, HookPoint};

use crate::element::{Key, SetId, Value, address_from};
use crate::rule::Rule;
use crate::state::{Chain, State, Table};

/// Where a packet's path led.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    pub verdict: Verdict,
    /// The rules that did something, in order, for the first of the possible endpoints.
    pub steps: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub chain: String,
    pub rule: String,
    /// What came of it: `goto pick-2`, `to 10.244.1.5:80`.
    pub effect: String,
}

/// What happens to the first packet of a connection.
pub fn interpret(state: &State, packet: &Packet) -> Verdict {
    trace(state, packet).verdict
}

/// The same, with the way there.
pub fn trace(state: &State, packet: &Packet) -> Trace {
    let family = Family::of(packet.destination);
    let (Some(table), true) = (state.tables.get(&family), Family::of(packet.source) == family) else {
        return Trace { verdict: Verdict::Pass, steps: Vec::new() };
    };
    let mut first = Run::new(table, packet, 0).through();
    without_idle_jumps(&mut first.steps);
    let mut endpoints = BTreeMap::new();
    // Every number the random pick could give: each is a run of its own.
    for choice in 0..first.choices {
        let run = if choice == 0 { first.clone() } else { Run::new(table, packet, choice).through() };
        match (run.end, run.translated) {
            (Some(End::Drop), _) => return Trace { verdict: Verdict::Drop, steps: first.steps },
            (Some(End::Reject), _) => return Trace { verdict: Verdict::Reject, steps: first.steps },
            (_, Some(to)) => {
                endpoints.insert(to, run.masqueraded);
            }
            _ => {}
        }
    }
    let verdict = if endpoints.is_empty() { Verdict::Pass } else { Verdict::Endpoints(endpoints) };
    Trace { verdict, steps: first.steps }
}

/// A jump into a chain where nothing happened tells a reader nothing.
fn without_idle_jumps(steps: &mut Vec<Step>) {
    for index in (0..steps.len()).rev() {
        let next = steps.get(index + 1).map(|step| step.chain.as_str());
        let target = steps[index].effect.strip_prefix("jump ");
        if target.is_some_and(|target| next != Some(target)) {
            steps.remove(index);
        }
    }
}

/// How a packet's life ended before it left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Drop,
    Reject,
}

/// What a chain or rule says about going on.
enum Flow {
    /// On to the next rule; at the end of a chain, back to where it was called.
    Next,
    /// This hook is done with the packet, which lives on.
    Accept,
    End(End),
}

#[derive(Clone)]
struct Run<'a> {
    table: &'a Table,
    packet: &'a Packet,
    /// Which number the random pick gives in this run, and how many it could have given.
    choice: u32,
    choices: u32,
    /// The packet as it is now.
    destination: IpAddr,
    port: u16,
    mark: u32,
    priority: u32,
    translated: Option<SocketAddr>,
    masqueraded: bool,
    end: Option<End>,
    registers: [u8; 64],
    steps: Vec<Step>,
}

impl<'a> Run<'a> {
    fn new(table: &'a Table, packet: &'a Packet, choice: u32) -> Run<'a> {
        Run {
            table,
            packet,
            choice,
            choices: 1,
            destination: packet.destination,
            port: packet.port,
            mark: 0,
            priority: 0,
            translated: None,
            masqueraded: false,
            end: None,
            registers: [0; 64],
            steps: Vec::new(),
        }
    }

    fn through(mut self) -> Run<'a> {
        match self.packet.origin {
            Origin::Host => {
                self.hook(HookPoint::Output);
                self.hook(HookPoint::Postrouting);
            }
            Origin::Interface(_) => self.hook(HookPoint::Prerouting),
        }
        let stays_here = self.packet.to_this_host && self.translated.is_none();
        if stays_here {
            self.hook(HookPoint::Input);
        } else if self.packet.origin != Origin::Host {
            self.hook(HookPoint::Forward);
            self.hook(HookPoint::Postrouting);
        }
        self
    }

    fn hook(&mut self, point: HookPoint) {
        let table = self.table;
        let mut chains: Vec<(&String, &Chain, i32)> = table
            .chains
            .iter()
            .filter_map(|(name, chain)| {
                chain.hook.filter(|hook| hook.point == point).map(|hook| (name, chain, hook.priority))
            })
            .collect();
        chains.sort_by_key(|(_, _, priority)| *priority);
        for (name, chain, _) in chains {
            if self.end.is_some() {
                return;
            }
            if let Flow::End(end) = self.chain(name, chain, 0) {
                self.end = Some(end);
            }
        }
    }

    fn chain(&mut self, name: &str, chain: &'a Chain, depth: u8) -> Flow {
        // The kernel refuses loops when a rule is added; this is for States that never were in a kernel.
        const DEEPEST: u8 = 16;
        if depth > DEEPEST {
            return Flow::End(End::Drop);
        }
        for rule in &chain.rules {
            let Some(verdict) = self.rule(name, rule) else { continue };
            match verdict {
                nl::Verdict::Accept => return Flow::Accept,
                nl::Verdict::Drop => return Flow::End(self.end.unwrap_or(End::Drop)),
                nl::Verdict::Return => return Flow::Next,
                nl::Verdict::Goto(next) => {
                    return match self.table.chains.get(&next) {
                        Some(chain) => self.chain(&next, chain, depth + 1),
                        None => Flow::Next,
                    };
                }
                nl::Verdict::Jump(next) => {
                    let Some(chain) = self.table.chains.get(&next) else { continue };
                    match self.chain(&next, chain, depth + 1) {
                        Flow::Next => {}
                        other => return other,
                    }
                }
            }
        }
        Flow::Next
    }

    /// The verdict of a rule, or `None` if it does not match or only did something on the way.
    fn rule(&mut self, chain: &str, rule: &Rule) -> Option<nl::Verdict> {
        for expr in &rule.kernel.exprs {
            match self.expr(expr) {
                Effect::Break => return None,
                Effect::On => {}
                Effect::Did(effect) => self.note(chain, rule, effect),
                Effect::Verdict(verdict) => {
                    self.note(chain, rule, describe(&verdict, self.end));
                    return Some(verdict);
                }
                Effect::Translated => {
                    let to = self.translated.map(|to| format!("to {to}")).unwrap_or_default();
                    self.note(chain, rule, to);
                    return Some(nl::Verdict::Accept);
                }
            }
        }
        None
    }

    fn note(&mut self, chain: &str, rule: &Rule, effect: String) {
        self.steps.push(Step { chain: chain.into(), rule: rule.text.clone(), effect });
    }

    fn expr(&mut self, expr: &Expr) -> Effect {
        match expr {
            Expr::Payload { base, offset, len, dreg } => self.load_payload(*base, *offset, *len, *dreg),
            Expr::Meta { key, dreg } => self.load_meta(*key, *dreg),
            Expr::MetaSet { key: nl::MetaKey::Mark, sreg } => {
                self.mark = u32::from_ne_bytes(self.array(*sreg));
                Effect::Did(format!("mark is 0x{:x}", self.mark))
            }
            Expr::MetaSet { key: nl::MetaKey::Priority, sreg } => {
                self.priority = u32::from_ne_bytes(self.array(*sreg));
                Effect::On
            }
            Expr::MetaSet { .. } | Expr::Counter => Effect::On,
            Expr::Ct { key, direction, dreg } => self.load_ct(*key, *direction, *dreg),
            Expr::Cmp { sreg, op, data } => {
                let equal = self.slice(*sreg, data.len()) == Some(data);
                if equal == (*op == nl::CmpOp::Eq) { Effect::On } else { Effect::Break }
            }
            Expr::Bitwise { sreg, dreg, mask, xor } => {
                let Some(value) = self.slice(*sreg, mask.len()) else { return Effect::Break };
                let result: Vec<u8> =
                    value.iter().zip(mask).zip(xor).map(|((byte, mask), xor)| byte & mask ^ xor).collect();
                self.store(*dreg, &result)
            }
            Expr::Lookup { set, sreg, dreg, invert } => self.look_up(set, *sreg, *dreg, *invert),
            Expr::Immediate(verdict) => Effect::Verdict(verdict.clone()),
            Expr::ImmediateData { dreg, data } => self.store(*dreg, data),
            Expr::Numgen { dreg, modulus, offset } => {
                self.choices = (*modulus).max(1);
                self.store(*dreg, &(offset + self.choice % self.choices).to_ne_bytes())
            }
            Expr::Fib { dreg, address } => {
                let local = match address {
                    nl::FibAddress::Source => self.packet.origin == Origin::Host,
                    nl::FibAddress::Destination => self.packet.to_this_host && self.translated.is_none(),
                };
                const RTN_UNICAST: u32 = 1;
                const RTN_LOCAL: u32 = 2;
                self.store(*dreg, &if local { RTN_LOCAL } else { RTN_UNICAST }.to_ne_bytes())
            }
            Expr::Dnat { family, address_reg, port_reg } => self.translate(*family, *address_reg, *port_reg),
            Expr::Masquerade { .. } => {
                self.masqueraded = true;
                Effect::Verdict(nl::Verdict::Accept)
            }
            Expr::Reject { .. } => {
                self.end = Some(End::Reject);
                Effect::Verdict(nl::Verdict::Drop)
            }
            // Affinity and traffic are runtime data: no client is known here, none is learnt, nothing is counted.
            Expr::Dynset { .. } => Effect::On,
            Expr::PayloadSet { sreg, len, .. } => {
                if let Some(address) = self.slice(*sreg, *len as usize).and_then(address_from) {
                    self.destination = address;
                }
                Effect::On
            }
            Expr::Unknown(_) => Effect::Break,
        }
    }

    fn load_payload(&mut self, base: nl::Base, offset: u32, len: u32, dreg: u32) -> Effect {
        let (source, destination) = (octets(self.packet.source), octets(self.destination));
        match (base, offset, len) {
            (nl::Base::Network, 12, 4) | (nl::Base::Network, 8, 16) => self.store(dreg, &source),
            (nl::Base::Network, 16, 4) | (nl::Base::Network, 24, 16) => self.store(dreg, &destination),
            (nl::Base::Transport, 2, 2) => self.store(dreg, &self.port.to_be_bytes()),
            _ => Effect::Break,
        }
    }

    fn load_meta(&mut self, key: nl::MetaKey, dreg: u32) -> Effect {
        match key {
            nl::MetaKey::L4proto => self.store(dreg, &[self.packet.protocol.number()]),
            nl::MetaKey::Mark => self.store(dreg, &self.mark.to_ne_bytes()),
            nl::MetaKey::Priority => self.store(dreg, &self.priority.to_ne_bytes()),
            nl::MetaKey::Iifname => {
                // The kernel gives the empty name where there is no incoming interface.
                let mut name = match &self.packet.origin {
                    Origin::Host => Vec::new(),
                    Origin::Interface(name) => name.as_bytes().to_vec(),
                };
                name.resize(16, 0);
                self.store(dreg, &name)
            }
        }
    }

    fn load_ct(&mut self, key: nl::CtKey, direction: Option<nl::CtDirection>, dreg: u32) -> Effect {
        const NEW: u32 = 8;
        const DST_NAT: u32 = 0x20;
        if direction == Some(nl::CtDirection::Reply) {
            return self.load_reply(key, dreg);
        }
        match key {
            // The first packet of a connection is the client's.
            nl::CtKey::Direction => self.store(dreg, &[0]),
            // Nothing that is interpreted has a source port.
            nl::CtKey::ProtoSrc => Effect::Break,
            nl::CtKey::State => self.store(dreg, &NEW.to_ne_bytes()),
            nl::CtKey::Status => {
                let status = if self.translated.is_some() { DST_NAT } else { 0 };
                self.store(dreg, &status.to_ne_bytes())
            }
            nl::CtKey::SrcIp | nl::CtKey::SrcIp6 => self.store(dreg, &octets(self.packet.source)),
            nl::CtKey::DstIp | nl::CtKey::DstIp6 => self.store(dreg, &octets(self.packet.destination)),
            nl::CtKey::ProtoDst => self.store(dreg, &self.packet.port.to_be_bytes()),
        }
    }

    /// What an answer will have: the endpoint is its source. Its destination is known after masquerading only.
    fn load_reply(&mut self, key: nl::CtKey, dreg: u32) -> Effect {
        match key {
            nl::CtKey::SrcIp | nl::CtKey::SrcIp6 => self.store(dreg, &octets(self.destination)),
            nl::CtKey::ProtoSrc => self.store(dreg, &self.port.to_be_bytes()),
            _ => Effect::Break,
        }
    }

    fn look_up(&mut self, name: &str, sreg: u32, dreg: Option<u32>, invert: bool) -> Effect {
        let value = self.find(name, sreg);
        match (dreg, value) {
            (None, value) if value.is_some() != invert => Effect::On,
            (None, _) | (_, None) => Effect::Break,
            (Some(0), Some(Value::Goto(chain))) => Effect::Verdict(nl::Verdict::Goto(chain.to_string())),
            (Some(dreg), Some(Value::Treatment(treatment))) => {
                self.store(dreg, &treatment.code().to_ne_bytes())
            }
            (Some(dreg), Some(Value::Endpoint(address, port))) => {
                let bytes = Key::EMPTY.address(address).port(port);
                self.store(dreg, bytes.as_bytes())
            }
            _ => Effect::Break,
        }
    }

    fn find(&self, name: &str, sreg: u32) -> Option<Value> {
        let set = SetId::parse(name)?;
        let width = self.table.sets.get(name)?.key.iter().map(|datatype| width(*datatype)).sum();
        let bytes = self.slice(sreg, width)?;
        if set == SetId::AllowedSources {
            return self.find_range(set, bytes);
        }
        self.table.get(set, &Key::from_bytes(bytes)?).map(|entry| entry.value)
    }

    /// The element whose range of last addresses holds this key's.
    fn find_range(&self, set: SetId, bytes: &[u8]) -> Option<Value> {
        let address_width = octets(self.packet.source).len();
        let (frontend, source) = bytes.split_at(bytes.len() - address_width);
        self.table.elements.get(&set)?.iter().find_map(|(key, entry)| {
            let (its_frontend, first) = key.as_bytes().split_at(key.as_bytes().len() - address_width);
            let Value::UpTo(last) = entry.value else { return None };
            let inside = its_frontend == frontend && first <= source && source <= octets(last).as_slice();
            inside.then_some(entry.value)
        })
    }

    fn translate(&mut self, family: nl::Family, address_reg: u32, port_reg: u32) -> Effect {
        let width = match family {
            nl::Family::Ip => 4,
            nl::Family::Ip6 => 16,
        };
        let Some(address) = self.slice(address_reg, width).and_then(address_from) else {
            return Effect::Break;
        };
        let port = u16::from_be_bytes(self.array(port_reg));
        (self.destination, self.port) = (address, port);
        self.translated = Some(SocketAddr::new(address, port));
        Effect::Translated
    }

    fn store(&mut self, dreg: u32, bytes: &[u8]) -> Effect {
        let start = register_offset(dreg);
        let padded = bytes.len().next_multiple_of(4);
        match self.registers.get_mut(start..start + padded) {
            Some(place) => {
                place.fill(0);
                place[..bytes.len()].copy_from_slice(bytes);
                Effect::On
            }
            None => Effect::Break,
        }
    }

    fn slice(&self, sreg: u32, len: usize) -> Option<&[u8]> {
        let start = register_offset(sreg);
        self.registers.get(start..start + len)
    }

    fn array<const N: usize>(&self, sreg: u32) -> [u8; N] {
        self.slice(sreg, N).and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; N])
    }
}

/// What an expression did.
enum Effect {
    /// The rule does not match.
    Break,
    On,
    /// Something a person wants to see.
    Did(String),
    Translated,
    Verdict(nl::Verdict),
}

fn describe(verdict: &nl::Verdict, end: Option<End>) -> String {
    match verdict {
        nl::Verdict::Drop if end == Some(End::Reject) => "rejected".into(),
        nl::Verdict::Drop => "dropped".into(),
        nl::Verdict::Accept => "masqueraded".into(),
        nl::Verdict::Return => "return".into(),
        nl::Verdict::Jump(chain) => format!("jump {chain}"),
        nl::Verdict::Goto(chain) => format!("goto {chain}"),
    }
}

/// Registers 1 to 4 are sixteen bytes each; 8 and up name the same bytes in fours.
fn register_offset(register: u32) -> usize {
    (if register < 8 { register.saturating_sub(1) * 16 } else { (register - 8) * 4 }) as usize
}

fn width(datatype: nl::Datatype) -> usize {
    if datatype == nl::Datatype::Ipv6Addr { 16 } else { 4 }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}
