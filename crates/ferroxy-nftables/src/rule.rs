//! Writes rules: each step adds the kernel's expressions and the `nft` text of the same.
//!
//! Only what the program needs: `matches.rs` has the matches, `statements.rs` the statements. `program.rs` explains what the
//! rules are for.

mod matches;
mod statements;

use ferroxy_core::Family;
use ferroxy_netfilter::tables::family_word;
use ferroxy_netlink::nftables as nl;
use nl::Expr;

use crate::element::{Scope, SetId};

/// A rule, for the kernel and for people.
#[derive(Debug, Clone)]
pub struct Rule {
    pub kernel: nl::Rule,
    /// As `nft list` prints it, with the comment. Empty for a rule that was read from the kernel.
    pub text: String,
}

/// Rules are equal if their expressions are; the text only describes them.
impl PartialEq for Rule {
    fn eq(&self, other: &Rule) -> bool {
        self.kernel == other.kernel
    }
}

impl Eq for Rule {}

/// A field of a packet or connection that can be matched or be part of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    Saddr,
    Daddr,
    L4proto,
    Dport,
    /// As the client sent it, before any translation.
    OriginalSaddr,
    OriginalDaddr,
    OriginalDport,
    /// The source of replies: the endpoint.
    ReplySaddr,
    ReplySport,
    /// Of the packet; between two lookups, our register.
    Priority,
}

/// The key of a frontend in the sets of a scope.
pub fn frontend_fields(scope: Scope) -> &'static [Field] {
    match scope {
        Scope::Address => &[Field::Daddr, Field::L4proto, Field::Dport],
        Scope::NodePort => &[Field::L4proto, Field::Dport],
    }
}

/// The key of the same frontend, when the packet's destination is an endpoint.
pub fn recalled_frontend_fields(scope: Scope) -> &'static [Field] {
    match scope {
        Scope::Address => &[Field::OriginalDaddr, Field::L4proto, Field::Dport],
        Scope::NodePort => &[Field::L4proto, Field::Dport],
    }
}

/// The key of the same frontend, after address and port were translated.
pub fn original_frontend_fields(scope: Scope) -> &'static [Field] {
    match scope {
        Scope::Address => &[Field::OriginalDaddr, Field::L4proto, Field::OriginalDport],
        Scope::NodePort => &[Field::L4proto, Field::OriginalDport],
    }
}

/// A frontend and the endpoint of a connection. The same for every packet of the connection.
pub const FLOW_FIELDS: [Field; 5] =
    [Field::L4proto, Field::OriginalDaddr, Field::OriginalDport, Field::ReplySaddr, Field::ReplySport];

/// The verdict register.
const VERDICT: u32 = 0;

/// Builds one rule, step by step.
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

    /// Looks up the loaded fields, from the first register on.
    fn look_up(&mut self, set: SetId, dreg: Option<u32>, invert: bool) {
        self.exprs.push(Expr::Lookup { set: set.name().into(), sreg: register(0), dreg, invert });
    }

    /// Loads the fields into consecutive registers, from a 4-byte unit on; returns the first free unit.
    fn load(&mut self, fields: &[Field], mut unit: u32) -> u32 {
        for field in fields {
            let dreg = register(unit);
            self.exprs.push(self.load_expr(*field, dreg));
            unit += match field {
                Field::L4proto
                | Field::Dport
                | Field::OriginalDport
                | Field::ReplySport
                | Field::Priority => 1,
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
            (Field::Priority, _) => Expr::Meta { key: nl::MetaKey::Priority, dreg },
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
            Field::Priority => "meta priority".into(),
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

/// Offset and length of an address in the network header.
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

/// The kernel's number of the register that starts at a 4-byte unit. Units that start a 16-byte register have two numbers; the
/// kernel reports the old one (1 to 4), and so we use it: what we read back must compare equal.
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
    fn registers_are_numbered_as_the_kernel_reports_them() {
        assert_eq!([0, 1, 3, 4, 5, 8].map(register), [1, 9, 11, 2, 13, 3]);
    }

    #[test]
    fn durations_are_printed_as_nft_does() {
        assert_eq!([10800, 90, 86400, 1, 3661].map(nft_duration), ["3h", "1m30s", "1d", "1s", "1h1m1s"]);
    }
}
