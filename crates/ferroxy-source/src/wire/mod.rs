//! The fields of Kubernetes objects that a proxy reads, and no others. Works with any serde format.
//!
//! Decoding never fails because of one field: a field of the wrong type is noted and counts as absent, and the rest
//! of the object is used. See [`field::Field`].

pub(crate) mod endpoint_slice;
pub(crate) mod field;
pub(crate) mod metadata;
pub(crate) mod node;
pub(crate) mod room;
pub(crate) mod service;
mod service_cidr;
pub(crate) mod time;

use serde::Deserializer;
use serde::de::DeserializeOwned;

use crate::object::{Key, Kind, Object};
use field::{Field, Notes};
use metadata::{Identity, Metadata};

/// The result of decoding one object.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "matched where it is returned, never kept")]
pub(crate) enum Decoded {
    Object(Object),
    /// kube-proxy's selector excludes it as well.
    LeftOut(Key),
    /// It has no usable `metadata.name`.
    Nameless,
    /// Its lists have more than [`room::MOST_ENTRIES`] entries.
    TooManyEntries(Key),
}

/// The kind with this name, in the group and version that a proxy reads. (Other API groups use the name
/// `Service` too.)
pub(crate) fn known_kind(api_version: &str, kind: &str) -> Option<Kind> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let known = kind_in_group(group, kind)?;
    // ServiceCIDRs have the same form in v1beta1.
    let read = version == "v1" || (known == Kind::ServiceCidr && version == "v1beta1");
    read.then_some(known)
}

/// As [`known_kind`], whatever the version.
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
    decode_versioned(kind, from, notes).map(|(decoded, _)| decoded)
}

/// As [`decode`], with the object's `resourceVersion`.
pub(crate) fn decode_versioned<'de, D: Deserializer<'de>>(
    kind: Kind,
    from: D,
    notes: &mut Notes,
) -> Result<(Decoded, Option<String>), D::Error> {
    match kind {
        Kind::Node => read::<node::Node, D>(kind, from, notes),
        Kind::ServiceCidr => read::<service_cidr::ServiceCidr, D>(kind, from, notes),
        Kind::Service => read::<service::Service, D>(kind, from, notes),
        Kind::Slice => read::<endpoint_slice::EndpointSlice, D>(kind, from, notes),
    }
}

/// What the types of all kinds have in common.
trait Wire: DeserializeOwned {
    fn metadata(&mut self) -> &mut Field<Metadata>;
    fn read(self, notes: &mut Notes) -> Decoded;
}

fn read<'de, T: Wire, D: Deserializer<'de>>(
    kind: Kind,
    from: D,
    notes: &mut Notes,
) -> Result<(Decoded, Option<String>), D::Error> {
    let (object, fits) = room::with_room(|| T::deserialize(from));
    let mut object = object?;
    let version = metadata::take_version(object.metadata());
    let decoded = match fits {
        true => object.read(notes),
        false => match Identity::read(std::mem::take(object.metadata()), notes) {
            Some(identity) => Decoded::TooManyEntries(Key::new(kind, &identity.namespace, &identity.name)),
            None => Decoded::Nameless,
        },
    };
    Ok((decoded, version))
}
