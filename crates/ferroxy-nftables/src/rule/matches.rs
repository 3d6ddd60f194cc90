//! The matches of rules. A rule continues only while all of them match.

use ferroxy_core::Protocol;
use ferroxy_netlink::nftables as nl;
use ipnet::IpNet;
use nl::{CmpOp, Expr};

use super::{Field, RuleWriter, register};
use crate::element::SetId;

/// The status bit of connections whose destination was translated.
const IPS_DST_NAT: u32 = 0x20;

impl RuleWriter {
    /// `ip daddr . meta l4proto . th dport @set`
    pub fn is_in(self, fields: &[Field], set: SetId) -> RuleWriter {
        self.member(fields, set, false)
    }

    pub fn is_not_in(self, fields: &[Field], set: SetId) -> RuleWriter {
        self.member(fields, set, true)
    }

    fn member(mut self, fields: &[Field], set: SetId, invert: bool) -> RuleWriter {
        self.load(fields, 0);
        self.look_up(set, None, invert);
        let sign = if invert { "!= " } else { "" };
        let words = format!("{} {sign}@{}", self.spell(fields), set.name());
        self.say(words)
    }

    pub fn address_in(self, field: Field, net: IpNet) -> RuleWriter {
        self.address_compare(field, net, CmpOp::Eq, "")
    }

    pub fn address_not_in(self, field: Field, net: IpNet) -> RuleWriter {
        self.address_compare(field, net, CmpOp::Neq, "!= ")
    }

    fn address_compare(mut self, field: Field, net: IpNet, op: CmpOp, sign: &str) -> RuleWriter {
        let (network, mask) = match net.trunc() {
            IpNet::V4(v4) => (v4.network().octets().to_vec(), v4.netmask().octets().to_vec()),
            IpNet::V6(v6) => (v6.network().octets().to_vec(), v6.netmask().octets().to_vec()),
        };
        self.load(&[field], 0);
        let whole = net.prefix_len() == net.max_prefix_len();
        if !whole {
            let xor = vec![0; mask.len()];
            self.exprs.push(Expr::Bitwise { sreg: register(0), dreg: register(0), mask, xor });
        }
        self.exprs.push(Expr::Cmp { sreg: register(0), op, data: network });
        let shown = if whole { net.addr().to_string() } else { net.trunc().to_string() };
        let words = format!("{} {sign}{shown}", self.spell(&[field]));
        self.say(words)
    }

    pub fn interface(self, name: &str) -> RuleWriter {
        self.interface_compare(name, CmpOp::Eq, "")
    }

    pub fn interface_not(self, name: &str) -> RuleWriter {
        self.interface_compare(name, CmpOp::Neq, "!= ")
    }

    /// A name ending in `*` matches by prefix, as in `nft`.
    fn interface_compare(mut self, name: &str, op: CmpOp, sign: &str) -> RuleWriter {
        let data = match name.strip_suffix('*') {
            Some(prefix) => prefix.as_bytes().to_vec(),
            None => {
                // A complete name is compared with its padding, so that "eth1" does not match "eth10".
                let mut padded = name.as_bytes().to_vec();
                padded.resize(16, 0);
                padded
            }
        };
        self.exprs.push(Expr::Meta { key: nl::MetaKey::Iifname, dreg: register(0) });
        self.exprs.push(Expr::Cmp { sreg: register(0), op, data });
        self.say(format!("iifname {sign}\"{name}\""))
    }

    pub fn protocol(mut self, protocol: Protocol) -> RuleWriter {
        self.exprs.push(Expr::Meta { key: nl::MetaKey::L4proto, dreg: register(0) });
        self.exprs.push(Expr::Cmp { sreg: register(0), op: CmpOp::Eq, data: vec![protocol.number()] });
        self.say(format!("meta l4proto {protocol}"))
    }

    /// The source (or destination) is an address of this host.
    pub fn is_local(mut self, field: Field) -> RuleWriter {
        let (address, word) = match field {
            Field::Saddr => (nl::FibAddress::Source, "saddr"),
            _ => (nl::FibAddress::Destination, "daddr"),
        };
        const RTN_LOCAL: u32 = 2;
        self.exprs.push(Expr::Fib { dreg: register(0), address });
        self.exprs.push(Expr::Cmp {
            sreg: register(0),
            op: CmpOp::Eq,
            data: RTN_LOCAL.to_ne_bytes().to_vec(),
        });
        self.say(format!("fib {word} type local"))
    }

    pub fn is_new(self) -> RuleWriter {
        const NF_CT_STATE_NEW: u32 = 8;
        self.ct_bits(nl::CtKey::State, NF_CT_STATE_NEW, CmpOp::Neq, "ct state new")
    }

    pub fn is_translated(self) -> RuleWriter {
        self.ct_bits(nl::CtKey::Status, IPS_DST_NAT, CmpOp::Neq, "ct status dnat")
    }

    pub fn is_untranslated(self) -> RuleWriter {
        self.ct_bits(nl::CtKey::Status, IPS_DST_NAT, CmpOp::Eq, "ct status ! dnat")
    }

    fn ct_bits(mut self, key: nl::CtKey, bits: u32, op: CmpOp, words: &str) -> RuleWriter {
        self.exprs.push(Expr::Ct { key, direction: None, dreg: register(0) });
        self.compare_bits(bits, op);
        self.say(words.into())
    }

    /// Matches the first packet of a connection only: the connection is confirmed when that packet has passed all hooks.
    /// (`ct state new` also matches further UDP packets until the first reply, and repeated SYNs.)
    pub fn begins_connection(self) -> RuleWriter {
        const IPS_CONFIRMED: u32 = 8;
        self.ct_bits(nl::CtKey::Status, IPS_CONFIRMED, CmpOp::Eq, "ct status ! confirmed")
    }

    pub fn goes(mut self, direction: nl::CtDirection) -> RuleWriter {
        let (number, word) = match direction {
            nl::CtDirection::Original => (0, "original"),
            nl::CtDirection::Reply => (1, "reply"),
        };
        self.exprs.push(Expr::Ct { key: nl::CtKey::Direction, direction: None, dreg: register(0) });
        self.exprs.push(Expr::Cmp { sreg: register(0), op: CmpOp::Eq, data: vec![number] });
        self.say(format!("ct direction {word}"))
    }

    pub fn has_mark(mut self, mark: u32) -> RuleWriter {
        self.exprs.push(Expr::Meta { key: nl::MetaKey::Mark, dreg: register(0) });
        self.compare_bits(mark, CmpOp::Neq);
        self.say(format!("meta mark & 0x{mark:08x} != 0x00000000"))
    }

    /// Compares these bits of the loaded value with zero.
    fn compare_bits(&mut self, bits: u32, op: CmpOp) {
        self.exprs.push(Expr::Bitwise {
            sreg: register(0),
            dreg: register(0),
            mask: bits.to_ne_bytes().to_vec(),
            xor: vec![0; 4],
        });
        self.exprs.push(Expr::Cmp { sreg: register(0), op, data: vec![0; 4] });
    }
}
