//! Decodes network devices. Knows no socket.

use super::wire::{
    IF_OPER_UP, IFF_UP, IFLA_ADDRESS, IFLA_BRPORT_MODE, IFLA_IFNAME, IFLA_INFO_KIND, IFLA_INFO_SLAVE_DATA,
    IFLA_INFO_SLAVE_KIND, IFLA_LINKINFO, IFLA_MASTER, IFLA_OPERSTATE,
};
use crate::codec::{Attributes, Encoder, Malformed, Message};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    pub name: String,
    /// `veth`, `bridge`, …; hardware and loopback have none.
    pub kind: Option<String>,
    /// Set up by its administrator (IFF_UP), whether or not there is a carrier.
    pub up: bool,
    /// RFC 2863 "up": packets pass. The kernel sets this in the background, some time after the carrier is there; bridge ports
    /// and queues only work from then on.
    pub operational: bool,
    /// The bridge that this link is a port of.
    pub master: Option<u32>,
    pub mac: Option<[u8; 6]>,
    /// For a bridge port: hairpin mode, which lets it send a packet back out of the port it came in by.
    pub hairpin: Option<bool>,
}

impl Link {
    pub(super) fn decode(message: &Message<'_>) -> Result<Link, Malformed> {
        let (header, attributes) = message.split::<HEADER>()?;
        let [_, _, _, _, i0, i1, i2, i3, f0, f1, f2, f3, ..] = *header;
        let flags = u32::from_ne_bytes([f0, f1, f2, f3]);
        let mut link = Link {
            index: u32::from_ne_bytes([i0, i1, i2, i3]),
            name: String::new(),
            kind: None,
            up: flags & IFF_UP != 0,
            operational: false,
            master: None,
            mac: None,
            hairpin: None,
        };
        for attribute in attributes {
            let attribute = attribute?;
            match attribute.kind {
                IFLA_IFNAME => link.name = attribute.str()?.to_owned(),
                IFLA_OPERSTATE => link.operational = attribute.u8()? == IF_OPER_UP,
                IFLA_MASTER => link.master = Some(attribute.u32()?),
                // Tunnels have addresses of other sizes: not MACs.
                IFLA_ADDRESS => link.mac = attribute.array().ok(),
                IFLA_LINKINFO => link.decode_info(attribute.nested())?,
                _ => {}
            }
        }
        if link.name.is_empty() {
            return Err(Malformed::Missing { what: "link name" });
        }
        Ok(link)
    }

    fn decode_info(&mut self, info: Attributes<'_>) -> Result<(), Malformed> {
        let mut bridge_port = None;
        let mut of_a_bridge = false;
        for attribute in info {
            let attribute = attribute?;
            match attribute.kind {
                IFLA_INFO_KIND => self.kind = Some(attribute.str()?.to_owned()),
                IFLA_INFO_SLAVE_KIND => of_a_bridge = attribute.str()? == "bridge",
                IFLA_INFO_SLAVE_DATA => bridge_port = Some(attribute.nested()),
                _ => {}
            }
        }
        // A bond's or a VRF's port data has the same numbers with other meanings.
        for attribute in bridge_port.filter(|_| of_a_bridge).into_iter().flatten() {
            let attribute = attribute?;
            if attribute.kind == IFLA_BRPORT_MODE {
                self.hairpin = Some(attribute.u8()? != 0);
            }
        }
        Ok(())
    }
}

/// `ifinfomsg`: family u8, unused u8, device type u16, index i32, flags u32, mask of flags to change u32.
const HEADER: usize = 16;

pub(super) fn header(family: u8, index: u32, flags: u32, change: u32) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[0] = family;
    bytes[4..8].copy_from_slice(&index.to_ne_bytes());
    bytes[8..12].copy_from_slice(&flags.to_ne_bytes());
    bytes[12..].copy_from_slice(&change.to_ne_bytes());
    bytes
}

pub(super) fn put_header(encoder: &mut Encoder, family: u8, index: u32) {
    encoder.put_raw(&header(family, index, 0, 0));
}

#[cfg(test)]
mod tests {
    use super::super::wire::RTM_NEWLINK;
    use super::*;
    use crate::codec::host;
    use crate::numbers::AF_UNSPEC;

    fn decode(fill: impl FnOnce(&mut Encoder)) -> Result<Link, Malformed> {
        let mut encoder = Encoder::new();
        encoder.put_raw(&header(AF_UNSPEC, 7, IFF_UP, 0));
        fill(&mut encoder);
        let payload = encoder.bytes();
        Link::decode(&Message { kind: RTM_NEWLINK, flags: 0, sequence: 0, port_id: 0, payload })
    }

    fn port_of(master_kind: &str) -> Result<Link, Malformed> {
        decode(|encoder| {
            encoder.put_str(IFLA_IFNAME, "vetha1");
            let info = encoder.begin_nested(IFLA_LINKINFO);
            let data = encoder.begin_nested(IFLA_INFO_SLAVE_DATA);
            encoder.put_u8(IFLA_BRPORT_MODE, 1);
            encoder.end_nested(data);
            encoder.put_str(IFLA_INFO_SLAVE_KIND, master_kind);
            encoder.end_nested(info);
        })
    }

    #[test]
    fn hairpin_mode_is_read_from_bridge_ports_only() {
        let link = port_of("bridge").unwrap();
        assert_eq!((link.index, link.up, link.hairpin), (7, true, Some(true)));
        assert_eq!(port_of("bond").unwrap().hairpin, None);
    }

    #[test]
    fn the_header_is_in_host_order() {
        let expected = [[7, 0, 0, 0], host([1, 2, 3, 4]), host([0, 0, 0, 1]), host([0, 0, 0, 2])];
        assert_eq!(header(7, 0x0102_0304, 1, 2), *expected.concat());
    }

    #[test]
    fn a_link_without_a_name_is_malformed() {
        assert_eq!(decode(|_| {}), Err(Malformed::Missing { what: "link name" }));
    }

    #[test]
    fn a_hardware_address_of_another_size_is_no_mac() {
        let link = decode(|encoder| {
            encoder.put_str(IFLA_IFNAME, "tunl0");
            encoder.put_bytes(IFLA_ADDRESS, &[10, 0, 0, 1]);
        });
        assert_eq!(link.unwrap().mac, None);
    }
}
