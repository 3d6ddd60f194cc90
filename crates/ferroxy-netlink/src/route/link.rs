//! Network devices: make, set, list, remove. Makes the kinds that are used here: bridge, veth and dummy.

use std::os::fd::{AsRawFd, BorrowedFd};

use super::{AF_BRIDGE, AF_UNSPEC, Connection};
use crate::codec::{Attributes, Encoder, Malformed, Message, flag};
use crate::error::Error;
use crate::socket::Request;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    pub name: String,
    /// `veth`, `bridge`, …; hardware and loopback have none.
    pub kind: Option<String>,
    /// Set up by its administrator (IFF_UP), whether or not there is a carrier.
    pub up: bool,
    /// Packets go through it (RFC 2863 "up"). The kernel finds that out some time after the carrier came, in the
    /// background, and a bridge port or a queue only starts to work then.
    pub operational: bool,
    /// The bridge this is a port of.
    pub master: Option<u32>,
    pub mac: Option<[u8; 6]>,
    /// For a bridge port: may send a packet back out of the port it came in by.
    pub hairpin: Option<bool>,
}

impl Connection {
    pub fn links(&mut self) -> Result<Vec<Link>, Error> {
        let request = Request { operation: "list links", object: "", kind: libc::RTM_GETLINK, flags: 0 };
        let answer = self.socket.dump(request, |encoder| put_header(encoder, AF_UNSPEC, 0))?;
        let links = answer.messages().map(|message| Link::decode(&message?));
        links.collect::<Result<_, _>>().map_err(|found| Error::malformed(request.operation, "", found))
    }

    pub fn link(&mut self, name: &str) -> Result<Link, Error> {
        let request = Request { operation: "find link", object: name, kind: libc::RTM_GETLINK, flags: 0 };
        let answer = self.socket.query(request, |encoder| {
            put_header(encoder, AF_UNSPEC, 0);
            encoder.put_str(libc::IFLA_IFNAME, name);
        })?;
        let link = answer.messages().next().ok_or(Malformed::Missing { what: "link" });
        link.and_then(|message| Link::decode(&message?))
            .map_err(|found| Error::malformed(request.operation, name, found))
    }

    pub fn create_bridge(&mut self, name: &str) -> Result<(), Error> {
        self.create(name, "bridge", |_| {})
    }

    /// A device that leads nowhere: addresses that shall be the host's own are put there.
    pub fn create_dummy(&mut self, name: &str) -> Result<(), Error> {
        self.create(name, "dummy", |_| {})
    }

    /// A cable with two ends: `name` here, `peer` here too or in another namespace.
    pub fn create_veth(
        &mut self,
        name: &str,
        peer: &str,
        peer_namespace: Option<BorrowedFd<'_>>,
    ) -> Result<(), Error> {
        self.create(name, "veth", |encoder| {
            let data = encoder.begin_nested(IFLA_INFO_DATA);
            let end = encoder.begin_nested(VETH_INFO_PEER);
            put_header(encoder, AF_UNSPEC, 0);
            encoder.put_str(libc::IFLA_IFNAME, peer);
            if let Some(namespace) = peer_namespace {
                put_namespace(encoder, namespace);
            }
            encoder.end_nested(end);
            encoder.end_nested(data);
        })
    }

    pub fn delete_link(&mut self, index: u32) -> Result<(), Error> {
        let object = index.to_string();
        let request =
            Request { operation: "delete link", object: &object, kind: libc::RTM_DELLINK, flags: 0 };
        self.socket.request(request, |encoder| put_header(encoder, AF_UNSPEC, index))
    }

    /// With its addresses.
    pub fn delete_link_named(&mut self, name: &str) -> Result<(), Error> {
        let request = Request { operation: "delete link", object: name, kind: libc::RTM_DELLINK, flags: 0 };
        self.socket.request(request, |encoder| {
            put_header(encoder, AF_UNSPEC, 0);
            encoder.put_str(libc::IFLA_IFNAME, name);
        })
    }

    pub fn set_up(&mut self, index: u32) -> Result<(), Error> {
        self.set_flags("set up link", index, libc::IFF_UP as u32)
    }

    pub fn set_down(&mut self, index: u32) -> Result<(), Error> {
        self.set_flags("set down link", index, 0)
    }

    /// Plugs the link into a bridge; `None` pulls it out.
    pub fn set_master(&mut self, index: u32, bridge: Option<u32>) -> Result<(), Error> {
        self.set("set master of link", index, AF_UNSPEC, |encoder| {
            encoder.put_u32(libc::IFLA_MASTER, bridge.unwrap_or(0));
        })
    }

    pub fn rename(&mut self, index: u32, name: &str) -> Result<(), Error> {
        self.set("rename link", index, AF_UNSPEC, |encoder| encoder.put_str(libc::IFLA_IFNAME, name))
    }

    pub fn set_mac(&mut self, index: u32, mac: [u8; 6]) -> Result<(), Error> {
        self.set("set address of link", index, AF_UNSPEC, |encoder| {
            encoder.put_bytes(libc::IFLA_ADDRESS, &mac);
        })
    }

    /// The link loses its addresses and is down when it arrives.
    pub fn move_to_namespace(&mut self, index: u32, namespace: BorrowedFd<'_>) -> Result<(), Error> {
        self.set("move link", index, AF_UNSPEC, |encoder| put_namespace(encoder, namespace))
    }

