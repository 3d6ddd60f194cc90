//! An EndpointSlice as `facts` stores it: one small allocation. Endpoints take most of the memory: nine bytes for an
//! IPv4 endpoint, plus the part of its pod's name that differs from the previous name.

mod read;

use std::cmp::Ordering;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use super::interner::Id;
use super::slices::Slices;
use crate::diagnostic::Diagnostic;
use crate::name::{Family, Protocol, ServiceName};
use crate::packed::{Packer, Unpacker};
#[cfg(test)]
pub(crate) use read::MOST_PORTS;
pub(super) use read::read;

/// One slice of a Service: its ports and endpoints.
#[derive(Clone, Copy)]
pub struct Slice<'f> {
    pub(super) service: &'f ServiceName,
    pub(super) packed: &'f PackedSlice,
    /// All slices, which contain the places and the lists of ports that slices share.
    pub(super) all: &'f Slices,
}

/// Does not contain the name of the Service: the functions that need it take it from the caller. In this order:
///
/// - the number of endpoints, and two flags: four bytes
/// - for each endpoint its address, its conditions and its place, all of the same size
/// - the number of its list of ports, and how many ports are beyond the limit
/// - the name of the slice, as the difference from the name of the Service
/// - the name of each pod, as the difference from the previous one. These are only shown to people, so a lookup may be
///   slow.
#[derive(Debug, PartialEq)]
pub(super) struct PackedSlice(Box<[u8]>);

/// Flags in the first four bytes.
const IS_V6: u32 = 1;
const HAS_FAULTS: u32 = 2;
/// The number of bits that the flags take.
const FLAGS: u32 = 2;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SlicePort {
    pub name: Arc<str>,
    pub protocol: Protocol,
    pub port: u16,
}

/// Location and topology hints of an endpoint. Most endpoints of a node share one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Place {
    pub node: Option<Box<str>>,
    pub zone: Option<Box<str>>,
    pub hint_zones: Box<[Box<str>]>,
    pub hint_nodes: Box<[Box<str>]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conditions(u8);

impl Conditions {
    const READY: u8 = 1;
    const SERVING: u8 = 2;
    const TERMINATING: u8 = 4;

    /// Absent conditions count as ready, serving and not terminating.
    pub fn new(ready: Option<bool>, serving: Option<bool>, terminating: Option<bool>) -> Conditions {
        let bit = |set: bool, bit: u8| if set { bit } else { 0 };
        Conditions(
            bit(ready.unwrap_or(true), Conditions::READY)
                | bit(serving.unwrap_or(true), Conditions::SERVING)
                | bit(terminating.unwrap_or(false), Conditions::TERMINATING),
        )
    }

    pub fn ready(self) -> bool {
        self.0 & Conditions::READY != 0
    }

    pub fn serving(self) -> bool {
        self.0 & Conditions::SERVING != 0
    }

    pub fn terminating(self) -> bool {
        self.0 & Conditions::TERMINATING != 0
    }
}

/// The contents of a [`PackedSlice`].
#[derive(Debug)]
pub(super) struct Contents<'c> {
    pub(super) name: &'c str,
    pub(super) service: &'c ServiceName,
    pub(super) family: Family,
    pub(super) ports: Id,
    pub(super) ports_beyond: u32,
    pub(super) endpoints: &'c [Stored],
    pub(super) has_faults: bool,
}

/// An endpoint.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) address: IpAddr,
    pub(super) conditions: Conditions,
    pub(super) place: Id,
    /// The name of its pod; empty if unknown.
    pub(super) target: Box<str>,
}

impl PackedSlice {
    pub(super) fn new(contents: &Contents<'_>) -> PackedSlice {
        let Contents { name, service, family, ports, ports_beyond, endpoints, has_faults } = *contents;
        let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        let flags = flag(family == Family::V6, IS_V6) | flag(has_faults, HAS_FAULTS);
        let mut out = Packer::default();
        out.bytes(&((endpoints.len() as u32) << FLAGS | flags).to_ne_bytes());
        for endpoint in endpoints {
            out.bare_address(endpoint.address);
            out.byte(endpoint.conditions.0);
            out.bytes(&endpoint.place.number().to_ne_bytes());
        }
        out.number(ports.number().into());
        out.number(ports_beyond.into());
        out.text_like(service.as_str(), name);
        let mut before = service.name();
        for endpoint in endpoints {
            out.text_like(before, &endpoint.target);
            before = &endpoint.target;
        }
        PackedSlice(out.finish())
    }

