//! What several Services can need at once: elements of shared sets, and chains. In as little memory as possible: every Service has
//! at least one, its cluster IP.

use std::net::{IpAddr, Ipv4Addr};

use ferroxy_core::{Family, Protocol};

use crate::chain::ChainId;
use crate::element::{Element, Key, SetId, address_from, member};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Shared {
    ClusterIp(IpAddr),
    StickyAddress(IpAddr),
    /// A pod, and where it answers.
    Hairpin(IpAddr, Protocol, u16),
    Chain(Family, ChainId),
}

impl Shared {
    /// The element with this key; `None` if it belongs to one Service only.
    pub(crate) fn of(set: SetId, key: &Key) -> Option<Shared> {
        let bytes = key.as_bytes();
        match set {
            SetId::ClusterIps => address_from(bytes).map(Shared::ClusterIp),
            SetId::StickyAddresses => address_from(bytes).map(Shared::StickyAddress),
            SetId::Hairpins => {
                // Twice the address, then four bytes for each of the others.
                let (addresses, rest) = bytes.split_at_checked(bytes.len().checked_sub(8)?)?;
                let (from, to) = addresses.split_at(addresses.len() / 2);
                let address = address_from(from).filter(|_| from == to)?;
                let [protocol, _, _, _, high, low, ..] = rest else { return None };
                let protocol = Protocol::from_number(*protocol)?;
                Some(Shared::Hairpin(address, protocol, u16::from_be_bytes([*high, *low])))
            }
            _ => None,
        }
    }

    /// `None` for a chain.
    pub(crate) fn element(self) -> Option<(Family, Element)> {
        let (set, address, key) = match self {
            Shared::ClusterIp(address) => (SetId::ClusterIps, address, Key::EMPTY.address(address)),
            Shared::StickyAddress(address) => (SetId::StickyAddresses, address, Key::EMPTY.address(address)),
            Shared::Hairpin(address, protocol, port) => {
                let key = Key::EMPTY.address(address).address(address).protocol(protocol).port(port);
                (SetId::Hairpins, address, key)
            }
            Shared::Chain(..) => return None,
        };
        Some((Family::of(address), member(set, key)))
    }

    /// What is on an IPv4 address has one, and different things have different ones.
    pub(crate) fn number(self) -> Option<u64> {
        let parts = |kind: u64, address: IpAddr, port: u16, protocol: u8| match address {
            IpAddr::V4(v4) => {
                Some(kind << 56 | u64::from(v4.to_bits()) << 24 | u64::from(port) << 8 | u64::from(protocol))
            }
            IpAddr::V6(_) => None,
        };
        match self {
            Shared::ClusterIp(address) => parts(0, address, 0, 0),
            Shared::StickyAddress(address) => parts(1, address, 0, 0),
            Shared::Hairpin(address, protocol, port) => parts(2, address, port, protocol.number()),
            Shared::Chain(..) => None,
        }
    }

    pub(crate) fn from_number(number: u64) -> Option<Shared> {
        let address = Ipv4Addr::from_bits((number >> 24) as u32).into();
        match number >> 56 {
            0 => Some(Shared::ClusterIp(address)),
            1 => Some(Shared::StickyAddress(address)),
            2 => Some(Shared::Hairpin(address, Protocol::from_number(number as u8)?, (number >> 8) as u16)),
            _ => None,
        }
    }

    /// Whether it stays in the kernel, unused, until the next tidying. A chain may be needed again soon. Hairpins are matched last
    /// of all, when a commit may already have removed the endpoint to which the packet is on its way.
    pub(crate) fn lingers(self) -> bool {
        matches!(self, Shared::Chain(..) | Shared::Hairpin(..))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_elements_read_back() {
        for address in ["10.96.0.80", "2001:db8::1"].map(|text| text.parse::<IpAddr>().unwrap()) {
            for shared in [
                Shared::ClusterIp(address),
                Shared::StickyAddress(address),
                Shared::Hairpin(address, Protocol::Udp, 8080),
            ] {
                let (family, element) = shared.element().unwrap();
                assert_eq!(family, Family::of(address));
                assert_eq!(Shared::of(element.set, &element.key), Some(shared));
                assert_eq!(shared.number().is_some(), address.is_ipv4());
                assert_eq!(
                    shared.number().and_then(Shared::from_number),
                    address.is_ipv4().then_some(shared)
                );
            }
        }
        let [one, other] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
        let strange = Key::EMPTY.address(one).address(other).protocol(Protocol::Udp).port(80);
        assert_eq!(Shared::of(SetId::Hairpins, &strange), None);
        assert_eq!(Shared::of(SetId::Hairpins, &Key::EMPTY), None);
        assert_eq!(Shared::of(SetId::SoleEndpoints, &Key::EMPTY), None);
    }
}
