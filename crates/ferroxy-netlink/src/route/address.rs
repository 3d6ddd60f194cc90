//! Addresses of links: add, remove, list. Whether an address is one of this node's is decided elsewhere.

use std::fmt;
use std::net::IpAddr;

use super::{AF_UNSPEC, Connection, family, put_address};
use crate::codec::{Attribute, Encoder, Malformed, Message, flag};
use crate::error::Error;
use crate::requests::{Refused, Requests};
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
        self.list_addresses(0)
    }

    /// Every address of one link.
    pub fn addresses_of(&mut self, link: u32) -> Result<Vec<Address>, Error> {
        let mut addresses = self.list_addresses(link)?;
        // Kernels before 4.20 list those of all links whatever they are asked.
        addresses.retain(|address| address.link == link);
        Ok(addresses)
    }

    fn list_addresses(&mut self, link: u32) -> Result<Vec<Address>, Error> {
        let request = Request { operation: "list addresses", object: "", kind: libc::RTM_GETADDR, flags: 0 };
        let answer = self.socket.dump(request, |encoder| encoder.put_raw(&header(AF_UNSPEC, 0, link)))?;
        let addresses = answer.messages().filter_map(|message| match message {
            Ok(message) => Address::decode(&message).transpose(),
            Err(found) => Some(Err(found)),
        });
        addresses.collect::<Result<_, _>>().map_err(|found| Error::malformed(request.operation, "", found))
    }

    /// Usable at once: an IPv6 address is added without duplicate address detection, which would hold it back
    /// for a second or two.
    pub fn add_address(&mut self, address: Address) -> Result<(), Error> {
        let object = address.to_string();
        let request = Request { operation: ADD, object: &object, kind: libc::RTM_NEWADDR, flags: TO_ADD };
        self.socket.request(request, |encoder| address.encode_new(encoder))
    }

    pub fn remove_address(&mut self, address: Address) -> Result<(), Error> {
        let object = address.to_string();
        let request = Request { operation: REMOVE, object: &object, kind: libc::RTM_DELADDR, flags: 0 };
        self.socket.request(request, |encoder| address.encode(encoder))
    }

    /// Many at once; those that are refused (EEXIST: there already) are told of, and keep no other.
    pub fn add_addresses(&mut self, addresses: &[Address]) -> Result<Vec<Refused>, Error> {
        self.change_addresses(ADD, libc::RTM_NEWADDR, TO_ADD, addresses, Address::encode_new)
    }

    /// Many at once; those that are refused (EADDRNOTAVAIL: not there) are told of, and keep no other.
    pub fn remove_addresses(&mut self, addresses: &[Address]) -> Result<Vec<Refused>, Error> {
        self.change_addresses(REMOVE, libc::RTM_DELADDR, 0, addresses, Address::encode)
    }

    fn change_addresses(
        &mut self,
        operation: &'static str,
        kind: u16,
        flags: u16,
        addresses: &[Address],
        encode: fn(&Address, &mut Encoder),
    ) -> Result<Vec<Refused>, Error> {
        let mut requests = Requests::default();
        addresses.iter().for_each(|address| requests.push(kind, flags, |encoder| encode(address, encoder)));
        let mut refused = Vec::new();
        self.socket.carry_out(operation, &requests, &mut |index, ack, _| {
            if let (Some(errno), Some(address)) = (ack.errno, addresses.get(index)) {
                let error = Error::refused(operation, address.to_string(), errno).explained(ack.words);
                refused.push(Refused { index, error });
            }
        })?;
        Ok(refused)
    }
}

/// What is tried, for errors.
const ADD: &str = "add address";
const REMOVE: &str = "remove address";

/// One that is there already is refused.
const TO_ADD: u16 = flag::CREATE | flag::EXCL;

impl Address {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.put_raw(&header(family(self.ip), self.prefix_length, self.link));
        put_address(encoder, libc::IFA_LOCAL, self.ip);
        // The same again, or IPv4 would take it for a point-to-point link to nowhere.
        put_address(encoder, libc::IFA_ADDRESS, self.ip);
    }

    fn encode_new(&self, encoder: &mut Encoder) {
        self.encode(encoder);
        if self.ip.is_ipv6() {
            encoder.put_u32(libc::IFA_FLAGS, libc::IFA_F_NODAD);
        }
    }

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

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} on link {}", self.ip, self.prefix_length, self.link)
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
