//! Routes of the main table, to messages. Knows no socket.

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
    /// Index of the link to leave by; found from the gateway when not given.
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
    // IPv4 needs to know that a destination is on the link itself; IPv6 does not care.
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
