//! Encodes tables, chains, rules, sets and elements as attributes. The batch decides the order of messages.

use crate::codec::Encoder;

use super::expr::Expressions;
use super::types::{
    Chain, ChainType, DataRef, Datatype, ElementRef, Family, HookPoint, NewRule, Place, Rule, Set, SetData,
    Table, VerdictRef,
};
use super::userdata;
use super::wire::{LIST_ELEM, NFPROTO_IPV4, NFPROTO_IPV6, chain, data, element, rule, set, table};

impl Family {
    pub(super) fn number(self) -> u8 {
        match self {
            Self::Ip => NFPROTO_IPV4,
            Self::Ip6 => NFPROTO_IPV6,
        }
    }
}

pub(super) fn put_header(out: &mut Encoder, family: Family) {
    out.put_raw(&[family.number(), 0, 0, 0]);
}

pub(super) fn put_table(out: &mut Encoder, scratch: &mut Vec<u8>, wanted: &Table) {
    out.put_str(table::NAME, &wanted.name);
    // No flags: adding a table again enables it if another program has made it dormant.
    out.put_u32_be(table::FLAGS, 0);
    userdata::comment(scratch, wanted.comment.as_deref());
    put_userdata(out, table::USERDATA, scratch);
}

pub(super) fn put_chain(out: &mut Encoder, scratch: &mut Vec<u8>, table: &str, wanted: &Chain) {
    out.put_str(chain::TABLE, table);
    out.put_str(chain::NAME, &wanted.name);
    if let Some(hook) = wanted.hook {
        out.put_str(
            chain::TYPE,
            match hook.kind {
                ChainType::Nat => "nat",
                ChainType::Filter | ChainType::Other => "filter",
            },
        );
        out.put_u32_be(chain::POLICY, chain::POLICY_ACCEPT);
        let nest = out.begin_nested(chain::HOOK);
        out.put_u32_be(chain::HOOK_NUMBER, hook_number(hook.point));
        out.put_bytes(chain::HOOK_PRIORITY, &hook.priority.to_be_bytes());
        out.end_nested(nest);
    }
    userdata::comment(scratch, wanted.comment.as_deref());
    put_userdata(out, chain::USERDATA, scratch);
}

pub(super) fn put_rule(out: &mut Encoder, scratch: &mut Vec<u8>, table: &str, chain: &str, wanted: &Rule) {
    out.put_str(rule::TABLE, table);
    out.put_str(rule::CHAIN, chain);
    let nest = out.begin_nested(rule::EXPRESSIONS);
    for expr in &wanted.exprs {
        expr.encode(out);
    }
    out.end_nested(nest);
    userdata::comment(scratch, wanted.comment.as_deref());
    put_userdata(out, rule::USERDATA, scratch);
}

