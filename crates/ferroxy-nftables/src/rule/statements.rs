//! The statements of rules: what happens to a packet.

use ferroxy_core::Family;
use ferroxy_netfilter::tables::kernel_family;
use ferroxy_netlink::nftables as nl;
use nl::{Expr, Verdict};

use super::{
    Field, RuleWriter, VERDICT, address_place, address_units, frontend_fields, nft_duration, register,
};
use crate::chain::Pool;
use crate::element::{LOCAL_SLOTS, Scope, SetId};

impl RuleWriter {
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

    /// Out of a base chain: on to the next hook.
    pub fn leave(mut self) -> RuleWriter {
        self.exprs.push(Expr::Immediate(Verdict::Return));
        self.say("return".into())
    }

    pub fn drop(mut self) -> RuleWriter {
        self.exprs.push(Expr::Immediate(Verdict::Drop));
        self.say("drop".into())
    }

    /// ICMP port unreachable, for every protocol, as kube-proxy does.
    pub fn reject(mut self) -> RuleWriter {
        const ICMP_UNREACHABLE: u32 = 0;
        let code = match self.family {
            Family::V4 => 3, // ICMP_PORT_UNREACH
            Family::V6 => 4, // ICMPV6_PORT_UNREACH
        };
        self.exprs.push(Expr::Reject { kind: ICMP_UNREACHABLE, code });
        self.say("reject".into())
    }

    /// Applies the verdict of the element, if there is one.
    pub fn dispatch(mut self, fields: &[Field], map: SetId) -> RuleWriter {
        self.load(fields, 0);
        self.look_up(map, Some(VERDICT), false);
        let words = format!("{} vmap @{}", self.spell(fields), map.name());
        self.say(words)
    }

    /// Looks up the treatment for these fields, and continues in its chain.
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

    /// Writes the number that `map` has for these fields into the packet's priority.
    pub fn put_priority_from(mut self, fields: &[Field], map: SetId) -> RuleWriter {
        self.load(fields, 0);
        self.look_up(map, Some(register(0)), false);
        self.exprs.push(Expr::MetaSet { key: nl::MetaKey::Priority, sreg: register(0) });
        let key = self.spell(fields);
        self.say(format!("meta priority set {key} map @{}", map.name()))
    }

    /// Clears our number in the packet.
    pub fn clear_priority(mut self) -> RuleWriter {
        self.exprs.push(Expr::ImmediateData { dreg: register(0), data: vec![0; 4] });
        self.exprs.push(Expr::MetaSet { key: nl::MetaKey::Priority, sreg: register(0) });
        self.say("meta priority set none".into())
    }

    /// Translates the destination to the endpoint that `map` has for these fields.
    pub fn translate_to(mut self, fields: &[Field], map: SetId) -> RuleWriter {
        self.load(fields, 0);
        let key = self.spell(fields);
        self.translate(map, key)
    }

    /// Translates the destination to the endpoint that `map` has in a random slot of `count`.
    pub fn pick(mut self, count: u16, pool: Pool, scope: Scope, map: SetId) -> RuleWriter {
        let (offset, shift) = match pool {
            Pool::Main => (0, String::new()),
            Pool::Local => (LOCAL_SLOTS, format!(" offset {LOCAL_SLOTS}")),
        };
        let fields = frontend_fields(scope);
        self.exprs.push(Expr::Numgen { dreg: register(0), modulus: count.into(), offset });
        self.load(fields, 1);
        let key = format!("numgen random mod {count}{shift} . {}", self.spell(fields));
        self.translate(map, key)
    }

    /// Translates the destination to the address in the packet and this port.
    pub fn translate_to_port(mut self, port: u16) -> RuleWriter {
        // nft 1.0.6 expects whole registers here: the address is in the first, the port in the next.
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

    /// Overwrites the packet's destination address with the one that `map` has for these fields.
    pub fn put_destination_from(mut self, fields: &[Field], map: SetId) -> RuleWriter {
        self.load(fields, 0);
        self.look_up(map, Some(register(0)), false);
        self.write_destination();
        let (field, key) = (self.spell(&[Field::Daddr]), self.spell(fields));
        self.say(format!("{field} set {key} map @{}", map.name()))
    }

    /// Restores the packet's original destination address.
    pub fn restore_destination(mut self) -> RuleWriter {
        self.load(&[Field::OriginalDaddr], 0);
        self.write_destination();
        let (field, original) = (self.spell(&[Field::Daddr]), self.spell(&[Field::OriginalDaddr]));
        self.say(format!("{field} set {original}"))
    }

    fn write_destination(&mut self) {
        let (offset, len) = address_place(self.family, Field::Daddr);
        // Checksums to update: that of the IPv4 header at byte 10 (type 1: internet checksum), and in both families the
        // pseudo-header checksum of TCP and UDP (flag 1).
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

    /// Stores the packet's destination address under these fields, or renews the timeout of an existing entry.
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

    /// Counts the packet in the element of these fields; creates it if there is room.
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
}
