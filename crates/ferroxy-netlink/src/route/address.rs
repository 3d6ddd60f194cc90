//! Addresses of links: add, remove, list. Whether an address is one of this node's is decided elsewhere.

use std::net::IpAddr;

use super::{AF_UNSPEC, Connection, family, put_address};
use crate::codec::{Attribute, Encoder, Malformed, Message, flag};
use crate::error::Error;
use crate::socket::Request;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// Index of the link that has it.
    pub link: u32,
    pub ip: IpAddr,
    pub prefix_length: u8,
}

impl Connection {
    /// Every address of every link of the namespace, loopback and link-local ones included.
    pub fn addresses(&mut self) -> Result<Vec<Address>, Error> {
        let request = Request { operation: "list addresses", object: "", kind: libc::RTM_GETADDR, flags: 0 };
        let answer = self.socket.dump(request, |encoder| encoder.put_raw(&header(AF_UNSPEC, 0, 0)))?;
        let addresses = answer.messages().filter_map(|message| match message {
            Ok(message) => Address::decode(&message).transpose(),
            Err(found) => Some(Err(found)),
        });
        addresses.collect::<Result<_, _>>().map_err(|found| Error::malformed(request.operation, "", found))
    }

    /// Usable at once: an IPv6 address is added without duplicate address detection, which would hold it back
    /// for a second or two.
    pub fn add_address(&mut self, address: Address) -> Result<(), Error> {
        let kind = libc::RTM_NEWADDR;
        self.change_address("add address", kind, flag::CREATE | flag::EXCL, address, |encoder| {
            if address.ip.is_ipv6() {
                encoder.put_u32(libc::IFA_FLAGS, libc::IFA_F_NODAD);
            }
        })
    }

    pub fn remove_address(&mut self, address: Address) -> Result<(), Error> {
        self.change_address("remove address", libc::RTM_DELADDR, 0, address, |_| {})
    }

    fn change_address(
        &mut self,
        operation: &'static str,
        kind: u16,
        flags: u16,
        address: Address,
        extra: impl FnOnce(&mut Encoder),
    ) -> Result<(), Error> {
        let object = format!("{}/{} on link {}", address.ip, address.prefix_length, address.link);
        let request = Request { operation, object: &object, kind, flags };
        self.socket.request(request, |encoder| {
            encoder.put_raw(&header(family(address.ip), address.prefix_length, address.link));
            put_address(encoder, libc::IFA_LOCAL, address.ip);
            // The same again, or IPv4 would take it for a point-to-point link to nowhere.
            put_address(encoder, libc::IFA_ADDRESS, address.ip);
            extra(encoder);
        })
    }
}

impl Address {
    /// None for an address of a family that is not IP (MCTP has such).
    pub(super) fn decode(message: &Message<'_>) -> Result<Option<Address>, Malformed> {
        let (header, attributes) = message.split::<HEADER>()?;
        let [family, prefix_length, _, _, l0, l1, l2, l3] = *header;
        let (mut local, mut address) = (None, None);
        for attribute in attributes {
            let attribute = attribute?;
            match attribute.kind {
                libc::IFA_LOCAL => local = ip(family, &attribute)?,
                libc::IFA_ADDRESS => address = ip(family, &attribute)?,
                _ => {}
            }
        }
        // On a point-to-point link IFA_ADDRESS is the other end; IPv6 has no IFA_LOCAL otherwise.
        let link = u32::from_ne_bytes([l0, l1, l2, l3]);
        Ok(local.or(address).map(|ip| Address { link, ip, prefix_length }))
    }
}

fn ip(family: u8, attribute: &Attribute<'_>) -> Result<Option<IpAddr>, Malformed> {
    Ok(match family {
        super::AF_INET => Some(attribute.array::<4>()?.into()),
        super::AF_INET6 => Some(attribute.array::<16>()?.into()),
        _ => None,
    })
}

/// `ifaddrmsg`: family u8, prefix length u8, flags u8, scope u8, link index u32.
const HEADER: usize = 8;

fn header(family: u8, prefix_length: u8, link: u32) -> [u8; HEADER] {
    let [l0, l1, l2, l3] = link.to_ne_bytes();
    [family, prefix_length, 0, 0, l0, l1, l2, l3]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(family: u8, fill: impl FnOnce(&mut Encoder)) -> Result<Option<Address>, Malformed> {
        let mut encoder = Encoder::new();
        encoder.put_raw(&header(family, 24, 3));
        fill(&mut encoder);
        let payload = encoder.bytes();
        Address::decode(&Message { kind: libc::RTM_NEWADDR, flags: 0, sequence: 0, port_id: 0, payload })
    }

    #[test]
    fn the_local_end_counts_on_a_point_to_point_link() {
        let address = decode(super::super::AF_INET, |encoder| {
            encoder.put_bytes(libc::IFA_ADDRESS, &[10, 0, 0, 2]);
            encoder.put_bytes(libc::IFA_LOCAL, &[10, 0, 0, 1]);
        });
        let ip = IpAddr::from([10, 0, 0, 1]);
        assert_eq!(address, Ok(Some(Address { link: 3, ip, prefix_length: 24 })));
    }

    #[test]
    fn other_families_are_passed_over_and_wrong_sizes_are_not() {
        let four = |encoder: &mut Encoder| encoder.put_bytes(libc::IFA_ADDRESS, &[1, 2, 3, 4]);
        assert_eq!(decode(45, four), Ok(None));
        assert_eq!(decode(super::super::AF_INET6, four), Err(Malformed::Size { expected: 16, found: 4 }));
    }
}
