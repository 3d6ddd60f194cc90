//! Decodes attributes to tables, chains, rules, sets and elements. Other programs may edit our objects: contents that
//! this crate never writes are no error, and decode to values that differ from everything that it writes.

use crate::codec::{Attribute, Attributes, Fields, Malformed, Message, Messages};

use super::batch::path;
use super::expr::{Expr, Expression, read_counter};
use super::types::{
    Chain, ChainType, Counter, DataRef, Datatype, ElementRef, Family, Hook, HookPoint, ObservedRule, Rule,
    Set, SetData, Table, VerdictRef,
};
use super::userdata;
use super::wire::{
    ANY_TABLE, GENERATION_ID, HEADER, NFPROTO_IPV4, NFPROTO_IPV6, chain, data, element, rule, set, table,
};

/// The family in a message's header; `None` for families other than IPv4 and IPv6.
pub(super) fn read_family(message: &Message<'_>) -> Result<Option<Family>, Malformed> {
    let ([family, ..], _) = message.split::<HEADER>()?;
    Ok(match *family {
        NFPROTO_IPV4 => Some(Family::Ip),
        NFPROTO_IPV6 => Some(Family::Ip6),
        _ => None,
    })
}

/// The name of the table a message is about; every kind of message has it in the same place.
pub(super) fn read_table_name<'a>(message: &Message<'a>) -> Result<&'a str, Malformed> {
    let (_, attributes) = message.split::<HEADER>()?;
    Fields::<2>::new(attributes)?.need(ANY_TABLE, "table name")?.str()
}

/// The name of the chain that a message about a chain or rule is about.
pub(super) fn read_chain_name(message: &Message<'_>, what: &str) -> Result<Option<String>, Malformed> {
    let place = match what {
        "chain" => chain::NAME,
        "rule" => rule::CHAIN,
        _ => return Ok(None),
    };
    let (_, attributes) = message.split::<HEADER>()?;
    let name = Fields::<4>::new(attributes)?.get(place).map(|name| name.str().map(str::to_owned));
    name.transpose()
}

pub(super) fn read_generation(message: &Message<'_>) -> Result<u32, Malformed> {
    let (_, attributes) = message.split::<HEADER>()?;
    Fields::<2>::new(attributes)?.need(GENERATION_ID, "generation")?.u32_be()
}

pub(super) fn read_table(message: &Message<'_>) -> Result<(Table, bool), Malformed> {
    let (_, attributes) = message.split::<HEADER>()?;
    let fields = Fields::<7>::new(attributes)?;
    let flags = fields.get(table::FLAGS).map(|flags| flags.u32_be()).transpose()?.unwrap_or(0);
    let table = Table {
        name: fields.need(table::NAME, "table name")?.str()?.to_owned(),
        comment: read_comment(fields.get(table::USERDATA)),
    };
    Ok((table, flags & self::table::FLAG_DORMANT != 0))
}

pub(super) fn read_chain(message: &Message<'_>) -> Result<Chain, Malformed> {
    let (_, attributes) = message.split::<HEADER>()?;
    let fields = Fields::<13>::new(attributes)?;
    Ok(Chain {
        name: fields.need(chain::NAME, "chain name")?.str()?.to_owned(),
        hook: match fields.get(chain::HOOK) {
            Some(hook) => read_hook(&hook, &fields)?,
            None => None,
        },
        comment: read_comment(fields.get(chain::USERDATA)),
    })
}

pub(super) fn read_rule(message: &Message<'_>) -> Result<ObservedRule, Malformed> {
    let (_, attributes) = message.split::<HEADER>()?;
    let fields = Fields::<8>::new(attributes)?;
    let expressions = fields.get(rule::EXPRESSIONS).map_or(Attributes::new(&[]), |list| list.nested());
    let exprs = expressions.map(|expression| Expr::decode(&expression?)).collect::<Result<_, _>>()?;
    Ok(ObservedRule {
        chain: fields.need(rule::CHAIN, "chain name")?.str()?.to_owned(),
        handle: fields.need(rule::HANDLE, "rule handle")?.u64_be()?,
        rule: Rule { exprs, comment: read_comment(fields.get(rule::USERDATA)) },
    })
}

/// A rule of iptables in a listing.
#[derive(Debug, Clone)]
pub struct CompatRule<'a> {
    pub table: &'a str,
    pub chain: &'a str,
    /// Identifies the rule, to delete it or to insert other rules before it.
    pub handle: u64,
    expressions: Attributes<'a>,
}

