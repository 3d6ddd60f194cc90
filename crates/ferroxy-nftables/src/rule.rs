//! How one rule is spelled: each step is written at once as the kernel's expressions and as `nft` text.
//!
//! Only the statements the program needs. What the rules are for is in `program.rs`.

use ferroxy_core::Family;
use ferroxy_core::Protocol;
use ferroxy_netlink::nftables as nl;
use ipnet::IpNet;
use nl::{CmpOp, Expr, Verdict};

use crate::chain::Pool;
use crate::element::{LOCAL_SLOTS, Scope, SetId};

/// A rule of the program: for the kernel, and for people.
#[derive(Debug, Clone)]
pub struct Rule {
    pub kernel: nl::Rule,
    /// As `nft list` prints it, comment included. Empty when it was read from the kernel and is not ours.
    pub text: String,
}

/// Two rules are the same if the kernel would do the same; the text only describes it.
impl PartialEq for Rule {
    fn eq(&self, other: &Rule) -> bool {
        self.kernel == other.kernel
    }
}

impl Eq for Rule {}

/// Something of a packet that can be matched, or be part of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    Saddr,
    Daddr,
    L4proto,
    Dport,
    /// As the client wrote it, before any translation.
    OriginalSaddr,
    OriginalDaddr,
    OriginalDport,
    /// Whoever answers: the endpoint.
    ReplySaddr,
    ReplySport,
}

/// What finds a frontend in a scope's sets.
pub fn frontend_fields(scope: Scope) -> &'static [Field] {
    match scope {
        Scope::Address => &[Field::Daddr, Field::L4proto, Field::Dport],
        Scope::NodePort => &[Field::L4proto, Field::Dport],
    }
}

/// The same frontend, found again when an endpoint stands in the packet's destination address.
pub fn recalled_frontend_fields(scope: Scope) -> &'static [Field] {
    match scope {
        Scope::Address => &[Field::OriginalDaddr, Field::L4proto, Field::Dport],
        Scope::NodePort => &[Field::L4proto, Field::Dport],
    }
}

/// The same frontend, found again after address and port have been translated.
pub fn original_frontend_fields(scope: Scope) -> &'static [Field] {
    match scope {
        Scope::Address => &[Field::OriginalDaddr, Field::L4proto, Field::OriginalDport],
        Scope::NodePort => &[Field::L4proto, Field::OriginalDport],
    }
}

/// A frontend and the endpoint that a connection to it was given. The same for every packet of the connection.
pub const FLOW_FIELDS: [Field; 5] =
    [Field::L4proto, Field::OriginalDaddr, Field::OriginalDport, Field::ReplySaddr, Field::ReplySport];

/// Of a connection's status: its destination is another than the client asked for.
const IPS_DST_NAT: u32 = 0x20;

/// The register whose content is what to do next.
const VERDICT: u32 = 0;

/// Writes one rule, step by step.
#[derive(Debug)]
pub struct RuleWriter {
    family: Family,
    exprs: Vec<Expr>,
    words: Vec<String>,
}

impl RuleWriter {
    pub fn new(family: Family) -> RuleWriter {
        RuleWriter { family, exprs: Vec::new(), words: Vec::new() }
    }

    pub fn done(self) -> Rule {
        Rule { kernel: nl::Rule { exprs: self.exprs, comment: None }, text: self.words.join(" ") }
    }

    pub fn done_with(mut self, comment: &str) -> Rule {
        self.words.push(format!("comment \"{comment}\""));
        let mut rule = self.done();
        rule.kernel.comment = Some(comment.into());
        rule
    }

    // === matches ===

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
                // A whole name is compared with its padding, so that "eth1" is not "eth10".
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

    /// A connection is confirmed when its first packet has come through; no other packet of it meets this.
    /// (`ct state new` is also true of every UDP packet until somebody answers, and of repeated SYNs.)
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

    /// Compares these bits of what was loaded with zero.
    fn compare_bits(&mut self, bits: u32, op: CmpOp) {
        self.exprs.push(Expr::Bitwise {
            sreg: register(0),
            dreg: register(0),
            mask: bits.to_ne_bytes().to_vec(),
            xor: vec![0; 4],
        });
        self.exprs.push(Expr::Cmp { sreg: register(0), op, data: vec![0; 4] });
    }

    // === statements ===

    pub fn set_mark(self, mark: u32) -> RuleWriter {
        self.change_mark(!mark, mark, format!("meta mark set meta mark | 0x{mark:08x}"))
    }

    pub fn flip_mark(self, mark: u32) -> RuleWriter {
        self.change_mark(u32::MAX, mark, format!("meta mark set meta mark ^ 0x{mark:08x}"))
    }

