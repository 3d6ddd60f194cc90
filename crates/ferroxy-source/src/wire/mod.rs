//! The fields of Kubernetes objects that a proxy reads, and nothing else of them. Any serde format will do.
//!
//! Decoding never fails because of one field: a field of the wrong type is noted and counts as absent, and the rest
//! of the object stands. That is what [`field::Field`] is for.

mod endpoint_slice;
pub(crate) mod field;
mod metadata;
mod node;
mod service;
mod service_cidr;
mod time;

use serde::{Deserialize, Deserializer};

use crate::object::{Kind, Object};
use field::Notes;

/// What came of decoding one object.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "matched where it is returned, never kept")]
pub(crate) enum Decoded {
    Object(Object),
    /// The original's selector does not see it either.
    LeftOut,
    /// It has no usable `metadata.name`.
    Nameless,
}

/// The kind a proxy reads that goes by this name, in the group and version it is read in. (Others use the name
/// `Service` too.)
pub(crate) fn known_kind(api_version: &str, kind: &str) -> Option<Kind> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let known = kind_in_group(group, kind)?;
    // ServiceCIDRs had their present form one version earlier.
    let read = version == "v1" || (known == Kind::ServiceCidr && version == "v1beta1");
    read.then_some(known)
}

/// The same, whatever the version.
pub(crate) fn kind_in_group(group: &str, kind: &str) -> Option<Kind> {
    match (group, kind) {
        ("", "Node") => Some(Kind::Node),
        ("", "Service") => Some(Kind::Service),
        ("discovery.k8s.io", "EndpointSlice") => Some(Kind::Slice),
        ("networking.k8s.io", "ServiceCIDR") => Some(Kind::ServiceCidr),
        _ => None,
    }
}

/// Decodes an object that is known to be of this kind. An error means that it is not a mapping at all.
pub(crate) fn decode<'de, D: Deserializer<'de>>(
    kind: Kind,
    from: D,
    notes: &mut Notes,
) -> Result<Decoded, D::Error> {
    Ok(match kind {
        Kind::Node => node::Node::deserialize(from)?.read(notes),
        Kind::ServiceCidr => service_cidr::ServiceCidr::deserialize(from)?.read(notes),
        Kind::Service => service::Service::deserialize(from)?.read(notes),
        Kind::Slice => endpoint_slice::EndpointSlice::deserialize(from)?.read(notes),
    })
}