impl<'a> CompatRule<'a> {
    pub fn read(message: &Message<'a>) -> Result<CompatRule<'a>, Malformed> {
        let (_, attributes) = message.split::<HEADER>()?;
        let fields = Fields::<8>::new(attributes)?;
        Ok(CompatRule {
            table: fields.need(rule::TABLE, "table name")?.str()?,
            chain: fields.need(rule::CHAIN, "chain name")?.str()?,
            handle: fields.need(rule::HANDLE, "rule handle")?.u64_be()?,
            expressions: fields.get(rule::EXPRESSIONS).map_or(Attributes::new(&[]), |list| list.nested()),
        })
    }

    /// Its expressions as the kernel listed them.
    pub fn bytes(&self) -> &'a [u8] {
        self.expressions.bytes()
    }

    pub fn expressions(&self) -> impl Iterator<Item = Result<Expression<'a>, Malformed>> {
        self.expressions.clone().map(|expression| Expression::decode(&expression?))
    }
}

/// Table and name of a chain in a listing, and whether it is a base chain.
pub(super) fn read_chain_place<'a>(message: &Message<'a>) -> Result<(&'a str, &'a str, bool), Malformed> {
    let (_, attributes) = message.split::<HEADER>()?;
    let fields = Fields::<5>::new(attributes)?;
    let name = fields.need(chain::NAME, "chain name")?.str()?;
    Ok((fields.need(chain::TABLE, "table name")?.str()?, name, fields.get(chain::HOOK).is_some()))
}

/// The chain in a message about a rule, for error messages.
pub(super) fn read_rule_place(message: &Message<'_>) -> Option<String> {
    let family = read_family(message).ok()??;
    let (_, attributes) = message.split::<HEADER>().ok()?;
    let fields = Fields::<3>::new(attributes).ok()?;
    Some(path(family, fields.get(rule::TABLE)?.str().ok()?, fields.get(rule::CHAIN)?.str().ok()?))
}

/// `None` for an anonymous set, which is part of the rule that uses it.
pub(super) fn read_set(message: &Message<'_>) -> Result<Option<Set>, Malformed> {
    let (_, attributes) = message.split::<HEADER>()?;
    let fields = Fields::<14>::new(attributes)?;
    let number = |kind| fields.get(kind).map(|value: Attribute<'_>| value.u32_be()).transpose();
    let flags = number(set::FLAGS)?.unwrap_or(0);
    if flags & set::FLAG_ANONYMOUS != 0 {
        return Ok(None);
    }
    let data = match number(set::DATA_TYPE)? {
        Some(set::TYPE_VERDICT) => Some(SetData::Verdict),
        Some(number) => Some(SetData::Value(read_types(number))),
        None => None,
    };
    let size = match fields.get(set::DESC) {
        Some(description) => Fields::<2>::new(description.nested())?.get(set::DESC_SIZE),
        None => None,
    };
    let timeout = fields.get(set::TIMEOUT).map(|value| value.u64_be()).transpose()?;
    Ok(Some(Set {
        name: fields.need(set::NAME, "set name")?.str()?.to_owned(),
        key: read_types(number(set::KEY_TYPE)?.unwrap_or(0)),
        data,
        interval: flags & set::FLAG_INTERVAL != 0,
        dynamic: flags & set::FLAG_EVAL != 0,
        timeout_ms: timeout.filter(|timeout| *timeout != 0),
        size: size.map(|size| size.u32_be()).transpose()?,
        comment: fields
            .get(set::USERDATA)
            .and_then(|bytes| userdata::read_set_comment(bytes.payload))
            .map(str::to_owned),
    }))
}

/// The elements in one message of a listing.
pub(super) fn read_elements(
    message: &Message<'_>,
    each: &mut dyn FnMut(ElementRef<'_>),
) -> Result<(), Malformed> {
    let (_, attributes) = message.split::<HEADER>()?;
    let fields = Fields::<4>::new(attributes)?;
    let Some(list) = fields.get(element::LIST_ELEMENTS) else { return Ok(()) };
    for attribute in list.nested() {
        each(read_element(&attribute?)?);
    }
    Ok(())
}

/// Passes on keys and counters of the elements with a counter in one message of a listing.
pub(super) fn read_counters(
    message: &Message<'_>,
    each: &mut dyn FnMut(&[u8], Counter),
) -> Result<(), Malformed> {
    let (_, attributes) = message.split::<HEADER>()?;
    let Some(list) = Fields::<4>::new(attributes)?.get(element::LIST_ELEMENTS) else { return Ok(()) };
    for attribute in list.nested() {
        let fields = Fields::<11>::new(attribute?.nested())?;
        let (Some(key), Some(expr)) = (fields.get(element::KEY), fields.get(element::EXPR)) else { continue };
        if let Some(counter) = read_counter(&expr)? {
            let key = Fields::<3>::new(key.nested())?.need(data::VALUE, "value")?;
            each(key.payload, counter);
        }
    }
    Ok(())
}

pub(super) fn read_element<'a>(attribute: &Attribute<'a>) -> Result<ElementRef<'a>, Malformed> {
    let fields = Fields::<11>::new(attribute.nested())?;
    let flags = fields.get(element::FLAGS).map(|flags| flags.u32_be()).transpose()?.unwrap_or(0);
    Ok(ElementRef {
        // The catch-all element (5.13) has no key.
        key: fields.get(element::KEY).map(|key| read_value(&key)).transpose()?.unwrap_or_default(),
        key_end: fields.get(element::KEY_END).map(|key| read_value(&key)).transpose()?,
        interval_end: flags & element::FLAG_INTERVAL_END != 0,
        data: match fields.get(element::DATA) {
            Some(data) => read_data(&data)?,
            None => DataRef::None,
        },
        comment: fields.get(element::USERDATA).and_then(|bytes| userdata::read_comment(bytes.payload)),
    })
}

