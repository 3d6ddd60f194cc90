//! Arbitrary bytes as netlink messages, through every decoder of `ferroxy-netlink`.

#![no_main]

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
});

/// Follows every attribute as if it were a nest. What is inside is always smaller than what it is in: this ends.
fn walk(attributes: Attributes<'_>, limit: usize) {
    for attribute in attributes.flatten() {
        assert!(attribute.payload.len() < limit, "an attribute larger than what it was found in");
        let _ = (attribute.u8(), attribute.u16(), attribute.u32_be(), attribute.u64_be(), attribute.str());
        walk(attribute.nested(), attribute.payload.len());
    }
}