    /// Compares the name of the slice with this name.
    pub(super) fn compare_name(&self, service: &ServiceName, name: &str) -> Ordering {
        let (same, rest) = self.texts().text_like(service.as_str());
        same.bytes().chain(rest.bytes()).cmp(name.bytes())
    }

    /// `namespace/name`.
    fn name(&self, service: &ServiceName) -> String {
        let (same, rest) = self.texts().text_like(service.as_str());
        [same, rest].concat()
    }

    pub(super) fn len(&self) -> usize {
        (self.header() >> FLAGS) as usize
    }

    fn header(&self) -> u32 {
        self.0.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    }

    fn family(&self) -> Family {
        if self.header() & IS_V6 == 0 { Family::V4 } else { Family::V6 }
    }

    pub(super) fn has_faults(&self) -> bool {
        self.header() & HAS_FAULTS != 0
    }

    /// The bytes of the endpoint with this index.
    fn endpoint(&self, index: usize) -> Option<&[u8]> {
        let (start, stride) = (size_of::<u32>(), stride(self.family()));
        (index < self.len()).then(|| self.0.get(start + index * stride..start + (index + 1) * stride))?
    }

    pub(super) fn place(&self, index: usize) -> Option<Id> {
        self.endpoint(index)?.last_chunk().map(|bytes| Id::from_number(u32::from_ne_bytes(*bytes)))
    }

    /// The list of its ports, and how many are beyond the limit.
    pub(super) fn ports(&self) -> (Id, u32) {
        let mut from = self.behind_endpoints();
        (Id::from_number(from.number() as u32), from.number() as u32)
    }

    fn behind_endpoints(&self) -> Unpacker<'_> {
        let from = size_of::<u32>() + self.len() * stride(self.family());
        Unpacker::new(self.0.get(from..).unwrap_or_default())
    }

    /// Its name and those of the pods.
    fn texts(&self) -> Unpacker<'_> {
        let mut from = self.behind_endpoints();
        from.number();
        from.number();
        from
    }
}

/// The size of an endpoint: address, conditions, place.
fn stride(family: Family) -> usize {
    address_length(family) + 1 + size_of::<u32>()
}

fn address_length(family: Family) -> usize {
    match family {
        Family::V4 => 4,
        Family::V6 => 16,
    }
}

impl<'f> Slice<'f> {
    /// `namespace/name`.
    pub fn name(&self) -> String {
        self.packed.name(self.service)
    }

    /// What is wrong with its fields.
    pub fn diagnostics(&self) -> &'f [Diagnostic] {
        if self.packed.has_faults() { self.all.faults_of(&self.name()) } else { &[] }
    }

    pub fn family(&self) -> Family {
        self.packed.family()
    }

    /// Sorted by name and protocol, up to a limit.
    pub fn ports(&self) -> &'f [SlicePort] {
        self.all.ports(self.packed.ports().0)
    }

    /// How many ports it lists beyond the limit.
    pub fn ports_beyond(&self) -> u32 {
        self.packed.ports().1
    }

    /// The number of a port.
    pub fn port(&self, name: &str, protocol: Protocol) -> Option<u16> {
        let ports = self.ports();
        let found = ports.binary_search_by(|port| (&*port.name, port.protocol).cmp(&(name, protocol)));
        Some(ports.get(found.ok()?)?.port)
    }

    /// How many endpoints it has.
    pub fn len(&self) -> usize {
        self.packed.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn address(&self, index: usize) -> Option<IpAddr> {
        let endpoint = self.packed.endpoint(index)?;
        Some(match self.family() {
            Family::V4 => endpoint.first_chunk::<4>().copied()?.into(),
            Family::V6 => endpoint.first_chunk::<16>().copied()?.into(),
        })
    }

    pub fn conditions(&self, index: usize) -> Option<Conditions> {
        self.packed.endpoint(index)?.get(address_length(self.family())).copied().map(Conditions)
    }

    /// The name of the pod of each endpoint; empty if unknown.
    pub fn targets(&self) -> impl Iterator<Item = String> + use<'f> {
        let mut from = self.packed.texts();
        from.text_like("");
        let mut before = self.service.name().to_owned();
        (0..self.len()).map(move |_| {
            let (same, rest) = from.text_like(&before);
            before = [same, rest].concat();
            before.clone()
        })
    }

    /// The name of the pod; empty if unknown.
    pub fn target(&self, index: usize) -> String {
        self.targets().nth(index).unwrap_or_default()
    }
}

impl fmt::Debug for Slice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Slice").field(&self.name()).finish()
    }
}

#[cfg(test)]
mod tests;
