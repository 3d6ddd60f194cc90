//! Routes of the main table: add and remove, nothing else.

use std::fmt;
use std::net::IpAddr;

use super::{Connection, family, put_address};
use crate::codec::flag;
use crate::error::Error;
use crate::socket::Request;

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

impl Connection {
    pub fn add_route(&mut self, route: Route) -> Result<(), Error> {
        self.change_route("add route", libc::RTM_NEWROUTE, flag::CREATE | flag::EXCL, route)
    }

    pub fn remove_route(&mut self, route: Route) -> Result<(), Error> {
        self.change_route("remove route", libc::RTM_DELROUTE, 0, route)
    }

    fn change_route(
        &mut self,
        operation: &'static str,
        kind: u16,
        flags: u16,
        route: Route,
    ) -> Result<(), Error> {
        let object = route.to_string();
        let request = Request { operation, object: &object, kind, flags };
        self.socket.request(request, |encoder| {
            encoder.put_raw(&header(&route));
            if route.prefix_length > 0 {
                put_address(encoder, libc::RTA_DST, route.destination);
            }
            if let Some(gateway) = route.gateway {
                put_address(encoder, libc::RTA_GATEWAY, gateway);
            }
            if let Some(link) = route.link {
                encoder.put_u32(libc::RTA_OIF, link);
            }
        })
    }
}

/// `rtmsg`: family, destination and source prefix lengths, type of service, table, who made it, scope, route
/// type (u8 each), flags u32.
fn header(route: &Route) -> [u8; 12] {
    // IPv4 wants to be told that a destination is on the link itself; IPv6 does not care.
    let scope = if route.gateway.is_some() { libc::RT_SCOPE_UNIVERSE } else { libc::RT_SCOPE_LINK };
    let mut bytes = [0; 12];
    bytes[0] = family(route.destination);
    bytes[1] = route.prefix_length;
    bytes[4] = libc::RT_TABLE_MAIN;
    bytes[5] = libc::RTPROT_STATIC;
    bytes[6] = scope;
    bytes[7] = libc::RTN_UNICAST;
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
