//! Encodes and decodes addresses of links. Knows no socket.

use std::fmt;
use std::net::IpAddr;

use super::wire::{IFA_ADDRESS, IFA_F_NODAD, IFA_FLAGS, IFA_LOCAL};
use super::{family, put_address};
use crate::codec::{Attribute, Encoder, Malformed, Message};
use crate::numbers::{AF_INET, AF_INET6};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// Index of the link that has it.
    pub link: u32,
    pub ip: IpAddr,
    pub prefix_length: u8,
}

impl Address {
    pub(super) fn encode(&self, encoder: &mut Encoder) {
        encoder.put_raw(&header(family(self.ip), self.prefix_length, self.link));
        put_address(encoder, IFA_LOCAL, self.ip);
        // Without IFA_ADDRESS, IPv4 treats the address as one end of a point-to-point link.
        put_address(encoder, IFA_ADDRESS, self.ip);
    }

    pub(super) fn encode_new(&self, encoder: &mut Encoder) {
        self.encode(encoder);
        if self.ip.is_ipv6() {
            encoder.put_u32(IFA_FLAGS, IFA_F_NODAD);
        }
    }

    /// `None` for an address of a family other than IP (MCTP for example).
    pub(super) fn decode(message: &Message<'_>) -> Result<Option<Address>, Malformed> {
        let (header, attributes) = message.split::<HEADER>()?;
        let [family, prefix_length, _, _, l0, l1, l2, l3] = *header;
        let (mut local, mut address) = (None, None);
        for attribute in attributes {
            let attribute = attribute?;
            match attribute.kind {
                IFA_LOCAL => local = ip(family, &attribute)?,
                IFA_ADDRESS => address = ip(family, &attribute)?,
                _ => {}
            }
        }
        // On a point-to-point link, IFA_LOCAL is this end and IFA_ADDRESS the other. On other links IPv6 has no IFA_LOCAL.
        let link = u32::from_ne_bytes([l0, l1, l2, l3]);
        Ok(local.or(address).map(|ip| Address { link, ip, prefix_length }))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} on link {}", self.ip, self.prefix_length, self.link)
    }
}

fn ip(family: u8, attribute: &Attribute<'_>) -> Result<Option<IpAddr>, Malformed> {
    Ok(match family {
        AF_INET => Some(attribute.array::<4>()?.into()),
        AF_INET6 => Some(attribute.array::<16>()?.into()),
        _ => None,
    })
}

/// `ifaddrmsg`: family u8, prefix length u8, flags u8, scope u8, link index u32.
const HEADER: usize = 8;

pub(super) fn header(family: u8, prefix_length: u8, link: u32) -> [u8; HEADER] {
    let [l0, l1, l2, l3] = link.to_ne_bytes();
    [family, prefix_length, 0, 0, l0, l1, l2, l3]
}

#[cfg(test)]
mod tests {
    use super::super::wire::RTM_NEWADDR;
    use super::*;
    use crate::codec::{host, payload};

    fn decode(family: u8, fill: impl FnOnce(&mut Encoder)) -> Result<Option<Address>, Malformed> {
        let mut encoder = Encoder::new();
        encoder.put_raw(&header(family, 24, 3));
        fill(&mut encoder);
        let payload = encoder.bytes();
        Address::decode(&Message { kind: RTM_NEWADDR, flags: 0, sequence: 0, port_id: 0, payload })
    }

    #[test]
    fn the_link_index_and_flags_are_in_host_order() {
        let ip = IpAddr::V6("fd00::1".parse().unwrap());
        let mut encoder = Encoder::new();
        Address { link: 0x0102_0304, ip, prefix_length: 64 }.encode_new(&mut encoder);
        let bytes = encoder.bytes();
        assert_eq!(bytes[..HEADER], [&[10, 64, 0, 0][..], &host([1, 2, 3, 4])].concat());
        assert_eq!(payload(&bytes[HEADER..], &[IFA_FLAGS]), host([0, 0, 0, 2]));
        assert_eq!(payload(&bytes[HEADER..], &[IFA_LOCAL])[..3], [0xfd, 0, 0]);
    }

    #[test]
    fn the_local_end_counts_on_a_point_to_point_link() {
        let address = decode(AF_INET, |encoder| {
            encoder.put_bytes(IFA_ADDRESS, &[10, 0, 0, 2]);
            encoder.put_bytes(IFA_LOCAL, &[10, 0, 0, 1]);
        });
        let ip = IpAddr::from([10, 0, 0, 1]);
        assert_eq!(address, Ok(Some(Address { link: 3, ip, prefix_length: 24 })));
    }

    #[test]
    fn other_families_are_passed_over_and_wrong_sizes_are_not() {
        let four = |encoder: &mut Encoder| encoder.put_bytes(IFA_ADDRESS, &[1, 2, 3, 4]);
        assert_eq!(decode(45, four), Ok(None));
        assert_eq!(decode(AF_INET6, four), Err(Malformed::Size { expected: 16, found: 4 }));
    }
}
