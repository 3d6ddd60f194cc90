//! Prints a State as `nft list` does, and a Plan as commands for `nft -f`.

use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ferroxy_core::{Family, Protocol};
use ferroxy_netlink::nftables::{ChainType, Datatype, Hook, HookPoint, Set, SetData};
use ipnet::IpNet;

use crate::TABLE;
use crate::element::{Element, SetId, Value};
use crate::plan::{Action, Op, Plan};
use crate::program;
use crate::rule::nft_duration;
use crate::state::{Chain, State, Table};
use ferroxy_netfilter::tables::{KUBE_PROXY, describe, family_word};

/// The comment of our tables.
pub const TABLE_COMMENT: &str = "Ferroxy: the Kubernetes Services of this node";

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tables.iter().try_for_each(|(family, table)| write_table(f, *family, table))
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ops().try_for_each(|op| writeln!(f, "{op}"))
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = format!("{} {TABLE}", family_word(self.family));
        let element = |f: &mut fmt::Formatter<'_>, verb: &str, element: &Element| {
            let spelled = element_text(self.family, element);
            write!(f, "{verb} element {table} {} {{ {spelled} }}", element.set.name())
        };
        match &self.action {
            Action::AddTable => write!(f, "add table {table}"),
            Action::RemoveTable => write!(f, "delete table {table}"),
            Action::RemoveKubeProxyTable => write!(f, "delete {}", describe(self.family, KUBE_PROXY)),
            Action::AddSet(set) => write!(f, "add {} {table} {}", set_word(set), set.name),
            Action::RemoveSet(name) => write!(f, "delete set {table} {name}"),
            Action::AddChain { name, hook: None } => write!(f, "add chain {table} {name}"),
            Action::AddChain { name, hook: Some(hook) } => {
                write!(f, "add chain {table} {name} {{ {} }}", hook_text(hook))
            }
            Action::RemoveChain(name) => write!(f, "delete chain {table} {name}"),
            Action::FlushChain(name) | Action::RetireChain(name) => write!(f, "flush chain {table} {name}"),
            Action::AddRule { chain, rule } => write!(f, "add rule {table} {chain} {}", rule.text),
            Action::Add(added) => element(f, "add", added),
            Action::Remove(removed) => element(f, "delete", removed),
            Action::Replace { old, new } => {
                element(f, "delete", old)?;
                writeln!(f)?;
                element(f, "add", new)
            }
        }
    }
}

fn write_table(f: &mut fmt::Formatter<'_>, family: Family, table: &Table) -> fmt::Result {
    writeln!(f, "table {} {TABLE} {{", family_word(family))?;
    writeln!(f, "\tcomment \"{TABLE_COMMENT}\"")?;
    for set in table.sets.values() {
        writeln!(f)?;
        write_set(f, family, set, table)?;
    }
    for (name, chain) in in_reading_order(&table.chains) {
        writeln!(f)?;
        write_chain(f, name, chain)?;
    }
    writeln!(f, "}}")
}

/// Chains with a hook first, then the others by name.
fn in_reading_order(
    chains: &std::collections::BTreeMap<String, Chain>,
) -> impl Iterator<Item = (&String, &Chain)> {
    let hooked = chains.iter().filter(|(_, chain)| chain.hook.is_some());
    hooked.chain(chains.iter().filter(|(_, chain)| chain.hook.is_none()))
}

