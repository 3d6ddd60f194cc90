//! The elements of the maps, as bytes: what the program in the kernel reads. Both families have one form, in which IPv4
//! addresses are mapped (`::ffff:10.96.0.80`).
//!
//! The first bytes of a value repeat the part of its key that identifies it. The program compares them after it has read the
//! rest: the kernel may reuse the memory of a deleted element for another one while a program still reads it. If a value lists
//! endpoints, the value has a stamp at its beginning, and each endpoint ends with the same stamp. The program reads the endpoint's
//! stamp first, then the endpoint, then the stamp at the beginning. If the stamps are equal, the endpoint is whole, and of one
//! version of the value.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use ferroxy_core::Protocol;

/// Which clients a frontend is translated for, as bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Clients(pub u8);

impl Clients {
    pub const NONE: Clients = Clients(0);
    /// Sockets in the host's network namespace.
    pub const HOST: Clients = Clients(1);
    /// Sockets of pods, in namespaces of their own.
    pub const PODS: Clients = Clients(2);
    pub const ALL: Clients = Clients(3);

    pub fn contains(self, other: Clients) -> bool {
        self.0 & other.0 == other.0
    }

    #[must_use]
    pub fn and(self, other: Clients) -> Clients {
        Clients(self.0 & other.0)
    }

    #[must_use]
    pub fn with(self, other: Clients) -> Clients {
        Clients(self.0 | other.0)
    }

    /// `host`, `pods` or both.
    pub fn words(self) -> String {
        let names = [(Clients::HOST, "host"), (Clients::PODS, "pods")];
        let names = names.into_iter().filter(|(clients, _)| self.contains(*clients)).map(|(_, name)| name);
        names.collect::<Vec<_>>().join(",")
    }
}

/// Names the endpoints that frontends of one Service port share. The two pools of a port differ in the last bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolId(pub u64);

impl PoolId {
    /// A mask: without the last bit, the id is the number of the Service port.
    pub const PORT: u64 = !1;
}

/// address 16, port 2, protocol 1, zeros 5
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrontendKey(pub [u8; FrontendKey::SIZE]);

/// the last half of the address 8, port 2, clients 1, form 1, then
/// - if the endpoints are listed here, form is their number: stamp 4, for each endpoint address 16, port 2, zeros 2, stamp 4
/// - if they are in a pool, form is 0 or [`FrontendValue::STICKY`]: count 4, pool 8, zeros
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrontendValue(pub [u8; FrontendValue::SIZE]);

/// pool 8, slot 4, zeros 4
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotKey(pub [u8; SlotKey::SIZE]);

/// pool 8, address 16, port 2, zeros 6
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotValue(pub [u8; SlotValue::SIZE]);

/// An endpoint that clients with session affinity may stay at: pool 8, address 16, port 2, zeros 6
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemberKey(pub [u8; MemberKey::SIZE]);

/// pool 8, how many nanoseconds clients stay after their last new connection 8
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemberValue(pub [u8; MemberValue::SIZE]);

/// A client of a Service port with session affinity: cookie of its network namespace 8, Service port 8. Only the programs
/// write these elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionKey(pub [u8; SessionKey::SIZE]);

/// when it connected last, in nanoseconds since boot 8, endpoint as in a slot 24, the key 16
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionValue(pub [u8; SessionValue::SIZE]);

impl FrontendKey {
    pub const SIZE: usize = 24;

    pub fn new(address: IpAddr, port: u16) -> FrontendKey {
        let mut bytes = [0; FrontendKey::SIZE];
        bytes[..16].copy_from_slice(&mapped(address));
        bytes[16..18].copy_from_slice(&port.to_be_bytes());
        bytes[18] = Protocol::Tcp.number();
        FrontendKey(bytes)
    }

    pub fn address(&self) -> SocketAddr {
        socket_address(&self.0[..18])
    }
}

impl FrontendValue {
    /// With what the kernel adds to an element, this just fits into 192 bytes.
    pub const SIZE: usize = 112;
    /// The maximum number of listed endpoints.
    pub const MOST: usize = 4;
    pub const CLIENTS: usize = 10;
    pub const FORM: usize = 11;
    pub const STAMP: usize = 12;
    pub const COUNT: usize = 12;
    pub const POOL: usize = 16;
    pub const ENDPOINTS: usize = 16;
    pub const ENDPOINT_SIZE: usize = 24;
    /// The offset of the stamp in an endpoint.
    pub const ENDPOINT_STAMP: usize = 20;
    /// The form of a pool with session affinity.
    pub const STICKY: u8 = 0x80;

    fn start(key: &FrontendKey, clients: Clients) -> [u8; FrontendValue::SIZE] {
        let mut bytes = [0; FrontendValue::SIZE];
        bytes[..10].copy_from_slice(&key.0[8..18]);
        bytes[FrontendValue::CLIENTS] = clients.0;
        bytes
    }

