//! Basic types: IP family, protocol, the name of a Service.

use std::borrow::Borrow;
use std::fmt;
use std::net::IpAddr;

use arcstr::ArcStr;

/// An IP family. Every rule of the proxy exists once per family, and the two never mix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub const ALL: [Family; 2] = [Family::V4, Family::V6];

    pub fn of(address: IpAddr) -> Family {
        if address.is_ipv4() { Family::V4 } else { Family::V6 }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        })
    }
}

/// The transport protocols a Service port can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    pub const ALL: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

    /// The number in the IP header.
    pub fn number(self) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Sctp => 132,
        }
    }

    pub fn from_number(number: u8) -> Option<Protocol> {
        Protocol::ALL.into_iter().find(|p| p.number() == number)
    }

    /// The spelling of `iptables`, `nft` and our own output.
    pub fn lowercase(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        }
    }

    /// Reads the API's spelling (`TCP`), in any case.
    pub fn parse(text: &str) -> Option<Protocol> {
        Protocol::ALL.into_iter().find(|p| p.lowercase().eq_ignore_ascii_case(text))
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.lowercase())
    }
}

/// `namespace/name` of a Service. A shared string: a clone only increments a reference count. One word long, unlike `Arc<str>`,
/// because every Service's name is in several maps.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceName(ArcStr);

impl ServiceName {
    pub fn new(namespace: &str, name: &str) -> ServiceName {
        ServiceName(format!("{namespace}/{name}").into())
    }

    /// Takes a string that is `namespace/name` already.
    pub(crate) fn from_full(full: &str) -> ServiceName {
        ServiceName(full.into())
    }

    /// Reads `namespace/name`; a bare name means the namespace `default`.
    pub fn parse(text: &str) -> Option<ServiceName> {
        let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
        let fine = |part: &str| !part.is_empty() && !part.contains('/');
        (fine(namespace) && fine(name)).then(|| ServiceName::new(namespace, name))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn namespace(&self) -> &str {
        self.0.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    pub fn name(&self) -> &str {
        self.0.split_once('/').map_or(&self.0, |(_, name)| name)
    }

    /// How kube-proxy names a Service port in comments and logs: `ns/name`, or `ns/name:port`.
    pub fn port(&self, port_name: &str) -> String {
        if port_name.is_empty() { self.0.to_string() } else { format!("{}:{port_name}", self.0) }
    }
}

/// Valid, because a name compares, sorts and hashes as its text.
impl Borrow<str> for ServiceName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