pub(super) fn read_value<'a>(attribute: &Attribute<'a>) -> Result<&'a [u8], Malformed> {
    let fields = Fields::<3>::new(attribute.nested())?;
    Ok(fields.need(data::VALUE, "value")?.payload)
}

/// `None` for verdicts this crate does not write.
pub(super) fn read_verdict<'a>(attribute: &Attribute<'a>) -> Result<Option<VerdictRef<'a>>, Malformed> {
    let fields = Fields::<3>::new(attribute.nested())?;
    let Some(verdict) = fields.get(data::VERDICT) else { return Ok(None) };
    let fields = Fields::<3>::new(verdict.nested())?;
    let code = i32::from_be_bytes(fields.need(data::VERDICT_CODE, "verdict code")?.array()?);
    let chain = || fields.need(data::VERDICT_CHAIN, "verdict chain")?.str();
    Ok(match code {
        data::ACCEPT => Some(VerdictRef::Accept),
        data::DROP => Some(VerdictRef::Drop),
        data::RETURN => Some(VerdictRef::Return),
        data::JUMP => Some(VerdictRef::Jump(chain()?)),
        data::GOTO => Some(VerdictRef::Goto(chain()?)),
        _ => None,
    })
}

/// Decodes bytes as every kind of message and discards the results. For tests and the fuzzer.
pub fn read_everything(bytes: &[u8]) {
    for message in Messages::new(bytes).flatten() {
        let _ = (read_family(&message), read_table_name(&message), read_table(&message));
        let _ = (read_chain(&message), read_rule(&message), read_set(&message));
        let _ = read_elements(&message, &mut |_| {});
        let _ = read_counters(&message, &mut |_, _| {});
        let _ = (read_chain_place(&message), read_rule_place(&message));
        let _ = CompatRule::read(&message).map(|rule| rule.expressions().count());
    }
}

fn read_data<'a>(attribute: &Attribute<'a>) -> Result<DataRef<'a>, Malformed> {
    let fields = Fields::<3>::new(attribute.nested())?;
    let Some(verdict) = fields.get(data::VERDICT) else {
        return read_value(attribute).map(DataRef::Value);
    };
    if let Some(verdict) = read_verdict(attribute)? {
        return Ok(DataRef::Verdict(verdict));
    }
    let code = Fields::<3>::new(verdict.nested())?.need(data::VERDICT_CODE, "verdict code")?;
    Ok(DataRef::Value(code.payload))
}

fn read_comment(userdata: Option<Attribute<'_>>) -> Option<String> {
    userdata.and_then(|bytes| userdata::read_comment(bytes.payload)).map(str::to_owned)
}