    /// A frontend whose endpoints are in a pool.
    pub fn pooled(key: &FrontendKey, clients: Clients, count: u32, pool: PoolId) -> FrontendValue {
        let mut bytes = FrontendValue::start(key, clients);
        bytes[FrontendValue::COUNT..][..4].copy_from_slice(&count.to_ne_bytes());
        bytes[FrontendValue::POOL..][..8].copy_from_slice(&pool.0.to_ne_bytes());
        FrontendValue(bytes)
    }

    /// A frontend that lists its endpoints, at most [`FrontendValue::MOST`].
    pub fn listed(key: &FrontendKey, clients: Clients, endpoints: &[SocketAddr]) -> FrontendValue {
        let mut bytes = FrontendValue::start(key, clients);
        let places = bytes[FrontendValue::ENDPOINTS..].chunks_exact_mut(FrontendValue::ENDPOINT_SIZE);
        let mut listed = 0;
        for (place, endpoint) in places.zip(endpoints) {
            place[..16].copy_from_slice(&mapped(endpoint.ip()));
            place[16..18].copy_from_slice(&endpoint.port().to_be_bytes());
            listed += 1;
        }
        bytes[FrontendValue::FORM] = listed;
        // Without endpoints, this is the value of an empty pool.
        let stamp = if listed == 0 { [0; 4] } else { stamp(&bytes) };
        bytes[FrontendValue::STAMP..][..4].copy_from_slice(&stamp);
        let places = bytes[FrontendValue::ENDPOINTS..].chunks_exact_mut(FrontendValue::ENDPOINT_SIZE);
        for place in places.take(listed.into()) {
            place[FrontendValue::ENDPOINT_STAMP..].copy_from_slice(&stamp);
        }
        FrontendValue(bytes)
    }

    /// A pool with session affinity.
    #[must_use]
    pub fn sticky(mut self) -> FrontendValue {
        self.0[FrontendValue::FORM] = FrontendValue::STICKY;
        self
    }

    pub fn is_sticky(&self) -> bool {
        self.0[FrontendValue::FORM] == FrontendValue::STICKY
    }

    pub fn clients(&self) -> Clients {
        Clients(self.0[FrontendValue::CLIENTS])
    }

    /// The number of its endpoints, listed or in a pool.
    pub fn count(&self) -> u32 {
        match self.0[FrontendValue::FORM] {
            0 | FrontendValue::STICKY => {
                self.0[FrontendValue::COUNT..][..4].try_into().map_or(0, u32::from_ne_bytes)
            }
            listed => listed.into(),
        }
    }

    /// `None` if its endpoints are listed.
    pub fn pool(&self) -> Option<PoolId> {
        let is_pooled = matches!(self.0[FrontendValue::FORM], 0 | FrontendValue::STICKY);
        is_pooled.then(|| PoolId(long(&self.0[FrontendValue::POOL..][..8])))
    }

    /// The listed endpoints.
    pub fn endpoints(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        let listed = if self.pool().is_some() { 0 } else { self.count() as usize };
        let places = self.0[FrontendValue::ENDPOINTS..].chunks_exact(FrontendValue::ENDPOINT_SIZE);
        places.take(listed).map(socket_address)
    }
}

/// A hash of the value (FNV-1a), so that another list has another stamp. Never zero, because unused places contain zeros.
fn stamp(bytes: &[u8]) -> [u8; 4] {
    let mix = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    (bytes.iter().fold(0x811c_9dc5, mix) | 1).to_ne_bytes()
}

impl SlotKey {
    pub const SIZE: usize = 16;

    pub fn new(pool: PoolId, slot: u32) -> SlotKey {
        let mut bytes = [0; SlotKey::SIZE];
        bytes[..8].copy_from_slice(&pool.0.to_ne_bytes());
        bytes[8..12].copy_from_slice(&slot.to_ne_bytes());
        SlotKey(bytes)
    }

    pub fn pool(&self) -> PoolId {
        PoolId(long(&self.0[..8]))
    }

    pub fn slot(&self) -> u32 {
        u32::from_ne_bytes([self.0[8], self.0[9], self.0[10], self.0[11]])
    }
}

impl SlotValue {
    pub const SIZE: usize = 32;

    pub fn new(pool: PoolId, endpoint: SocketAddr) -> SlotValue {
        let mut bytes = [0; SlotValue::SIZE];
        bytes[..8].copy_from_slice(&pool.0.to_ne_bytes());
        bytes[8..24].copy_from_slice(&mapped(endpoint.ip()));
        bytes[24..26].copy_from_slice(&endpoint.port().to_be_bytes());
        SlotValue(bytes)
    }

    pub fn endpoint(&self) -> SocketAddr {
        socket_address(&self.0[8..26])
    }
}

impl MemberKey {
    pub const SIZE: usize = 32;

