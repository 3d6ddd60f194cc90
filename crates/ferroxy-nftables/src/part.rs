//! The parts of the maps of endpoints: `endpoints-0` to `endpoints-7`, instead of one map.
//!
//! The kernel lists a set in messages of 32 KiB, and walks the hash table from the start again for each. So a listing takes time with
//! the square of a set's size: with 100,000 endpoints in one map, that was most of this dataplane's CPU time at a restart. All eight
//! maps together take an eighth of that.
//!
//! The part follows from the key of the frontend, so all slots of a frontend are in one map, and packets need no further lookup:
//! the treatment of a frontend, which they look up anyway, names the part ([`Treatment`](crate::chain::Treatment)).

use std::fmt;

use crate::element::Key;

/// More parts make listings cheaper and chains more numerous: there is one for each treatment, number of endpoints *and* part.
pub const PARTS: usize = 8;

/// The number of a part, below [`PARTS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Part(u8);

impl Part {
    pub fn all() -> impl Iterator<Item = Part> {
        (0..PARTS as u8).map(Part)
    }

    /// The part that has the endpoints of a frontend. It depends on every byte of the key, so that neither consecutive addresses nor
    /// consecutive ports share a part, and not on the byte order of the machine: keys are in network order.
    pub fn of(frontend: &Key) -> Part {
        // Fibonacci hashing (2⁶⁴ divided by the golden ratio), once for each field of four bytes.
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        let mixed = frontend.as_bytes().chunks(4).fold(0, |hash: u64, field| {
            let field = field.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
            let spread = (hash ^ field).wrapping_mul(SPREAD);
            spread ^ spread >> 32
        });
        // The upper bits are mixed best.
        let upper = mixed.wrapping_mul(SPREAD) >> 32;
        Part(((upper * PARTS as u64) >> 32) as u8)
    }

    pub fn number(self) -> u8 {
        self.0
    }

    pub fn from_number(number: u32) -> Option<Part> {
        Part::all().find(|part| u32::from(part.0) == number)
    }

    /// Only as it is written: `5`, but not `05`.
    pub fn parse(text: &str) -> Option<Part> {
        let [digit] = text.as_bytes() else { return None };
        Part::from_number(digit.checked_sub(b'0')?.into())
    }

    /// The one of these names that is for this part.
    pub fn among(self, names: &[&'static str; PARTS]) -> &'static str {
        names[usize::from(self.0)]
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use ferroxy_core::Protocol;

    use super::*;

    fn frontend(address: IpAddr, port: u16) -> Key {
        Key::EMPTY.address(address).protocol(Protocol::Tcp).port(port)
    }

    /// No part has a tenth more or less than its share.
    fn assert_even(what: &str, keys: impl ExactSizeIterator<Item = Key>) {
        let share = keys.len() / PARTS;
        let mut sizes = [0_usize; PARTS];
        keys.for_each(|key| sizes[usize::from(Part::of(&key).number())] += 1);
        assert!(sizes.iter().all(|size| size.abs_diff(share) <= share / 10), "{what}: {sizes:?}");
    }

    #[test]
    fn consecutive_addresses_and_ports_are_spread_evenly() {
        let v4 = |number: u32| IpAddr::V4(Ipv4Addr::from_bits(0x0a60_0000 + number));
        let v6 = |number: u32| IpAddr::V6(Ipv6Addr::from_bits(0xfd00_0010_0096 << 80 | u128::from(number)));
        for step in [1, 2, 8, 256] {
            assert_even("cluster IPs", (0..10_000).map(|number| frontend(v4(number * step), 80)));
            assert_even("IPv6 cluster IPs", (0..10_000).map(|number| frontend(v6(number * step), 80)));
        }
        assert_even("ports of an address", (1..10_000).map(|port| frontend(v4(80), port)));
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let node_port = |port| Key::EMPTY.protocol(protocol).port(port);
            assert_even("node ports", (30_000..32_768).map(node_port));
        }
    }

    #[test]
    fn a_part_is_the_same_on_every_machine() {
        let parts = [("10.96.0.80", 80), ("10.96.0.81", 80), ("10.96.0.80", 81), ("fd00:10:96::80", 80)]
            .map(|(address, port)| Part::of(&frontend(address.parse().unwrap(), port)).number());
        assert_eq!(parts, [4, 7, 0, 0]);
        assert_eq!(Part::of(&Key::EMPTY.protocol(Protocol::Tcp).port(30_080)).number(), 6);
    }

    #[test]
    fn parts_read_back_and_others_do_not() {
        for part in Part::all() {
            assert_eq!(Part::parse(&part.to_string()), Some(part));
            assert_eq!(Part::from_number(part.number().into()), Some(part));
        }
        for foreign in ["", "05", "+5", "8", "-1", "a"] {
            assert_eq!(Part::parse(foreign), None, "{foreign}");
        }
        assert_eq!(Part::from_number(PARTS as u32), None);
    }
}