    fn change_mark(mut self, mask: u32, xor: u32, words: String) -> RuleWriter {
        self.exprs.push(Expr::Meta { key: nl::MetaKey::Mark, dreg: register(0) });
        self.exprs.push(Expr::Bitwise {
            sreg: register(0),
            dreg: register(0),
            mask: mask.to_ne_bytes().to_vec(),
            xor: xor.to_ne_bytes().to_vec(),
        });
        self.exprs.push(Expr::MetaSet { key: nl::MetaKey::Mark, sreg: register(0) });
        self.say(words)
    }

    pub fn jump(mut self, chain: &str) -> RuleWriter {
        self.exprs.push(Expr::Immediate(Verdict::Jump(chain.into())));
        self.say(format!("jump {chain}"))
    }

    pub fn goto(mut self, chain: &str) -> RuleWriter {
        self.exprs.push(Expr::Immediate(Verdict::Goto(chain.into())));
        self.say(format!("goto {chain}"))
    }

    pub fn drop(mut self) -> RuleWriter {
        self.exprs.push(Expr::Immediate(Verdict::Drop));
        self.say("drop".into())
    }

    /// ICMP port unreachable, for every protocol, as the original does.
    pub fn reject(mut self) -> RuleWriter {
        const ICMP_UNREACHABLE: u32 = 0;
        let code = match self.family {
            Family::V4 => 3, // ICMP_PORT_UNREACH
            Family::V6 => 4, // ICMPV6_PORT_UNREACH
        };
        self.exprs.push(Expr::Reject { kind: ICMP_UNREACHABLE, code });
        self.say("reject".into())
    }

    /// Goes where the element says, or on to the next rule if there is none.
    pub fn dispatch(mut self, fields: &[Field], map: SetId) -> RuleWriter {
        self.load(fields, 0);
        self.look_up(map, Some(VERDICT), false);
        let words = format!("{} vmap @{}", self.spell(fields), map.name());
        self.say(words)
    }

    /// Looks up which treatment these fields get, and goes to its chain.
    pub fn treat(mut self, fields: &[Field], map: SetId, treatments: SetId) -> RuleWriter {
        self.load(fields, 0);
        self.look_up(map, Some(register(0)), false);
        self.exprs.push(Expr::MetaSet { key: nl::MetaKey::Priority, sreg: register(0) });
        self.exprs.push(Expr::Meta { key: nl::MetaKey::Priority, dreg: register(0) });
        self.look_up(treatments, Some(VERDICT), false);
        let key = self.spell(fields);
        self.say(format!(
            "meta priority set {key} map @{} meta priority vmap @{}",
            map.name(),
            treatments.name()
        ))
    }

    /// Takes the treatment's number out of the packet.
    pub fn clear_priority(mut self) -> RuleWriter {
        self.exprs.push(Expr::ImmediateData { dreg: register(0), data: vec![0; 4] });
        self.exprs.push(Expr::MetaSet { key: nl::MetaKey::Priority, sreg: register(0) });
        self.say("meta priority set none".into())
    }

    /// Translates the destination to what `map` holds for these fields.
    pub fn translate_to(mut self, fields: &[Field], map: SetId) -> RuleWriter {
        self.load(fields, 0);
        let key = self.spell(fields);
        self.translate(map, key)
    }

    /// Translates the destination to the endpoint in a random slot of `count`.
    pub fn pick(mut self, count: u16, pool: Pool, scope: Scope) -> RuleWriter {
        let (offset, shift) = match pool {
            Pool::Main => (0, String::new()),
            Pool::Local => (LOCAL_SLOTS, format!(" offset {LOCAL_SLOTS}")),
        };
        let fields = frontend_fields(scope);
        self.exprs.push(Expr::Numgen { dreg: register(0), modulus: count.into(), offset });
        self.load(fields, 1);
        let key = format!("numgen random mod {count}{shift} . {}", self.spell(fields));
        self.translate(SetId::Endpoints(scope), key)
    }

    /// Translates the destination to the address that stands in the packet, and this port.
    pub fn translate_to_port(mut self, port: u16) -> RuleWriter {
        // nft 1.0.6 takes whole registers here, the address being one: so the port is in the next.
        const PORT_REGISTER: u32 = 2;
        self.load(&[Field::Daddr], 0);
        self.exprs.push(Expr::ImmediateData { dreg: PORT_REGISTER, data: port.to_be_bytes().to_vec() });
        self.exprs.push(Expr::Dnat {
            family: kernel_family(self.family),
            address_reg: register(0),
            port_reg: PORT_REGISTER,
        });
        let words = format!("dnat to {}:{port}", self.spell(&[Field::Daddr]));
        self.say(words)
    }

