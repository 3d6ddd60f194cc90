//! The elements of our sets: keys and values as types, and as the bytes that the kernel stores.
//!
//! A key is the bytes the kernel compares: each field padded to four bytes, addresses and ports in network order.
//! `program.rs` explains what the sets are for.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ferroxy_core::Protocol;
use ferroxy_netlink::nftables::{DataRef, VerdictRef};

use crate::chain::{ChainId, Pool, Treatment};
use crate::part::Part;

/// Endpoints for traffic policy Local are in the same map as the others; their slots start here.
pub const LOCAL_SLOTS: u32 = 1_000_000;

/// How a frontend is looked up: by address and port, or, for node ports, by the port only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    Address,
    NodePort,
}

impl Scope {
    pub const ALL: [Scope; 2] = [Scope::Address, Scope::NodePort];

    pub fn prefix(self) -> &'static str {
        match self {
            Scope::Address => "",
            Scope::NodePort => "nodeport-",
        }
    }
}

/// What the elements of a traffic set count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Counted {
    /// The first packet of each connection.
    Connections,
    /// Packets from clients to endpoints.
    Received,
    /// Packets from endpoints to clients.
    Sent,
}

impl Counted {
    pub const ALL: [Counted; 3] = [Counted::Connections, Counted::Received, Counted::Sent];
}

/// Every set of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SetId {
    ClusterIps,
    NodePortIps,
    Firewalled,
    AllowedSources,
    Hairpins,
    /// Cluster IPs with one endpoint and no affinity: they need no pick, so no treatment.
    SoleEndpoints,
    Treatments(Pool),
    Frontends(Scope),
    LocalFrontends(Scope),
    NoEndpoints(Scope),
    NoLocalEndpoints(Scope),
    /// In parts, because the largest set decides what a listing costs: see `part.rs`.
    Endpoints(Scope, Part),
    StickyEndpoints(Scope),
    StickyLocalEndpoints(Scope),
    /// All addresses in those two, of every scope: one cheap lookup excludes packets without affinity.
    StickyAddresses,
    /// The Service port of a frontend with session affinity, as a number: a client has one endpoint for all its frontends.
    StickyPorts(Scope),
    Affinity,
    AffinityTimeouts(Scope),
    /// Exists only while traffic is counted.
    Traffic(Counted),
}

impl SetId {
    pub fn all() -> impl Iterator<Item = SetId> {
        let single = [
            SetId::ClusterIps,
            SetId::NodePortIps,
            SetId::Firewalled,
            SetId::AllowedSources,
            SetId::Hairpins,
            SetId::StickyAddresses,
            SetId::Affinity,
            SetId::SoleEndpoints,
            SetId::Treatments(Pool::Main),
            SetId::Treatments(Pool::Local),
        ];
        let scoped: [fn(Scope) -> SetId; 8] = [
            SetId::Frontends,
            SetId::LocalFrontends,
            SetId::NoEndpoints,
            SetId::NoLocalEndpoints,
            SetId::StickyEndpoints,
            SetId::StickyLocalEndpoints,
            SetId::AffinityTimeouts,
            SetId::StickyPorts,
        ];
        let scoped = Scope::ALL.into_iter().flat_map(move |scope| scoped.map(|of| of(scope)));
        let endpoints = Scope::ALL
            .into_iter()
            .flat_map(|scope| Part::all().map(move |part| SetId::Endpoints(scope, part)));
        single.into_iter().chain(scoped).chain(endpoints).chain(Counted::ALL.map(SetId::Traffic))
    }

