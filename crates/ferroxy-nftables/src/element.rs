//! The elements of our sets: their keys and values, typed on our side, bytes on the kernel's.
//!
//! A key is the bytes the kernel compares: each field padded to four bytes, addresses and ports in network order.
//! Which sets there are, and why, is in `program.rs`.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ferroxy_core::Protocol;
use ferroxy_netlink::nftables::{DataRef, VerdictRef};

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

    fn prefix(self) -> &'static str {
        match self {
            Scope::Address => "",
            Scope::NodePort => "nodeport-",
        }
    }
}

/// Every set of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SetId {
    ClusterIps,
    NodePortIps,
    Firewalled,
    AllowedSources,
    Hairpins,
    NoEndpoints(Scope),
    Frontends(Scope),
    Picks(Scope),
    LocalPicks(Scope),
    Endpoints(Scope),
    StickyEndpoints(Scope),
    StickyLocalEndpoints(Scope),
    Affinity(Scope),
    AffinityTimeouts(Scope),
}

impl SetId {
    /// In the order of the listing.
    pub fn all() -> impl Iterator<Item = SetId> {
        let single =
            [SetId::ClusterIps, SetId::NodePortIps, SetId::Firewalled, SetId::AllowedSources, SetId::Hairpins];
        let scoped: [fn(Scope) -> SetId; 9] = [
            SetId::Frontends,
            SetId::NoEndpoints,
            SetId::Picks,
            SetId::LocalPicks,
            SetId::Endpoints,
            SetId::StickyEndpoints,
            SetId::StickyLocalEndpoints,
            SetId::AffinityTimeouts,
            SetId::Affinity,
        ];
        single.into_iter().chain(Scope::ALL.into_iter().flat_map(move |scope| scoped.map(|of| of(scope))))
    }

    pub fn name(self) -> &'static str {
        use Scope::{Address, NodePort};
        match self {
            SetId::ClusterIps => "cluster-ips",
            SetId::NodePortIps => "nodeport-ips",
            SetId::Firewalled => "firewalled",
            SetId::AllowedSources => "allowed-sources",
            SetId::Hairpins => "hairpins",
            SetId::Frontends(Address) => "frontends",
            SetId::Frontends(NodePort) => "nodeports",
            SetId::NoEndpoints(Address) => "no-endpoints",
            SetId::NoEndpoints(NodePort) => "nodeport-no-endpoints",
            SetId::Picks(Address) => "picks",
            SetId::Picks(NodePort) => "nodeport-picks",
            SetId::LocalPicks(Address) => "local-picks",
            SetId::LocalPicks(NodePort) => "nodeport-local-picks",
            SetId::Endpoints(Address) => "endpoints",
            SetId::Endpoints(NodePort) => "nodeport-endpoints",
            SetId::StickyEndpoints(Address) => "sticky-endpoints",
            SetId::StickyEndpoints(NodePort) => "nodeport-sticky-endpoints",
            SetId::StickyLocalEndpoints(Address) => "sticky-local-endpoints",
            SetId::StickyLocalEndpoints(NodePort) => "nodeport-sticky-local-endpoints",
            SetId::AffinityTimeouts(Address) => "affinity-timeouts",
            SetId::AffinityTimeouts(NodePort) => "nodeport-affinity-timeouts",
            SetId::Affinity(Address) => "affinity",
            SetId::Affinity(NodePort) => "nodeport-affinity",
        }
    }

    pub fn parse(name: &str) -> Option<SetId> {
        SetId::all().find(|set| set.name() == name)
    }

    /// The kernel fills it by itself while packets pass: not State, never compared.
    pub fn is_runtime(self) -> bool {
        matches!(self, SetId::Affinity(_))
    }

    /// Several Services may need the same element; it goes when the last of them goes.
    pub fn is_shared(self) -> bool {
        matches!(self, SetId::ClusterIps | SetId::Hairpins)
    }
}

/// Every chain that elements or rules lead to. A chain's rules lead only to chains before it in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ChainId {
    Reject,
    External(Scope),
    ExternalLocal(Scope),
    ShortCut(Scope),
    Recall(Scope),
    RecallLocal(Scope),
    Sticky(Scope),
    StickyLocal(Scope),
    StickyExternal(Scope),
    StickyExternalLocal(Scope),
    /// Picks one of this many endpoints.
    Pick(Scope, u32),
    LocalPick(Scope, u32),
    /// Remembers a client for this many seconds.
    Learn(Scope, u32),
    /// Translates to this port of the address that stands in the packet.
    To(u16),
}

impl ChainId {
    /// Exists only while something leads to it; the others are always there.
    fn is_on_demand(self) -> bool {
        !matches!(
            self,
            ChainId::Reject | ChainId::External(_) | ChainId::ExternalLocal(_) | ChainId::ShortCut(_)
        )
    }

    /// The on-demand chains that something leading here needs: this one, and those its rules lead to.
    pub fn on_demand(self) -> impl Iterator<Item = ChainId> {
        let of = |needs: &'static [fn(Scope) -> ChainId], scope| (needs, scope);
        let (needs, scope) = match self {
            ChainId::Sticky(scope) => of(&[ChainId::Recall], scope),
            ChainId::StickyLocal(scope) => of(&[ChainId::RecallLocal], scope),
            ChainId::StickyExternal(scope) => of(&[ChainId::Sticky, ChainId::Recall], scope),
            ChainId::StickyExternalLocal(scope) => of(
                &[ChainId::Sticky, ChainId::Recall, ChainId::StickyLocal, ChainId::RecallLocal],
                scope,
            ),
            _ => of(&[], Scope::Address),
        };
        let itself = std::iter::once(self).filter(|chain| chain.is_on_demand());
        itself.chain(needs.iter().map(move |chain| chain(scope)))
    }