    fn translate(mut self, map: SetId, key: String) -> RuleWriter {
        self.look_up(map, Some(register(0)), false);
        let family = kernel_family(self.family);
        let port_reg = register(address_units(self.family));
        self.exprs.push(Expr::Dnat { family, address_reg: register(0), port_reg });
        let word = self.ip();
        self.say(format!("dnat {word} to {key} map @{}", map.name()))
    }

    pub fn masquerade(mut self) -> RuleWriter {
        self.exprs.push(Expr::Masquerade { fully_random: true });
        self.say("masquerade fully-random".into())
    }

    /// Writes what `map` holds for these fields over the packet's destination address.
    pub fn put_destination_from(mut self, fields: &[Field], map: SetId) -> RuleWriter {
        self.load(fields, 0);
        self.look_up(map, Some(register(0)), false);
        self.write_destination();
        let (field, key) = (self.spell(&[Field::Daddr]), self.spell(fields));
        self.say(format!("{field} set {key} map @{}", map.name()))
    }

    /// Writes the client's own destination address back into the packet.
    pub fn restore_destination(mut self) -> RuleWriter {
        self.load(&[Field::OriginalDaddr], 0);
        self.write_destination();
        let (field, original) = (self.spell(&[Field::Daddr]), self.spell(&[Field::OriginalDaddr]));
        self.say(format!("{field} set {original}"))
    }

    fn write_destination(&mut self) {
        let (offset, len) = address_place(self.family, Field::Daddr);
        // IPv4 has a header checksum at byte 10 to mend (type 1: the internet checksum); both families have the
        // pseudo-header sum of TCP and UDP (flag 1).
        let (csum_type, csum_offset) = match self.family {
            Family::V4 => (1, 10),
            Family::V6 => (0, 0),
        };
        self.exprs.push(Expr::PayloadSet {
            base: nl::Base::Network,
            offset,
            len,
            sreg: register(0),
            csum_type,
            csum_offset,
            csum_flags: 1,
        });
    }

    /// Remembers the packet's destination address under these fields; an entry that exists gets new time.
    pub fn remember(self, fields: &[Field], map: SetId, seconds: u32) -> RuleWriter {
        let key = self.spell(fields);
        let words = format!(
            "update @{} {{ {key} timeout {} : {} }}",
            map.name(),
            nft_duration(seconds),
            self.spell(&[Field::Daddr])
        );
        self.dynset(fields, map, nl::DynsetOp::Update, Some(u64::from(seconds) * 1000), words)
    }

    pub fn forget(self, fields: &[Field], map: SetId) -> RuleWriter {
        let words =
            format!("delete @{} {{ {} : {} }}", map.name(), self.spell(fields), self.spell(&[Field::Daddr]));
        self.dynset(fields, map, nl::DynsetOp::Delete, None, words)
    }

    fn dynset(
        mut self,
        fields: &[Field],
        map: SetId,
        op: nl::DynsetOp,
        timeout_ms: Option<u64>,
        words: String,
    ) -> RuleWriter {
        let data_unit = self.load(fields, 0);
        self.load(&[Field::Daddr], data_unit);
        self.exprs.push(Expr::Dynset {
            set: map.name().into(),
            op,
            sreg_key: register(0),
            sreg_data: Some(register(data_unit)),
            timeout_ms,
            counter: false,
        });
        self.say(words)
    }

    /// Counts the packet in the element of these fields, which is made if need be and if there is room.
    pub fn count(mut self, fields: &[Field], set: SetId) -> RuleWriter {
        self.load(fields, 0);
        self.exprs.push(Expr::Dynset {
            set: set.name().into(),
            op: nl::DynsetOp::Update,
            sreg_key: register(0),
            sreg_data: None,
            timeout_ms: None,
            counter: true,
        });
        let words = format!("update @{} {{ {} counter }}", set.name(), self.spell(fields));
        self.say(words)
    }

    // === parts ===

    /// Looks the loaded fields up, from the first register on.
    fn look_up(&mut self, set: SetId, dreg: Option<u32>, invert: bool) {
        self.exprs.push(Expr::Lookup { set: set.name().into(), sreg: register(0), dreg, invert });
    }