    pub fn name(self) -> &'static str {
        use Scope::{Address, NodePort};
        match self {
            SetId::ClusterIps => "cluster-ips",
            SetId::NodePortIps => "nodeport-ips",
            SetId::Firewalled => "firewalled",
            SetId::AllowedSources => "allowed-sources",
            SetId::Hairpins => "hairpins",
            SetId::SoleEndpoints => "sole-endpoints",
            SetId::Treatments(Pool::Main) => "treatments",
            SetId::Treatments(Pool::Local) => "local-treatments",
            SetId::Frontends(Address) => "frontends",
            SetId::Frontends(NodePort) => "nodeports",
            SetId::LocalFrontends(Address) => "local-frontends",
            SetId::LocalFrontends(NodePort) => "local-nodeports",
            SetId::NoEndpoints(Address) => "no-endpoints",
            SetId::NoEndpoints(NodePort) => "nodeport-no-endpoints",
            SetId::NoLocalEndpoints(Address) => "no-local-endpoints",
            SetId::NoLocalEndpoints(NodePort) => "nodeport-no-local-endpoints",
            SetId::Endpoints(Address, part) => part.among(&[
                "endpoints-0",
                "endpoints-1",
                "endpoints-2",
                "endpoints-3",
                "endpoints-4",
                "endpoints-5",
                "endpoints-6",
                "endpoints-7",
            ]),
            SetId::Endpoints(NodePort, part) => part.among(&[
                "nodeport-endpoints-0",
                "nodeport-endpoints-1",
                "nodeport-endpoints-2",
                "nodeport-endpoints-3",
                "nodeport-endpoints-4",
                "nodeport-endpoints-5",
                "nodeport-endpoints-6",
                "nodeport-endpoints-7",
            ]),
            SetId::StickyEndpoints(Address) => "sticky-endpoints",
            SetId::StickyEndpoints(NodePort) => "nodeport-sticky-endpoints",
            SetId::StickyLocalEndpoints(Address) => "sticky-local-endpoints",
            SetId::StickyLocalEndpoints(NodePort) => "nodeport-sticky-local-endpoints",
            SetId::StickyAddresses => "sticky-addresses",
            SetId::AffinityTimeouts(Address) => "affinity-timeouts",
            SetId::AffinityTimeouts(NodePort) => "nodeport-affinity-timeouts",
            SetId::StickyPorts(Address) => "sticky-ports",
            SetId::StickyPorts(NodePort) => "nodeport-sticky-ports",
            // Not "affinity": a set of that name, with other keys, is what earlier versions declared.
            SetId::Affinity => "sticky-clients",
            SetId::Traffic(Counted::Connections) => "traffic-connections",
            SetId::Traffic(Counted::Received) => "traffic-received",
            SetId::Traffic(Counted::Sent) => "traffic-sent",
        }
    }

    pub fn parse(name: &str) -> Option<SetId> {
        SetId::all().find(|set| set.name() == name)
    }

    /// The kernel fills it while packets pass: no part of the State, never compared.
    pub fn is_runtime(self) -> bool {
        matches!(self, SetId::Affinity | SetId::Traffic(_))
    }
}

/// The longest key: an IPv6 frontend (16 + 4 + 4) and another IPv6 address.
const KEY_MAX: usize = 40;

/// A key as the kernel compares it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    bytes: [u8; KEY_MAX],
    len: u8,
}

impl Key {
    pub const EMPTY: Key = Key { bytes: [0; KEY_MAX], len: 0 };

    /// `None` if it is longer than our longest key.
    pub fn from_bytes(bytes: &[u8]) -> Option<Key> {
        (bytes.len() <= KEY_MAX).then(|| Key::EMPTY.field(bytes))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }

    pub fn address(self, address: IpAddr) -> Key {
        match address {
            IpAddr::V4(v4) => self.field(&v4.octets()),
            IpAddr::V6(v6) => self.field(&v6.octets()),
        }
    }

    pub fn protocol(self, protocol: Protocol) -> Key {
        self.field(&[protocol.number()])
    }

    pub fn port(self, port: u16) -> Key {
        self.field(&port.to_be_bytes())
    }

    /// A slot or a treatment. Numbers are in the host's byte order.
    pub fn number(self, number: u32) -> Key {
        self.field(&number.to_ne_bytes())
    }

    pub fn then(self, other: &Key) -> Key {
        self.field(other.as_bytes())
    }