fn write_set(f: &mut fmt::Formatter<'_>, family: Family, set: &Set, table: &Table) -> fmt::Result {
    writeln!(f, "\t{} {} {{", set_word(set), set.name)?;
    writeln!(f, "\t\t{}", spell_type(family, set))?;
    if let Some(size) = set.size {
        writeln!(f, "\t\tsize {size}")?;
    }
    match (set.interval, set.dynamic) {
        (true, _) => writeln!(f, "\t\tflags interval")?,
        (_, true) => writeln!(f, "\t\tflags dynamic,timeout")?,
        _ => {}
    }
    if let Some(timeout_ms) = set.timeout_ms {
        writeln!(f, "\t\ttimeout {}", nft_duration((timeout_ms / 1000) as u32))?;
    }
    if let Some(comment) = &set.comment {
        writeln!(f, "\t\tcomment \"{comment}\"")?;
    }
    let entries = SetId::parse(&set.name).and_then(|id| table.elements.get(&id).map(|entries| (id, entries)));
    if let Some((id, entries)) = entries.filter(|(_, entries)| !entries.is_empty()) {
        let mut lead = "\t\telements = { ";
        for (key, entry) in entries {
            write!(f, "{lead}{}", element_text(family, &entry.element(id, *key)))?;
            lead = ",\n\t\t\t     ";
        }
        writeln!(f, " }}")?;
    }
    writeln!(f, "\t}}")
}

fn write_chain(f: &mut fmt::Formatter<'_>, name: &str, chain: &Chain) -> fmt::Result {
    writeln!(f, "\tchain {name} {{")?;
    if let Some(comment) = &chain.comment {
        writeln!(f, "\t\tcomment \"{comment}\"")?;
    }
    if let Some(hook) = &chain.hook {
        writeln!(f, "\t\t{}", hook_text(hook))?;
    }
    for rule in &chain.rules {
        let text = if rule.text.is_empty() { "# a rule that is not ours" } else { &rule.text };
        writeln!(f, "\t\t{text}")?;
    }
    writeln!(f, "\t}}")
}

fn set_word(set: &Set) -> &'static str {
    if set.data.is_some() { "map" } else { "set" }
}

/// `type nat hook prerouting priority dstnat; policy accept;`
pub fn hook_text(hook: &Hook) -> String {
    let kind = match hook.kind {
        ChainType::Filter => "filter",
        ChainType::Nat => "nat",
        ChainType::Other => "(not ours)",
    };
    let point = match hook.point {
        HookPoint::Prerouting => "prerouting",
        HookPoint::Input => "input",
        HookPoint::Forward => "forward",
        HookPoint::Output => "output",
        HookPoint::Postrouting => "postrouting",
    };
    let priority = match (hook.priority, hook.point) {
        (0, _) => "filter".into(),
        // nft uses the names dstnat and srcnat only at some hooks.
        (-100, HookPoint::Prerouting) => "dstnat".into(),
        (-110, HookPoint::Prerouting) => "dstnat - 10".into(),
        (100, HookPoint::Postrouting) => "srcnat".into(),
        (other, _) => other.to_string(),
    };
    format!("type {kind} hook {point} priority {priority}; policy accept;")
}

/// `type …`, or `typeof …` for maps with a slot in their key: its type has no name in `nft`.
fn spell_type(family: Family, set: &Set) -> String {
    let by_example = set.key.contains(&Datatype::Integer32);
    let spell = |types: &[Datatype]| {
        let words: Vec<&str> =
            types.iter().map(|datatype| spell_datatype(family, *datatype, by_example)).collect();
        words.join(" . ")
    };
    let data = match &set.data {
        None => String::new(),
        Some(SetData::Verdict) => " : verdict".into(),
        Some(SetData::Value(types)) => format!(" : {}", spell(types)),
    };
    format!("{} {}{data}", if by_example { "typeof" } else { "type" }, spell(&set.key))
}

fn spell_datatype(family: Family, datatype: Datatype, by_example: bool) -> &'static str {
    match (datatype, by_example, family) {
        (Datatype::Ipv4Addr | Datatype::Ipv6Addr, true, Family::V4) => "ip daddr",
        (Datatype::Ipv4Addr | Datatype::Ipv6Addr, true, Family::V6) => "ip6 daddr",
        (Datatype::Ipv4Addr, false, _) => "ipv4_addr",
        (Datatype::Ipv6Addr, false, _) => "ipv6_addr",
        (Datatype::InetProto, true, _) => "meta l4proto",
        (Datatype::InetProto, false, _) => "inet_proto",
        (Datatype::InetService, true, _) => "th dport",
        (Datatype::InetService, false, _) => "inet_service",
        (Datatype::Priority, true, _) => "meta priority",
        (Datatype::Priority, false, _) => "classid",
        (Datatype::Integer32, _, _) => "numgen random mod 65536",
        (Datatype::Unknown(_), _, _) => "(not ours)",
    }
}