    pub fn parse(name: &str) -> Option<ChainId> {
        if name == "rejected" {
            return Some(ChainId::Reject);
        }
        if let Some(port) = name.strip_prefix("to-") {
            return canonical_number(port)?.try_into().ok().map(ChainId::To);
        }
        let (scope, rest) = match name.strip_prefix(Scope::NodePort.prefix()) {
            Some(rest) => (Scope::NodePort, rest),
            None => (Scope::Address, name),
        };
        let number = |prefix: &str| rest.strip_prefix(prefix).and_then(canonical_number);
        Some(match rest {
            "external" => ChainId::External(scope),
            "external-local" => ChainId::ExternalLocal(scope),
            "short-cut" => ChainId::ShortCut(scope),
            "recall" => ChainId::Recall(scope),
            "local-recall" => ChainId::RecallLocal(scope),
            "sticky" => ChainId::Sticky(scope),
            "sticky-local" => ChainId::StickyLocal(scope),
            "sticky-external" => ChainId::StickyExternal(scope),
            "sticky-external-local" => ChainId::StickyExternalLocal(scope),
            _ => match (number("pick-"), number("local-pick-"), number("learn-")) {
                (Some(n), _, _) => ChainId::Pick(scope, n),
                (_, Some(n), _) => ChainId::LocalPick(scope, n),
                (_, _, Some(n)) => ChainId::Learn(scope, n),
                _ => return None,
            },
        })
    }
}

/// `7`, but not `07` or `+7`: a name must be the one we would write.
fn canonical_number(text: &str) -> Option<u32> {
    let number: u32 = text.parse().ok()?;
    (number > 0 && number.to_string() == text).then_some(number)
}

impl fmt::Display for ChainId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // `reject` alone is a word of nft's language and cannot be a name there.
            ChainId::Reject => f.write_str("rejected"),
            ChainId::External(scope) => write!(f, "{}external", scope.prefix()),
            ChainId::ExternalLocal(scope) => write!(f, "{}external-local", scope.prefix()),
            ChainId::ShortCut(scope) => write!(f, "{}short-cut", scope.prefix()),
            ChainId::Recall(scope) => write!(f, "{}recall", scope.prefix()),
            ChainId::RecallLocal(scope) => write!(f, "{}local-recall", scope.prefix()),
            ChainId::Sticky(scope) => write!(f, "{}sticky", scope.prefix()),
            ChainId::StickyLocal(scope) => write!(f, "{}sticky-local", scope.prefix()),
            ChainId::StickyExternal(scope) => write!(f, "{}sticky-external", scope.prefix()),
            ChainId::StickyExternalLocal(scope) => write!(f, "{}sticky-external-local", scope.prefix()),
            ChainId::Pick(scope, n) => write!(f, "{}pick-{n}", scope.prefix()),
            ChainId::LocalPick(scope, n) => write!(f, "{}local-pick-{n}", scope.prefix()),
            ChainId::Learn(scope, n) => write!(f, "{}learn-{n}", scope.prefix()),
            ChainId::To(port) => write!(f, "to-{port}"),
        }
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

    /// A slot: `numgen` writes it in the host's byte order.
    pub fn slot(self, slot: u32) -> Key {
        self.field(&slot.to_ne_bytes())
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
    Drop,
    Goto(ChainId),
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
            Value::Drop => write(DataRef::Verdict(VerdictRef::Drop), None),
            Value::Goto(chain) => write(DataRef::Verdict(VerdictRef::Goto(&chain.to_string())), None),
            Value::Endpoint(address, port) => {
                write(DataRef::Value(Key::EMPTY.address(address).port(port).as_bytes()), None)
            }
            Value::UpTo(last) => write(DataRef::None, Some(range_end(&self.key, last).as_bytes())),
        }
    }
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
    fn every_set_and_chain_name_reads_back() {
        for set in SetId::all() {
            assert_eq!(SetId::parse(set.name()), Some(set));
        }
        for scope in Scope::ALL {
            for chain in [
                ChainId::External(scope),
                ChainId::ExternalLocal(scope),
                ChainId::ShortCut(scope),
                ChainId::Recall(scope),
                ChainId::RecallLocal(scope),
                ChainId::Sticky(scope),
                ChainId::StickyLocal(scope),
                ChainId::StickyExternal(scope),
                ChainId::StickyExternalLocal(scope),
                ChainId::Pick(scope, 7),
                ChainId::LocalPick(scope, 1),
                ChainId::Learn(scope, 10800),
                ChainId::To(8080),
                ChainId::Reject,
            ] {
                assert_eq!(ChainId::parse(&chain.to_string()), Some(chain));
            }
        }
    }

    #[test]
    fn names_we_would_not_write_are_not_ours() {
        for name in ["pick-0", "pick-01", "pick-", "pick", "learn-+3", "to-65536", "nodeport-rejected", "", "services"] {
            assert_eq!(ChainId::parse(name), None, "{name}");
        }
    }

    #[test]
    fn fields_are_padded_to_four_bytes_in_network_order() {
        let key = Key::EMPTY.address("10.96.0.80".parse().unwrap()).protocol(Protocol::Tcp).port(80);
        assert_eq!(key.as_bytes(), [10, 96, 0, 80, 6, 0, 0, 0, 0, 80, 0, 0]);
    }
}