    pub fn new(pool: PoolId, endpoint: SocketAddr) -> MemberKey {
        MemberKey(SlotValue::new(pool, endpoint).0)
    }

    pub fn pool(&self) -> PoolId {
        PoolId(long(&self.0[..8]))
    }

    pub fn endpoint(&self) -> SocketAddr {
        socket_address(&self.0[8..26])
    }
}

impl MemberValue {
    pub const SIZE: usize = 16;

    pub fn new(pool: PoolId, seconds: u32) -> MemberValue {
        let mut bytes = [0; MemberValue::SIZE];
        bytes[..8].copy_from_slice(&pool.0.to_ne_bytes());
        bytes[8..].copy_from_slice(&(u64::from(seconds) * NANOSECONDS).to_ne_bytes());
        MemberValue(bytes)
    }

    pub fn seconds(&self) -> u64 {
        long(&self.0[8..]) / NANOSECONDS
    }
}

const NANOSECONDS: u64 = 1_000_000_000;

impl SessionKey {
    pub const SIZE: usize = 16;
}

impl SessionValue {
    pub const SIZE: usize = 48;

    pub fn endpoint(&self) -> SocketAddr {
        socket_address(&self.0[8..26])
    }

    /// As if the client had connected last at this time.
    #[must_use]
    pub fn at(mut self, nanoseconds: u64) -> SessionValue {
        self.0[..8].copy_from_slice(&nanoseconds.to_ne_bytes());
        self
    }
}

/// The address as sixteen bytes. IPv4 addresses are mapped.
pub fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Reads an address and the port behind it.
pub fn socket_address(bytes: &[u8]) -> SocketAddr {
    let (mut ip, mut port) = ([0; 16], [0; 2]);
    ip.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    port.iter_mut().zip(bytes.iter().skip(16)).for_each(|(to, from)| *to = *from);
    SocketAddr::new(IpAddr::V6(Ipv6Addr::from(ip)).to_canonical(), u16::from_be_bytes(port))
}

fn long(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        for text in ["10.96.0.80:80", "[fd00:10:96::1]:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            let key = FrontendKey::new(address.ip(), address.port());
            assert_eq!(key.address(), address);
            let value = FrontendValue::pooled(&key, Clients::PODS, 70_000, PoolId(u64::MAX - 1));
            assert_eq!(
                (value.clients(), value.count(), value.pool()),
                (Clients::PODS, 70_000, Some(PoolId(u64::MAX - 1)))
            );
            assert_eq!(value.endpoints().count(), 0);
            let slot = SlotKey::new(PoolId(7), 65_536);
            assert_eq!((slot.pool(), slot.slot()), (PoolId(7), 65_536));
            assert_eq!(SlotValue::new(PoolId(7), address).endpoint(), address);
            assert!(!value.is_sticky() && value.sticky().is_sticky());
            assert_eq!((value.sticky().count(), value.sticky().pool()), (70_000, value.pool()));
            let member = MemberKey::new(PoolId(7), address);
            assert_eq!((member.pool(), member.endpoint()), (PoolId(7), address));
            assert_eq!(MemberValue::new(PoolId(7), 86_400).seconds(), 86_400);
        }
    }

    #[test]
    fn a_few_endpoints_are_listed_under_a_stamp_of_their_own() {
        let key = FrontendKey::new([10, 96, 0, 80].into(), 80);
        let endpoint = |n: u8| SocketAddr::from(([10, 244, 0, n], 8080));
        let mut stamps = std::collections::BTreeSet::new();
        for count in 0..=FrontendValue::MOST as u8 {
            let endpoints: Vec<SocketAddr> = (0..count).map(endpoint).collect();
            let value = FrontendValue::listed(&key, Clients::ALL, &endpoints);
            assert_eq!(value.endpoints().collect::<Vec<_>>(), endpoints);
            assert_eq!(
                (value.count(), value.pool().is_some(), value.is_sticky()),
                (count.into(), count == 0, false)
            );
            let stamp = &value.0[FrontendValue::STAMP..][..4];
            let places = value.0[FrontendValue::ENDPOINTS..].chunks_exact(FrontendValue::ENDPOINT_SIZE);
            for (number, place) in places.enumerate() {
                let expected = if number < count.into() { stamp } else { &[0; 4] };
                assert_eq!(&place[FrontendValue::ENDPOINT_STAMP..], expected, "{number} of {count}");
            }
            assert!(stamps.insert(stamp.to_vec()) && (stamp == [0; 4]) == (count == 0));
        }
    }

    #[test]
    fn clients_have_names() {
        assert_eq!(Clients::ALL.words(), "host,pods");
        assert_eq!(Clients::NONE.words(), "");
        assert!(Clients::ALL.contains(Clients::HOST) && !Clients::PODS.contains(Clients::HOST));
    }
}