/// `10.96.0.80 . tcp . 80 comment "default/web" : 1401:2`
pub fn element_text(family: Family, element: &Element) -> String {
    let mut text = spell_key(family, element);
    if let Some(comment) = &element.comment {
        let _ = write!(text, " comment \"{comment}\"");
    }
    match element.value {
        Value::Member | Value::UpTo(_) => {}
        Value::Treatment(treatment) => {
            let _ = write!(text, " : {}", priority_text(treatment.code()));
        }
        Value::ServicePort(port) => {
            let _ = write!(text, " : {}", priority_text(port.code()));
        }
        Value::Goto(chain) => {
            let _ = write!(text, " : goto {chain}");
        }
        Value::Endpoint(address, port) => {
            let _ = write!(text, " : {} . {port}", address_text(address));
        }
        Value::Foreign => text.push_str(" : (not ours)"),
    }
    text
}

fn spell_key(family: Family, element: &Element) -> String {
    let types = program::key_types(element.set, family);
    let mut bytes = element.key.as_bytes();
    let mut fields = Vec::with_capacity(types.len());
    for datatype in types {
        let width = if datatype == Datatype::Ipv6Addr { 16 } else { 4 };
        let (field, rest) = bytes.split_at(width.min(bytes.len()));
        fields.push(spell_field(datatype, field));
        bytes = rest;
    }
    if let (Value::UpTo(last), Some(first)) = (element.value, fields.last_mut()) {
        *first = spell_range(first, last);
    }
    fields.join(" . ")
}

fn spell_field(datatype: Datatype, bytes: &[u8]) -> String {
    let word: [u8; 4] = bytes.get(..4).and_then(|b| b.try_into().ok()).unwrap_or_default();
    match datatype {
        Datatype::Ipv4Addr => Ipv4Addr::from(word).to_string(),
        Datatype::Ipv6Addr => {
            <[u8; 16]>::try_from(bytes).map(|b| address_text(Ipv6Addr::from(b).into())).unwrap_or_default()
        }
        Datatype::InetProto => {
            Protocol::from_number(word[0]).map_or_else(|| word[0].to_string(), |p| p.lowercase().to_string())
        }
        Datatype::InetService => u16::from_be_bytes([word[0], word[1]]).to_string(),
        Datatype::Priority => priority_text(u32::from_ne_bytes(word)),
        Datatype::Integer32 | Datatype::Unknown(_) => u32::from_ne_bytes(word).to_string(),
    }
}

/// As `nft` prints a priority, which is a class of traffic control.
fn priority_text(priority: u32) -> String {
    format!("{:x}:{:x}", priority >> 16, priority & 0xffff)
}

/// As the C library, and so `nft`, prints it: addresses such as `::10.0.0.2` have the old mixed form.
fn address_text(address: IpAddr) -> String {
    match address {
        IpAddr::V6(v6) => match u32::try_from(v6.to_bits()) {
            Ok(bits) if bits > 0xffff => format!("::{}", Ipv4Addr::from_bits(bits)),
            _ => v6.to_string(),
        },
        IpAddr::V4(v4) => v4.to_string(),
    }
}

/// As a prefix if it is one. Our own ranges always are.
fn spell_range(first: &str, last: IpAddr) -> String {
    let Ok(start) = first.parse::<IpAddr>() else { return first.into() };
    let width = if start.is_ipv4() { 32 } else { 128 };
    let prefix = (0..=width).find_map(|length| {
        let net = IpNet::new(start, length).ok()?;
        (net.network() == start && net.broadcast() == last).then_some(net)
    });
    match prefix {
        Some(net) if net.prefix_len() == width => first.into(),
        Some(net) => net.to_string(),
        None => format!("{first}-{last}"),
    }
}
