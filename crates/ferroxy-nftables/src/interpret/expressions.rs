//! Evaluates the expressions of a rule with registers, as the kernel does.

use std::net::{IpAddr, SocketAddr};

use ferroxy_core::Origin;
use ferroxy_netlink::nftables as nl;
use nl::Expr;

use super::{End, Run};
use crate::element::{Key, SetId, Value, address_from};

impl Run<'_> {
    pub(super) fn expr(&mut self, expr: &Expr) -> Effect {
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
            // Affinity and traffic are runtime data: no client is known or learnt here, and nothing is counted.
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
                // The kernel gives the empty name if there is no incoming interface.
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
            // The first packet of a connection comes from the client.
            nl::CtKey::Direction => self.store(dreg, &[0]),
            // A Packet has no source port.
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

    /// Fields of the reply. Its source is the endpoint; its destination is known only after masquerading.
    fn load_reply(&mut self, key: nl::CtKey, dreg: u32) -> Effect {
        match key {
            nl::CtKey::SrcIp | nl::CtKey::SrcIp6 => self.store(dreg, &octets(self.destination)),
            nl::CtKey::ProtoSrc => self.store(dreg, &self.port.to_be_bytes()),
            _ => Effect::Break,
        }
    }

    fn look_up(&mut self, name: &str, sreg: u32, dreg: Option<u32>, invert: bool) -> Effect {
        let set = SetId::parse(name);
        if let (Some(SetId::Affinity), Some(step)) = (set, self.steps.last_mut()) {
            // No client is known here, so the lookup misses. The rule that led here is where affinity begins.
            step.is_sticky = true;
        }
        let value = set.and_then(|set| self.find(set, sreg));
        match (dreg, value) {
            (None, value) if value.is_some() != invert => Effect::On,
            (None, _) | (_, None) => Effect::Break,
            (Some(0), Some(Value::Goto(chain))) => Effect::Verdict(nl::Verdict::Goto(chain.to_string())),
            (Some(dreg), Some(Value::Treatment(treatment))) => {
                self.store(dreg, &treatment.code().to_ne_bytes())
            }
            (Some(dreg), Some(Value::ServicePort(port))) => self.store(dreg, &port.code().to_ne_bytes()),
            (Some(dreg), Some(Value::Endpoint(address, port))) => {
                let bytes = Key::EMPTY.address(address).port(port);
                self.store(dreg, bytes.as_bytes())
            }
            _ => Effect::Break,
        }
    }

    fn find(&self, set: SetId, sreg: u32) -> Option<Value> {
        let width = self.table.sets.get(set.name())?.key.iter().map(|datatype| width(*datatype)).sum();
        let bytes = self.slice(sreg, width)?;
        if set == SetId::AllowedSources {
            return self.find_range(set, bytes);
        }
        self.table.get(set, &Key::from_bytes(bytes)?).map(|entry| entry.value)
    }

    /// The element with the same frontend whose range contains the source.
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

/// The result of an expression.
pub(super) enum Effect {
    /// The rule does not match.
    Break,
    On,
    /// Something worth a step in the trace.
    Did(String),
    Translated,
    Verdict(nl::Verdict),
}

/// Registers 1 to 4 have sixteen bytes each; from 8 on, the same bytes are numbered in units of four.
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
