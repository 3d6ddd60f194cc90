//! Arbitrary bytes as netlink messages, through every decoder of `ferroxy-netlink`; and as a rule of iptables.

#![no_main]

use ferroxy_core::Family;
use ferroxy_iptables::xt::expression::{Found, read, write};
use ferroxy_iptables::xt::{Sets, Terms};
use ferroxy_netlink::codec::{Attributes, Messages};
use ferroxy_netlink::socket::Ack;
use ferroxy_netlink::{conntrack, ipset, ipvs, nftables, route};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for message in Messages::new(bytes).flatten() {
        let _ = Ack::from_message(&message);
        walk(Attributes::new(message.payload), bytes.len());
    }
    nftables::read_everything(bytes);
    route::read_everything(bytes);
    conntrack::read_everything(bytes);
    ipset::read_everything(bytes);
    ipvs::read_everything(bytes);
    rule_of_iptables(bytes);
});

/// Decodes the bytes as the expressions of an iptables rule. If they are read as a rule that we write, writing that rule and
/// reading it again gives the same rule.
fn rule_of_iptables(bytes: &[u8]) {
    // Only one set number is known.
    let sets: Sets = [(1, "set".to_owned())].into_iter().collect();
    for family in Family::ALL {
        let terms = Terms { family, sets: &sets };
        let Ok(Found::Known(spec)) = read(terms, nftables::decode_expressions(bytes)) else { continue };
        let written = nftables::encode_expressions(|out| write(&spec, family, out));
        assert_eq!(read(terms, nftables::decode_expressions(&written)), Ok(Found::Known(spec)));
    }
}

/// Follows every attribute as if it were a nest. This ends, because an inner attribute is always smaller than the outer one.
fn walk(attributes: Attributes<'_>, limit: usize) {
    for attribute in attributes.flatten() {
        assert!(attribute.payload.len() < limit, "an attribute larger than what it was found in");
        let _ = (attribute.u8(), attribute.u16(), attribute.u32_be(), attribute.u64_be(), attribute.str());
        walk(attribute.nested(), attribute.payload.len());
    }
}