    fn field(mut self, bytes: &[u8]) -> Key {
        let start = self.len as usize;
        let end = start + bytes.len().next_multiple_of(4);
        debug_assert!(end <= KEY_MAX, "longer than our longest key");
        if end <= KEY_MAX {
            self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
            self.len = end as u8;
        }
        self
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The value of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Value {
    /// A member of a plain set.
    Member,
    /// A range of sources: the key has the first address, this is the last.
    UpTo(IpAddr),
    Goto(ChainId),
    Treatment(Treatment),
    /// A Service port: see [`ServicePort`].
    ServicePort(ServicePort),
    Endpoint(IpAddr, u16),
    /// A value that we did not write. It is removed.
    Foreign,
}

/// A number for a Service port with session affinity, which the kernel takes for a packet priority. It follows from the names, so
/// that it is the same after a restart. Two ports may have the same one: then a client of both may lose its endpoint, but gets
/// none of the other port, because recalling looks the endpoint up among those of the frontend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServicePort(u32);

impl ServicePort {
    pub fn new(name: &str, protocol: Protocol) -> ServicePort {
        // FNV-1a.
        let bytes = name.bytes().chain([0, protocol.number()]);
        let hash =
            bytes.fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        ServicePort::from_code(hash)
    }

    /// `nft` has words of its own for priorities with a half of zeros, and for the one with all bits set.
    pub fn from_code(code: u32) -> ServicePort {
        let half = |bits: u32| bits.clamp(1, 0xfffe);
        ServicePort(half(code >> 16) << 16 | half(code & 0xffff))
    }

    pub fn code(self) -> u32 {
        self.0
    }
}

/// One element of one of our sets.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Element {
    pub set: SetId,
    pub key: Key,
    pub value: Value,
    /// The Service port it belongs to, for readers of `nft list`.
    pub comment: Option<Arc<str>>,
}

impl Element {
    /// Passes the value in the kernel's form to `write`, without an allocation for the common kinds.
    pub fn with_data<R>(&self, write: impl FnOnce(DataRef<'_>, Option<&[u8]>) -> R) -> R {
        match self.value {
            Value::Member | Value::Foreign => write(DataRef::None, None),
            Value::Treatment(treatment) => write(DataRef::Value(&treatment.code().to_ne_bytes()), None),
            Value::ServicePort(port) => write(DataRef::Value(&port.code().to_ne_bytes()), None),
            Value::Goto(chain) => write(DataRef::Verdict(VerdictRef::Goto(&chain.to_string())), None),
            Value::Endpoint(address, port) => {
                write(DataRef::Value(Key::EMPTY.address(address).port(port).as_bytes()), None)
            }
            Value::UpTo(last) => write(DataRef::None, Some(range_end(&self.key, last).as_bytes())),
        }
    }
}

/// A member of a plain set, without a comment.
pub fn member(set: SetId, key: Key) -> Element {
    Element { set, key, value: Value::Member, comment: None }
}

/// An address from the kernel's bytes; `None` if their number is wrong.
pub fn address_from(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    let v6 = <[u8; 16]>::try_from(bytes).map(IpAddr::from);
    v4.or(v6).ok()
}

/// The key with its last address replaced: the upper end of a range of sources.
fn range_end(key: &Key, last: IpAddr) -> Key {
    let width = if last.is_ipv4() { 4 } else { 16 };
    let kept = key.as_bytes().len().saturating_sub(width);
    Key::EMPTY.field(&key.as_bytes()[..kept]).address(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_name_reads_back() {
        for set in SetId::all() {
            assert_eq!(SetId::parse(set.name()), Some(set));
        }
    }

    #[test]
    fn numbers_of_service_ports_are_stable_and_printable() {
        let http = ServicePort::new("default/web:http", Protocol::Tcp);
        assert_eq!(http, ServicePort::new("default/web:http", Protocol::Tcp));
        assert_ne!(http, ServicePort::new("default/web:http", Protocol::Udp));
        for code in [0, 1, 0x1_0000, u32::MAX, 0xffff_0001, http.code()] {
            let code = ServicePort::from_code(code).code();
            assert!(code >> 16 != 0 && code & 0xffff != 0 && code != u32::MAX, "{code:x}");
            assert_eq!(ServicePort::from_code(code).code(), code);
        }
    }

    #[test]
    fn fields_are_padded_to_four_bytes_in_network_order() {
        let key = Key::EMPTY.address("10.96.0.80".parse().unwrap()).protocol(Protocol::Tcp).port(80);
        assert_eq!(key.as_bytes(), [10, 96, 0, 80, 6, 0, 0, 0, 0, 80, 0, 0]);
    }
}
