//! How one rule is spelled: each step is written at once as the kernel's expressions and as `nft` text.
//!
//! Only what the program needs: what a packet is asked is in `matches.rs`, what is done with it in `statements.rs`. What the
//! rules are for is in `program.rs`.

mod matches;
mod statements;

use ferroxy_core::Family;
use ferroxy_netlink::nftables as nl;
use nl::Expr;

use crate::element::{Scope, SetId};

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
