//! The elements of our sets: their keys and values, typed on our side, bytes on the kernel's.
//!
//! A key is the bytes the kernel compares: each field padded to four bytes, addresses and ports in network order.
//! Which sets there are, and why, is in `program.rs`.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ferroxy_core::Protocol;
use ferroxy_netlink::nftables::{DataRef, VerdictRef};

use crate::chain::{ChainId, Pool, Treatment};

/// Local endpoints share a map with the others; their slots start here.
pub const LOCAL_SLOTS: u32 = 1_000_000;

/// What a frontend is found by: its own address and port, or, for node ports, the port alone.
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

/// What the elements of a set of traffic count.
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
    /// Cluster IPs that lead to one endpoint, with no more to be done: nothing to pick, so no treatment.
    SoleEndpoints,
    Treatments(Pool),
    Frontends(Scope),
    LocalFrontends(Scope),
    NoEndpoints(Scope),
    NoLocalEndpoints(Scope),
    Endpoints(Scope),
    StickyEndpoints(Scope),
    StickyLocalEndpoints(Scope),
    /// All addresses in those two, of every scope: to ask them first costs the others little.
    StickyAddresses,
    Affinity(Scope),
    AffinityTimeouts(Scope),
    /// Only there while traffic is counted.
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
            SetId::SoleEndpoints,
            SetId::Treatments(Pool::Main),
            SetId::Treatments(Pool::Local),
        ];
        let scoped: [fn(Scope) -> SetId; 9] = [
            SetId::Frontends,
            SetId::LocalFrontends,
            SetId::NoEndpoints,
            SetId::NoLocalEndpoints,
            SetId::Endpoints,
            SetId::StickyEndpoints,
            SetId::StickyLocalEndpoints,
            SetId::AffinityTimeouts,
            SetId::Affinity,
        ];
        let scoped = Scope::ALL.into_iter().flat_map(move |scope| scoped.map(|of| of(scope)));
        single.into_iter().chain(scoped).chain(Counted::ALL.map(SetId::Traffic))
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
            SetId::Endpoints(Address) => "endpoints",
            SetId::Endpoints(NodePort) => "nodeport-endpoints",
            SetId::StickyEndpoints(Address) => "sticky-endpoints",
            SetId::StickyEndpoints(NodePort) => "nodeport-sticky-endpoints",
            SetId::StickyLocalEndpoints(Address) => "sticky-local-endpoints",
            SetId::StickyLocalEndpoints(NodePort) => "nodeport-sticky-local-endpoints",
            SetId::StickyAddresses => "sticky-addresses",
            SetId::AffinityTimeouts(Address) => "affinity-timeouts",
            SetId::AffinityTimeouts(NodePort) => "nodeport-affinity-timeouts",
            SetId::Affinity(Address) => "affinity",
            SetId::Affinity(NodePort) => "nodeport-affinity",
            SetId::Traffic(Counted::Connections) => "traffic-connections",
            SetId::Traffic(Counted::Received) => "traffic-received",
            SetId::Traffic(Counted::Sent) => "traffic-sent",
        }
    }

    pub fn parse(name: &str) -> Option<SetId> {
        SetId::all().find(|set| set.name() == name)
    }

    /// The kernel fills it by itself while packets pass: not State, never compared.
    pub fn is_runtime(self) -> bool {
        matches!(self, SetId::Affinity(_) | SetId::Traffic(_))
    }

    /// Several Services may need the same element; it goes when the last of them goes.
    pub fn is_shared(self) -> bool {
        matches!(self, SetId::ClusterIps | SetId::Hairpins | SetId::StickyAddresses)
    }
}

/// The longest key: an IPv6 frontend (16 + 4 + 4) and one more IPv6 address.
const KEY_MAX: usize = 40;

/// A key as the kernel compares it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    bytes: [u8; KEY_MAX],
    len: u8,
}

impl Key {
    pub const EMPTY: Key = Key { bytes: [0; KEY_MAX], len: 0 };

    /// `None` if it is longer than any key of ours.
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

    /// A slot or a treatment: numbers are in the host's byte order.
    pub fn number(self, number: u32) -> Key {
        self.field(&number.to_ne_bytes())
    }

    pub fn then(self, other: &Key) -> Key {
        self.field(other.as_bytes())
    }

    fn field(mut self, bytes: &[u8]) -> Key {
        let start = self.len as usize;
        let end = start + bytes.len().next_multiple_of(4);
        debug_assert!(end <= KEY_MAX, "no set of ours has such a key");
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

/// What an element leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Value {
    /// A member of a plain set.
    Member,
    /// A member that is a range of sources: its key holds the first, this is the last.
    UpTo(IpAddr),
    Goto(ChainId),
    Treatment(Treatment),
    Endpoint(IpAddr, u16),
    /// Something in our table that we did not write (and will not leave there).
    Foreign,
}

/// One element of one of our sets.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Element {
    pub set: SetId,
    pub key: Key,
    pub value: Value,
    /// The Service port it belongs to, where a reader of `nft list` wants to know.
    pub comment: Option<Arc<str>>,
}

impl Element {
    /// Hands the element to `write` in the kernel's form, without allocating for the common kinds.
    pub fn with_data<R>(&self, write: impl FnOnce(DataRef<'_>, Option<&[u8]>) -> R) -> R {
        match self.value {
            Value::Member | Value::Foreign => write(DataRef::None, None),
            Value::Treatment(treatment) => write(DataRef::Value(&treatment.code().to_ne_bytes()), None),
            Value::Goto(chain) => write(DataRef::Verdict(VerdictRef::Goto(&chain.to_string())), None),
            Value::Endpoint(address, port) => {
                write(DataRef::Value(Key::EMPTY.address(address).port(port).as_bytes()), None)
            }
            Value::UpTo(last) => write(DataRef::None, Some(range_end(&self.key, last).as_bytes())),
        }
    }
}

/// An address from the kernel's bytes; `None` if they are not as long as one.
pub fn address_from(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    let v6 = <[u8; 16]>::try_from(bytes).map(IpAddr::from);
    v4.or(v6).ok()
}

/// The key's fields with its last address replaced: the upper end of a range of sources.
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
    fn fields_are_padded_to_four_bytes_in_network_order() {
        let key = Key::EMPTY.address("10.96.0.80".parse().unwrap()).protocol(Protocol::Tcp).port(80);
        assert_eq!(key.as_bytes(), [10, 96, 0, 80, 6, 0, 0, 0, 0, 80, 0, 0]);
    }
}
