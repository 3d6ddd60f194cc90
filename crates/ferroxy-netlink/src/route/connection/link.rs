//! Creates, changes, lists and deletes network devices. Creates the kinds that are used here: bridge, veth and dummy.

use std::os::fd::{AsRawFd, BorrowedFd};

use super::Connection;
use crate::codec::{Encoder, Malformed, flag};
use crate::error::Error;
use crate::numbers::{AF_BRIDGE, AF_UNSPEC};
use crate::route::link::{Link, header, put_header};
use crate::route::wire::{
    IFF_UP, IFLA_ADDRESS, IFLA_BRPORT_MODE, IFLA_IFNAME, IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_LINKINFO,
    IFLA_MASTER, IFLA_NET_NS_FD, IFLA_PROTINFO, RTM_DELLINK, RTM_GETLINK, RTM_NEWLINK, RTM_SETLINK,
    VETH_INFO_PEER,
};
use crate::socket::Request;

impl Connection {
    pub fn links(&mut self) -> Result<Vec<Link>, Error> {
        let request = Request { operation: "list links", object: "", kind: RTM_GETLINK, flags: 0 };
        let answer = self.socket.dump(request, |encoder| put_header(encoder, AF_UNSPEC, 0))?;
        let links = answer.messages().map(|message| Link::decode(&message?));
        links.collect::<Result<_, _>>().map_err(|found| Error::malformed(request.operation, "", found))
    }

    pub fn link(&mut self, name: &str) -> Result<Link, Error> {
        let request = Request { operation: "find link", object: name, kind: RTM_GETLINK, flags: 0 };
        let answer = self.socket.query(request, |encoder| {
            put_header(encoder, AF_UNSPEC, 0);
            encoder.put_str(IFLA_IFNAME, name);
        })?;
        let link = answer.messages().next().ok_or(Malformed::Missing { what: "link" });
        link.and_then(|message| Link::decode(&message?))
            .map_err(|found| Error::malformed(request.operation, name, found))
    }

    pub fn create_bridge(&mut self, name: &str) -> Result<(), Error> {
        self.create(name, "bridge", |_| {})
    }

    /// A device that drops all packets. Addresses on it belong to the host.
    pub fn create_dummy(&mut self, name: &str) -> Result<(), Error> {
        self.create(name, "dummy", |_| {})
    }

    /// A pair of devices: `name` in this namespace, `peer` in this one or in another.
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
            encoder.put_str(IFLA_IFNAME, peer);
            if let Some(namespace) = peer_namespace {
                put_namespace(encoder, namespace);
            }
            encoder.end_nested(end);
            encoder.end_nested(data);
        })
    }

    pub fn delete_link(&mut self, index: u32) -> Result<(), Error> {
        let object = index.to_string();
        let request = Request { operation: "delete link", object: &object, kind: RTM_DELLINK, flags: 0 };
        self.socket.request(request, |encoder| put_header(encoder, AF_UNSPEC, index))
    }

    /// Deletes the link and its addresses.
    pub fn delete_link_named(&mut self, name: &str) -> Result<(), Error> {
        let request = Request { operation: "delete link", object: name, kind: RTM_DELLINK, flags: 0 };
        self.socket.request(request, |encoder| {
            put_header(encoder, AF_UNSPEC, 0);
            encoder.put_str(IFLA_IFNAME, name);
        })
    }

    pub fn set_up(&mut self, index: u32) -> Result<(), Error> {
        self.set_flags("set up link", index, IFF_UP)
    }

    pub fn set_down(&mut self, index: u32) -> Result<(), Error> {
        self.set_flags("set down link", index, 0)
    }

    /// Makes the link a port of a bridge; `None` removes it from its bridge.
    pub fn set_master(&mut self, index: u32, bridge: Option<u32>) -> Result<(), Error> {
        self.set("set master of link", index, AF_UNSPEC, |encoder| {
            encoder.put_u32(IFLA_MASTER, bridge.unwrap_or(0));
        })
    }

    pub fn rename(&mut self, index: u32, name: &str) -> Result<(), Error> {
        self.set("rename link", index, AF_UNSPEC, |encoder| encoder.put_str(IFLA_IFNAME, name))
    }

    pub fn set_mac(&mut self, index: u32, mac: [u8; 6]) -> Result<(), Error> {
        self.set("set address of link", index, AF_UNSPEC, |encoder| {
            encoder.put_bytes(IFLA_ADDRESS, &mac);
        })
    }

    /// After the move, the link is down and has no addresses.
    pub fn move_to_namespace(&mut self, index: u32, namespace: BorrowedFd<'_>) -> Result<(), Error> {
        self.set("move link", index, AF_UNSPEC, |encoder| put_namespace(encoder, namespace))
    }

    /// Hairpin mode lets a bridge port send a packet back out of the port it came in by: a pod that reaches itself through a Service.
    pub fn set_hairpin(&mut self, index: u32, on: bool) -> Result<(), Error> {
        self.set("set hairpin mode of link", index, AF_BRIDGE, |encoder| {
            let port = encoder.begin_nested(IFLA_PROTINFO);
            encoder.put_u8(IFLA_BRPORT_MODE, u8::from(on));
            encoder.end_nested(port);
        })
    }

    fn create(&mut self, name: &str, kind: &str, data: impl FnOnce(&mut Encoder)) -> Result<(), Error> {
        let flags = flag::CREATE | flag::EXCL;
        let request = Request { operation: "create link", object: name, kind: RTM_NEWLINK, flags };
        self.socket.request(request, |encoder| {
            put_header(encoder, AF_UNSPEC, 0);
            encoder.put_str(IFLA_IFNAME, name);
            let info = encoder.begin_nested(IFLA_LINKINFO);
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
        let request = Request { operation, object: &object, kind: RTM_SETLINK, flags: 0 };
        self.socket.request(request, |encoder| {
            put_header(encoder, family, index);
            attributes(encoder);
        })
    }

    /// Changes IFF_UP and no other flag.
    fn set_flags(&mut self, operation: &'static str, index: u32, flags: u32) -> Result<(), Error> {
        let object = index.to_string();
        let request = Request { operation, object: &object, kind: RTM_SETLINK, flags: 0 };
        self.socket.request(request, |encoder| {
            encoder.put_raw(&header(AF_UNSPEC, index, flags, IFF_UP));
        })
    }
}

/// The kernel resolves the file descriptor while it processes the request.
fn put_namespace(encoder: &mut Encoder, namespace: BorrowedFd<'_>) {
    encoder.put_bytes(IFLA_NET_NS_FD, &namespace.as_raw_fd().to_ne_bytes());
}
