//! The API's protobuf form of the objects that a proxy reads, decoded from their bytes straight into events. `wire/` does
//! the same for JSON and YAML; both give the same events, as `kube/decode/tests.rs` checks.
//!
//! Only the fields we use are read; all others, known or not, are skipped. Field numbers are those of Kubernetes'
//! `generated.proto` files. Go writes every field that is not a pointer, also when it is empty: so an empty text means
//! what an absent one means in JSON, and only pointers can be absent.

mod endpoint_slice;
pub(crate) mod message;
mod metadata;
mod node;
mod reader;
mod service;
mod service_cidr;

use ferroxy_core::Event;

use crate::object::{Key, Kind};
use crate::wire::Decoded;
use crate::wire::field::Notes;
use crate::wire::room::MOST_ENTRIES;
use message::{Envelope, WatchEvent, list};
use metadata::Metadata;
pub use reader::Malformed;
use reader::{Value, fields};

/// How many entries the lists of an object may still have.
struct Room(usize);

impl Room {
    fn add<T>(&mut self, list: &mut Vec<T>, entry: T) -> Result<(), Malformed> {
        self.0 = self.0.checked_sub(1).ok_or(Malformed::TooManyEntries)?;
        list.push(entry);
        Ok(())
    }
}

/// Decodes an object of this kind, and its `resourceVersion`.
pub(crate) fn object(
    kind: Kind,
    message: &[u8],
    notes: &mut Notes,
) -> Result<(Decoded, Option<String>), Malformed> {
    let metadata = metadata_of(message)?;
    let mut room = Room(MOST_ENTRIES);
    let decoded = match kind {
        Kind::Node => node::read(&metadata, message, &mut room),
        Kind::ServiceCidr => service_cidr::read(&metadata, message, &mut room),
        Kind::Service => service::read(&metadata, message, &mut room, notes),
        Kind::Slice => endpoint_slice::read(&metadata, message, &mut room, notes),
    };
    let decoded = match (decoded, metadata.name()) {
        (Err(Malformed::TooManyEntries), Some(name)) => {
            Decoded::TooManyEntries(Key::new(kind, &metadata.namespace(), &name))
        }
        (decoded, _) => decoded?,
    };
    Ok((decoded, metadata.version()))
}

/// Field 1 of every object.
fn metadata_of(message: &[u8]) -> Result<Metadata<'_>, Malformed> {
    let mut metadata = Metadata::default();
    for field in fields(message) {
        if let (1, Value::Bytes(it)) = field? {
            metadata = Metadata::read(it)?;
        }
    }
    Ok(metadata)
}

/// The events of the objects in a body: a list, or one object. Unusable objects are left out. For tests and for
/// measuring decoding alone; `kube/` decides what happens with answers.
pub fn events_of_body(kind: Kind, body: &[u8]) -> Result<Vec<Event>, Malformed> {
    let envelope = Envelope::open(body)?;
    let mut events = Vec::new();
    if envelope.kind == kind.as_str().as_bytes() {
        events.extend(event_of(kind, envelope.message)?);
    } else {
        let items = envelope.expect(&format!("{}List", kind.as_str()))?;
        list(items, &mut |item| events.extend(event_of(kind, item).ok().flatten()))?;
    }
    Ok(events)
}

/// The event of the object in a frame of a watch.
pub fn event_of_frame(kind: Kind, frame: &[u8]) -> Result<Option<Event>, Malformed> {
    let object = Envelope::open(WatchEvent::read(frame)?.object)?;
    event_of(kind, object.expect(kind.as_str())?)
}

fn event_of(kind: Kind, message: &[u8]) -> Result<Option<Event>, Malformed> {
    match object(kind, message, &mut Notes::default())?.0 {
        Decoded::Object(object) => Ok(Some(object.into())),
        Decoded::LeftOut(_) | Decoded::Nameless | Decoded::TooManyEntries(_) => Ok(None),
    }
}