fn read_hook(hook: &Attribute<'_>, chain: &Fields<'_, 13>) -> Result<Option<Hook>, Malformed> {
    let fields = Fields::<3>::new(hook.nested())?;
    let point = match fields.need(self::chain::HOOK_NUMBER, "hook number")?.u32_be()? {
        0 => HookPoint::Prerouting,
        1 => HookPoint::Input,
        2 => HookPoint::Forward,
        3 => HookPoint::Output,
        4 => HookPoint::Postrouting,
        // The families we read have no other hooks.
        _ => return Ok(None),
    };
    let priority = i32::from_be_bytes(fields.need(self::chain::HOOK_PRIORITY, "hook priority")?.array()?);
    let policy = chain.get(self::chain::POLICY).map(|policy| policy.u32_be()).transpose()?;
    let kind = match chain.need(self::chain::TYPE, "chain type")?.str()? {
        _ if policy.is_some_and(|policy| policy != self::chain::POLICY_ACCEPT) => ChainType::Other,
        "filter" => ChainType::Filter,
        "nat" => ChainType::Nat,
        _ => ChainType::Other,
    };
    Ok(Some(Hook { kind, point, priority }))
}

/// Fields of 6 bits each, the first field in the most significant bits.
fn read_types(mut number: u32) -> Vec<Datatype> {
    let mut fields = Vec::new();
    while number != 0 {
        fields.push(match (number & 0x3f) as u8 {
            4 => Datatype::Integer32,
            7 => Datatype::Ipv4Addr,
            8 => Datatype::Ipv6Addr,
            12 => Datatype::InetProto,
            13 => Datatype::InetService,
            23 => Datatype::Priority,
            other => Datatype::Unknown(other),
        });
        number >>= 6;
    }
    fields.reverse();
    fields
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nftables::{Base, Batch, CmpOp, Data, DynsetOp, Element, Verdict};

    /// One message of every kind, as we write them.
    fn written() -> Vec<u8> {
        let mut batch = Batch::new();
        let comment = || Some("comment".to_owned());
        batch.add_table(0, Family::Ip, &Table { name: "t".into(), comment: comment() });
        let hook = Hook { kind: ChainType::Nat, point: HookPoint::Input, priority: -5 };
        batch.add_chain(
            0,
            Family::Ip,
            "t",
            &Chain { name: "c".into(), hook: Some(hook), comment: comment() },
        );
        let (key, data) = (vec![Datatype::Ipv4Addr, Datatype::InetProto], Some(SetData::Verdict));
        let (timeout_ms, size) = (Some(5), Some(6));
        let name = "s".to_owned();
        let set =
            Set { name, key, data, interval: true, dynamic: true, timeout_ms, size, comment: comment() };
        batch.add_set(0, Family::Ip, "t", &set);
        let element = Element {
            key: vec![1; 8],
            key_end: Some(vec![2; 8]),
            interval_end: true,
            data: Data::Verdict(Verdict::Goto("c".into())),
            comment: comment(),
        };
        batch.add_element(0, Family::Ip, "t", "s", (&element).into());
        let exprs = vec![
            Expr::Payload { base: Base::Network, offset: 16, len: 4, dreg: 1 },
            Expr::Cmp { sreg: 1, op: CmpOp::Eq, data: vec![1, 2] },
            Expr::Dynset {
                set: "s".into(),
                op: DynsetOp::Add,
                sreg_key: 1,
                sreg_data: None,
                timeout_ms,
                counter: true,
            },
            Expr::Immediate(Verdict::Jump("c".into())),
        ];
        batch.add_rule(0, Family::Ip, "t", "c", &Rule { exprs, comment: comment() });
        batch.encoded().to_vec()
    }

    #[test]
    fn damaged_messages_never_panic() {
        let bytes = written();
        for at in 0..bytes.len() {
            read_everything(&bytes[..at]);
            for value in [0, 1, 3, 4, 5, 0x7f, 0xff] {
                let mut damaged = bytes.clone();
                damaged[at] = value;
                read_everything(&damaged);
            }
        }
    }

    #[test]
    fn types_are_read_from_six_bits_each() {
        use Datatype::{InetProto, InetService, Integer32, Ipv4Addr, Unknown};
        assert_eq!(read_types(0x0010_730d), [Integer32, Ipv4Addr, InetProto, InetService]);
        assert_eq!(read_types(7), [Ipv4Addr]);
        assert_eq!(read_types(19), [Unknown(19)]);
        assert_eq!(read_types(0), []);
    }
}
