//! Encodes routes of the main table. Knows no socket.

use std::fmt;
use std::net::IpAddr;

use super::wire::{
    RT_SCOPE_LINK, RT_SCOPE_UNIVERSE, RT_TABLE_MAIN, RTA_DST, RTA_GATEWAY, RTA_OIF, RTN_UNICAST,
    RTPROT_STATIC,
};
use super::{family, put_address};
use crate::codec::Encoder;

/// A unicast route. It needs a gateway, a link, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// With prefix length 0 this is the default route of the address's family.
    pub destination: IpAddr,
    pub prefix_length: u8,
    pub gateway: Option<IpAddr>,
    /// Index of the outgoing link. Without it, the kernel derives the link from the gateway.
    pub link: Option<u32>,
}

impl Route {
    pub(super) fn encode(&self, encoder: &mut Encoder) {
        encoder.put_raw(&header(self));
        if self.prefix_length > 0 {
            put_address(encoder, RTA_DST, self.destination);
        }
        if let Some(gateway) = self.gateway {
            put_address(encoder, RTA_GATEWAY, gateway);
        }
        if let Some(link) = self.link {
            encoder.put_u32(RTA_OIF, link);
        }
    }
}

/// `rtmsg`: family, destination and source prefix lengths, type of service, table, protocol, scope, route type (u8 each),
/// flags u32.
fn header(route: &Route) -> [u8; 12] {
    // IPv4 requires link scope if the destination is on the link itself; IPv6 ignores the scope.
    let scope = if route.gateway.is_some() { RT_SCOPE_UNIVERSE } else { RT_SCOPE_LINK };
    let mut bytes = [0; 12];
    bytes[0] = family(route.destination);
    bytes[1] = route.prefix_length;
    bytes[4] = RT_TABLE_MAIN;
    bytes[5] = RTPROT_STATIC;
    bytes[6] = scope;
    bytes[7] = RTN_UNICAST;
    bytes
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.destination, self.prefix_length)?;
        if let Some(gateway) = self.gateway {
            write!(f, " via {gateway}")?;
        }
        if let Some(link) = self.link {
            write!(f, " on link {link}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{host, payload};

    #[test]
    fn a_route_is_encoded_as_the_kernel_reads_it() {
        let (destination, gateway) = (IpAddr::from([10, 96, 0, 0]), Some(IpAddr::from([10, 0, 0, 1])));
        let mut encoder = Encoder::new();
        Route { destination, prefix_length: 16, gateway, link: Some(0x0102_0304) }.encode(&mut encoder);
        let (header, attributes) = encoder.bytes().split_at(12);
        assert_eq!(header, [2, 16, 0, 0, 254, 4, 0, 1, 0, 0, 0, 0]);
        assert_eq!(payload(attributes, &[RTA_DST]), [10, 96, 0, 0]);
        assert_eq!(payload(attributes, &[RTA_GATEWAY]), [10, 0, 0, 1]);
        assert_eq!(payload(attributes, &[RTA_OIF]), host([1, 2, 3, 4]));
    }
}