    /// Loads the fields one behind the other, from a 4-byte unit on; returns the first free unit.
    fn load(&mut self, fields: &[Field], mut unit: u32) -> u32 {
        for field in fields {
            let dreg = register(unit);
            self.exprs.push(self.load_expr(*field, dreg));
            unit += match field {
                Field::L4proto | Field::Dport | Field::OriginalDport | Field::ReplySport => 1,
                _ => address_units(self.family),
            };
        }
        unit
    }

    fn load_expr(&self, field: Field, dreg: u32) -> Expr {
        let original = |key| Expr::Ct { key, direction: Some(nl::CtDirection::Original), dreg };
        let reply = |key| Expr::Ct { key, direction: Some(nl::CtDirection::Reply), dreg };
        match (field, self.family) {
            (Field::Saddr | Field::Daddr, family) => {
                let (offset, len) = address_place(family, field);
                Expr::Payload { base: nl::Base::Network, offset, len, dreg }
            }
            (Field::L4proto, _) => Expr::Meta { key: nl::MetaKey::L4proto, dreg },
            (Field::Dport, _) => Expr::Payload { base: nl::Base::Transport, offset: 2, len: 2, dreg },
            (Field::OriginalSaddr, Family::V4) => original(nl::CtKey::SrcIp),
            (Field::OriginalSaddr, Family::V6) => original(nl::CtKey::SrcIp6),
            (Field::OriginalDaddr, Family::V4) => original(nl::CtKey::DstIp),
            (Field::OriginalDaddr, Family::V6) => original(nl::CtKey::DstIp6),
            (Field::OriginalDport, _) => original(nl::CtKey::ProtoDst),
            (Field::ReplySaddr, Family::V4) => reply(nl::CtKey::SrcIp),
            (Field::ReplySaddr, Family::V6) => reply(nl::CtKey::SrcIp6),
            (Field::ReplySport, _) => reply(nl::CtKey::ProtoSrc),
        }
    }

    fn spell(&self, fields: &[Field]) -> String {
        let ip = self.ip();
        let word = |field: &Field| match field {
            Field::Saddr => format!("{ip} saddr"),
            Field::Daddr => format!("{ip} daddr"),
            Field::L4proto => "meta l4proto".into(),
            Field::Dport => "th dport".into(),
            Field::OriginalSaddr => format!("ct original {ip} saddr"),
            Field::OriginalDaddr => format!("ct original {ip} daddr"),
            Field::OriginalDport => "ct original proto-dst".into(),
            Field::ReplySaddr => format!("ct reply {ip} saddr"),
            Field::ReplySport => "ct reply proto-src".into(),
        };
        fields.iter().map(word).collect::<Vec<_>>().join(" . ")
    }

    fn ip(&self) -> &'static str {
        family_word(self.family)
    }

    fn say(mut self, words: String) -> RuleWriter {
        self.words.push(words);
        self
    }
}

/// The `nft` word for a family: `ip` or `ip6`.
pub fn family_word(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

pub fn kernel_family(family: Family) -> nl::Family {
    match family {
        Family::V4 => nl::Family::Ip,
        Family::V6 => nl::Family::Ip6,
    }
}

/// Where an address stands in the network header.
fn address_place(family: Family, field: Field) -> (u32, u32) {
    match (family, field) {
        (Family::V4, Field::Saddr) => (12, 4),
        (Family::V4, _) => (16, 4),
        (Family::V6, Field::Saddr) => (8, 16),
        (Family::V6, _) => (24, 16),
    }
}

fn address_units(family: Family) -> u32 {
    match family {
        Family::V4 => 1,
        Family::V6 => 4,
    }
}

/// The kernel's number for the register that starts at a 4-byte unit. It has two names for the units that begin a
/// 16-byte register, and prints the old one (1 to 4); so do we, so that what we read back compares equal.
fn register(unit: u32) -> u32 {
    if unit.is_multiple_of(4) { 1 + unit / 4 } else { 8 + unit }
}

/// Seconds as `nft` writes them: `3h`, `1m30s`, `1d`.
pub fn nft_duration(seconds: u32) -> String {
    let parts =
        [(seconds / 86400, 'd'), (seconds / 3600 % 24, 'h'), (seconds / 60 % 60, 'm'), (seconds % 60, 's')];
    parts.iter().filter(|(n, _)| *n > 0).map(|(n, unit)| format!("{n}{unit}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_are_named_as_the_kernel_prints_them() {
        assert_eq!([0, 1, 3, 4, 5, 8].map(register), [1, 9, 11, 2, 13, 3]);
    }

    #[test]
    fn durations_are_spelled_as_nft_does() {
        assert_eq!([10800, 90, 86400, 1, 3661].map(nft_duration), ["3h", "1m30s", "1d", "1s", "1h1m1s"]);
    }
}