pub(super) fn put_compat_rule(
    out: &mut Encoder,
    wanted: &NewRule<'_>,
    fill: impl FnOnce(&mut Expressions<'_>),
) {
    out.put_str(rule::TABLE, wanted.table);
    out.put_str(rule::CHAIN, wanted.chain);
    let nest = out.begin_nested(rule::EXPRESSIONS);
    fill(&mut Expressions(out));
    out.end_nested(nest);
    if let Some((protocol, inverted)) = wanted.protocol {
        let nest = out.begin_nested(rule::COMPAT);
        out.put_u32_be(rule::COMPAT_PROTOCOL, protocol.into());
        out.put_u32_be(rule::COMPAT_FLAGS, if inverted { rule::COMPAT_INVERTED } else { 0 });
        out.end_nested(nest);
    }
    if let Place::Before(handle) = wanted.place {
        out.put_u64_be(rule::POSITION, handle);
    }
}

/// `id` distinguishes the sets of one batch; the kernel requires it.
pub(super) fn put_set(out: &mut Encoder, scratch: &mut Vec<u8>, table: &str, wanted: &Set, id: u32) {
    out.put_str(set::TABLE, table);
    out.put_str(set::NAME, &wanted.name);
    out.put_u32_be(set::FLAGS, set_flags(wanted));
    out.put_u32_be(set::KEY_TYPE, type_number(&wanted.key));
    out.put_u32_be(set::KEY_LEN, length(&wanted.key));
    match &wanted.data {
        Some(SetData::Verdict) => {
            out.put_u32_be(set::DATA_TYPE, set::TYPE_VERDICT);
            out.put_u32_be(set::DATA_LEN, 0);
        }
        Some(SetData::Value(fields)) => {
            out.put_u32_be(set::DATA_TYPE, type_number(fields));
            out.put_u32_be(set::DATA_LEN, length(fields));
        }
        None => {}
    }
    out.put_u32_be(set::ID, id);
    put_set_description(out, wanted);
    if let Some(timeout_ms) = wanted.timeout_ms {
        out.put_u64_be(set::TIMEOUT, timeout_ms);
    }
    userdata::set(scratch, wanted);
    put_userdata(out, set::USERDATA, scratch);
}

/// One element of the list in an add or delete message.
pub(super) fn put_element(out: &mut Encoder, scratch: &mut Vec<u8>, wanted: ElementRef<'_>) {
    let nest = out.begin_nested(LIST_ELEM);
    if wanted.interval_end {
        out.put_u32_be(element::FLAGS, element::FLAG_INTERVAL_END);
    }
    put_value(out, element::KEY, wanted.key);
    if let Some(key_end) = wanted.key_end {
        put_value(out, element::KEY_END, key_end);
    }
    match wanted.data {
        DataRef::None => {}
        DataRef::Verdict(verdict) => put_verdict(out, element::DATA, verdict),
        DataRef::Value(value) => put_value(out, element::DATA, value),
    }
    userdata::comment(scratch, wanted.comment);
    put_userdata(out, element::USERDATA, scratch);
    out.end_nested(nest);
}

pub(super) fn put_value(out: &mut Encoder, kind: u16, value: &[u8]) {
    let nest = out.begin_nested(kind);
    out.put_bytes(data::VALUE, value);
    out.end_nested(nest);
}

pub(super) fn put_verdict(out: &mut Encoder, kind: u16, verdict: VerdictRef<'_>) {
    let (code, chain) = match verdict {
        VerdictRef::Accept => (data::ACCEPT, None),
        VerdictRef::Drop => (data::DROP, None),
        VerdictRef::Return => (data::RETURN, None),
        VerdictRef::Jump(chain) => (data::JUMP, Some(chain)),
        VerdictRef::Goto(chain) => (data::GOTO, Some(chain)),
    };
    let outer = out.begin_nested(kind);
    let inner = out.begin_nested(data::VERDICT);
    out.put_bytes(data::VERDICT_CODE, &code.to_be_bytes());
    if let Some(chain) = chain {
        out.put_str(data::VERDICT_CHAIN, chain);
    }
    out.end_nested(inner);
    out.end_nested(outer);
}

fn put_userdata(out: &mut Encoder, kind: u16, userdata: &[u8]) {
    if !userdata.is_empty() {
        out.put_bytes(kind, userdata);
    }
}

fn hook_number(point: HookPoint) -> u32 {
    match point {
        HookPoint::Prerouting => 0,
        HookPoint::Input => 1,
        HookPoint::Forward => 2,
        HookPoint::Output => 3,
        HookPoint::Postrouting => 4,
    }
}

fn is_concatenated_interval(wanted: &Set) -> bool {
    wanted.interval && wanted.key.len() > 1
}

fn set_flags(wanted: &Set) -> u32 {
    let mut flags = 0;
    if wanted.interval {
        flags |= set::FLAG_INTERVAL;
    }
    if is_concatenated_interval(wanted) {
        flags |= set::FLAG_CONCAT;
    }
    if wanted.data.is_some() {
        flags |= set::FLAG_MAP;
    }
    if wanted.dynamic {
        flags |= set::FLAG_EVAL;
    }
    if wanted.dynamic || wanted.timeout_ms.is_some() {
        flags |= set::FLAG_TIMEOUT;
    }
    flags
}

/// The size, and for concatenated intervals the length of each field. Elsewhere the kernel refuses field lengths (6.5).
fn put_set_description(out: &mut Encoder, wanted: &Set) {
    if wanted.size.is_none() && !is_concatenated_interval(wanted) {
        return;
    }
    let description = out.begin_nested(set::DESC);
    if let Some(size) = wanted.size {
        out.put_u32_be(set::DESC_SIZE, size);
    }
    if is_concatenated_interval(wanted) {
        let concatenation = out.begin_nested(set::DESC_CONCAT);
        for field in &wanted.key {
            let nest = out.begin_nested(LIST_ELEM);
            out.put_u32_be(set::FIELD_LEN, field.size() as u32);
            out.end_nested(nest);
        }
        out.end_nested(concatenation);
    }
    out.end_nested(description);
}

/// nft's number of a type; a concatenation has 6 bits for each field.
fn type_number(fields: &[Datatype]) -> u32 {
    fields.iter().fold(0, |number, field| number << 6 | u32::from(datatype_number(*field)))
}

fn datatype_number(field: Datatype) -> u8 {
    match field {
        Datatype::Integer32 => 4,
        Datatype::Ipv4Addr => 7,
        Datatype::Ipv6Addr => 8,
        Datatype::InetProto => 12,
        Datatype::InetService => 13,
        Datatype::Priority => 23,
        Datatype::Unknown(number) => number,
    }
}

/// Bytes of a key or value: fields of a concatenation are padded to 4, a single field is not.
fn length(fields: &[Datatype]) -> u32 {
    let bytes = match fields {
        [field] => field.size(),
        fields => fields.iter().map(|field| field.size().next_multiple_of(4)).sum(),
    };
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::payload;
    use crate::nftables::{Expr, Hook};

    fn encoded(put: impl FnOnce(&mut Encoder, &mut Vec<u8>)) -> Vec<u8> {
        let mut out = Encoder::new();
        put(&mut out, &mut Vec::new());
        out.bytes().to_vec()
    }

    #[test]
    fn numbers_of_sets_are_in_network_order() {
        let set = Set {
            name: "s".into(),
            key: vec![Datatype::Ipv4Addr, Datatype::InetService],
            data: None,
            interval: false,
            dynamic: true,
            timeout_ms: Some(0x0102_0304),
            size: Some(0x0506_0708),
            comment: None,
        };
        let bytes = encoded(|out, scratch| put_set(out, scratch, "t", &set, 0x090a));
        assert_eq!(payload(&bytes, &[set::FLAGS]), [0, 0, 0, 0x30]);
        assert_eq!(payload(&bytes, &[set::KEY_TYPE]), [0, 0, 1, 0xcd]);
        assert_eq!(payload(&bytes, &[set::KEY_LEN]), [0, 0, 0, 8]);
        assert_eq!(payload(&bytes, &[set::ID]), [0, 0, 9, 10]);
        assert_eq!(payload(&bytes, &[set::TIMEOUT]), [0, 0, 0, 0, 1, 2, 3, 4]);
        assert_eq!(payload(&bytes, &[set::DESC, set::DESC_SIZE]), [5, 6, 7, 8]);
    }

    #[test]
    fn priorities_and_verdicts_are_in_network_order() {
        let hook = Hook { kind: ChainType::Nat, point: HookPoint::Output, priority: -100 };
        let wanted = Chain { name: "c".into(), hook: Some(hook), comment: None };
        let bytes = encoded(|out, scratch| put_chain(out, scratch, "t", &wanted));
        assert_eq!(payload(&bytes, &[chain::HOOK, chain::HOOK_NUMBER]), [0, 0, 0, 3]);
        assert_eq!(payload(&bytes, &[chain::HOOK, chain::HOOK_PRIORITY]), [0xff, 0xff, 0xff, 0x9c]);
        let bytes = encoded(|out, _| put_verdict(out, element::DATA, VerdictRef::Jump("c")));
        let verdict = payload(&bytes, &[element::DATA, data::VERDICT]);
        assert_eq!(payload(verdict, &[data::VERDICT_CODE]), [0xff, 0xff, 0xff, 0xfd]);
    }

    #[test]
    fn parameters_of_expressions_are_in_network_order_and_their_data_as_given() {
        let expr = Expr::Numgen { dreg: 1, modulus: 0x0102_0304, offset: 0x0506_0708 };
        let bytes = encoded(|out, _| expr.encode(out));
        // The list's element, the expression's parameters, the modulus.
        assert_eq!(payload(&bytes, &[1, 2, 2]), [1, 2, 3, 4]);
        assert_eq!(payload(&bytes, &[1, 2, 4]), [5, 6, 7, 8]);
        let expr = Expr::ImmediateData { dreg: 1, data: vec![0x1f, 0x90] };
        let bytes = encoded(|out, _| expr.encode(out));
        assert_eq!(payload(&bytes, &[1, 2, 2, data::VALUE]), [0x1f, 0x90]);
    }
}