    /// Lets a bridge port send a packet back where it came from: a pod reaching itself through a Service.
    pub fn set_hairpin(&mut self, index: u32, on: bool) -> Result<(), Error> {
        self.set("set hairpin mode of link", index, AF_BRIDGE, |encoder| {
            let port = encoder.begin_nested(libc::IFLA_PROTINFO);
            encoder.put_u8(IFLA_BRPORT_MODE, u8::from(on));
            encoder.end_nested(port);
        })
    }

    fn create(&mut self, name: &str, kind: &str, data: impl FnOnce(&mut Encoder)) -> Result<(), Error> {
        let flags = flag::CREATE | flag::EXCL;
        let request = Request { operation: "create link", object: name, kind: libc::RTM_NEWLINK, flags };
        self.socket.request(request, |encoder| {
            put_header(encoder, AF_UNSPEC, 0);
            encoder.put_str(libc::IFLA_IFNAME, name);
            let info = encoder.begin_nested(libc::IFLA_LINKINFO);
            encoder.put_str(IFLA_INFO_KIND, kind);
            data(encoder);
            encoder.end_nested(info);
        })
    }

    fn set(
        &mut self,
        operation: &'static str,
        index: u32,
        family: u8,
        attributes: impl FnOnce(&mut Encoder),
    ) -> Result<(), Error> {
        let object = index.to_string();
        let request = Request { operation, object: &object, kind: libc::RTM_SETLINK, flags: 0 };
        self.socket.request(request, |encoder| {
            put_header(encoder, family, index);
            attributes(encoder);
        })
    }

    /// Changes IFF_UP and leaves every other flag alone.
    fn set_flags(&mut self, operation: &'static str, index: u32, flags: u32) -> Result<(), Error> {
        let object = index.to_string();
        let request = Request { operation, object: &object, kind: libc::RTM_SETLINK, flags: 0 };
        self.socket.request(request, |encoder| {
            encoder.put_raw(&header(AF_UNSPEC, index, flags, libc::IFF_UP as u32));
        })
    }
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
            up: flags & libc::IFF_UP as u32 != 0,
            operational: false,
            master: None,
            mac: None,
            hairpin: None,
        };
        for attribute in attributes {
            let attribute = attribute?;
            match attribute.kind {
                libc::IFLA_IFNAME => link.name = attribute.str()?.to_owned(),
                libc::IFLA_OPERSTATE => link.operational = attribute.u8()? == IF_OPER_UP,
                libc::IFLA_MASTER => link.master = Some(attribute.u32()?),
                // Tunnels have addresses of other sizes: not MACs.
                libc::IFLA_ADDRESS => link.mac = attribute.array().ok(),
                libc::IFLA_LINKINFO => link.decode_info(attribute.nested())?,
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

fn header(family: u8, index: u32, flags: u32, change: u32) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[0] = family;
    bytes[4..8].copy_from_slice(&index.to_ne_bytes());
    bytes[8..12].copy_from_slice(&flags.to_ne_bytes());
    bytes[12..].copy_from_slice(&change.to_ne_bytes());
    bytes
}

fn put_header(encoder: &mut Encoder, family: u8, index: u32) {
    encoder.put_raw(&header(family, index, 0, 0));
}

/// A namespace is named by a descriptor of the sending process; the kernel resolves it while we wait.
fn put_namespace(encoder: &mut Encoder, namespace: BorrowedFd<'_>) {
    encoder.put_bytes(libc::IFLA_NET_NS_FD, &namespace.as_raw_fd().to_ne_bytes());
}

// From linux/if.h, linux/if_link.h and linux/veth.h, where libc has no such names.
const IF_OPER_UP: u8 = 6;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_INFO_SLAVE_KIND: u16 = 4;
const IFLA_INFO_SLAVE_DATA: u16 = 5;
const IFLA_BRPORT_MODE: u16 = 4;
const VETH_INFO_PEER: u16 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(fill: impl FnOnce(&mut Encoder)) -> Result<Link, Malformed> {
        let mut encoder = Encoder::new();
        encoder.put_raw(&header(AF_UNSPEC, 7, libc::IFF_UP as u32, 0));
        fill(&mut encoder);
        let payload = encoder.bytes();
        Link::decode(&Message { kind: libc::RTM_NEWLINK, flags: 0, sequence: 0, port_id: 0, payload })
    }

    fn port_of(master_kind: &str) -> Result<Link, Malformed> {
        decode(|encoder| {
            encoder.put_str(libc::IFLA_IFNAME, "vetha1");
            let info = encoder.begin_nested(libc::IFLA_LINKINFO);
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
    fn a_link_without_a_name_is_malformed() {
        assert_eq!(decode(|_| {}), Err(Malformed::Missing { what: "link name" }));
    }

    #[test]
    fn a_hardware_address_of_another_size_is_no_mac() {
        let link = decode(|encoder| {
            encoder.put_str(libc::IFLA_IFNAME, "tunl0");
            encoder.put_bytes(libc::IFLA_ADDRESS, &[10, 0, 0, 1]);
        });
        assert_eq!(link.unwrap().mac, None);
    }
}
