//! Encodes and decodes local routes: addresses that the host treats as its own, although no link has them.
//! Knows no socket.

use std::fmt;
use std::net::IpAddr;

use super::wire::{
    LOOPBACK_INDEX, RT_SCOPE_HOST, RT_SCOPE_UNIVERSE, RT_TABLE_LOCAL, RTA_DST, RTA_OIF, RTN_LOCAL,
};
use super::{family, put_address};
use crate::codec::{Encoder, Malformed, Message};

/// `ip route add local ADDRESS dev lo table local proto PROTOCOL`
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LocalRoute {
    pub address: IpAddr,
    /// Identifies the program that added the route. The kernel only stores the number.
    pub protocol: u8,
}

/// The length of `rtmsg`.
pub(super) const HEADER: usize = 12;

impl LocalRoute {
    pub(super) fn encode(&self, encoder: &mut Encoder) {
        let mut header = [0; HEADER];
        header[0] = family(self.address);
        header[1] = whole(self.address);
        header[4] = RT_TABLE_LOCAL;
        header[5] = self.protocol;
        header[6] = if self.address.is_ipv4() { RT_SCOPE_HOST } else { RT_SCOPE_UNIVERSE };
        header[7] = RTN_LOCAL;
        encoder.put_raw(&header);
        put_address(encoder, RTA_DST, self.address);
        encoder.put_u32(RTA_OIF, LOOPBACK_INDEX);
    }

    /// `None` for other kinds of routes, and for routes to more than one address.
    pub(super) fn decode(message: &Message<'_>) -> Result<Option<LocalRoute>, Malformed> {
        let (header, attributes) = message.split::<HEADER>()?;
        let (length, table, protocol, kind) = (header[1], header[4], header[5], header[7]);
        let mut address: Option<IpAddr> = None;
        for attribute in attributes {
            let attribute = attribute?;
            if attribute.kind == RTA_DST {
                address = match length {
                    32 => attribute.array::<4>().ok().map(Into::into),
                    128 => attribute.array::<16>().ok().map(Into::into),
                    _ => None,
                };
            }
        }
        let is_local = (table, kind) == (RT_TABLE_LOCAL, RTN_LOCAL);
        Ok(address.filter(|_| is_local).map(|address| LocalRoute { address, protocol }))
    }
}

fn whole(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

impl fmt::Display for LocalRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "local {} dev lo", self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::RTM_NEWROUTE;
    use super::*;

    #[test]
    fn a_route_reads_back() {
        for address in ["192.0.0.8", "fd00::1"] {
            let route = LocalRoute { address: address.parse().unwrap(), protocol: 102 };
            let mut encoder = Encoder::new();
            route.encode(&mut encoder);
            let payload = encoder.bytes();
            let message = Message { kind: RTM_NEWROUTE, flags: 0, sequence: 0, port_id: 0, payload };
            assert_eq!(LocalRoute::decode(&message), Ok(Some(route)));
        }
    }
}
