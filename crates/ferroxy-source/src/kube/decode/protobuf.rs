//! Answers in protobuf: frames of a watch, pages of a list, errors.

use super::{Bookmark, Content, Item, Line, PageEnd, Status};
use crate::object::Kind;
use crate::protobuf::message::{self, Envelope, ListMeta, WatchEvent};
use crate::protobuf::{self, Malformed};
use crate::wire::Decoded;
use crate::wire::field::Notes;

/// Reads a frame, without its length. An error means that it is not a watch event.
pub(super) fn line(kind: Kind, frame: &[u8]) -> Result<Line, Malformed> {
    let WatchEvent { kind: event, object } = WatchEvent::read(frame)?;
    Ok(match event {
        b"ADDED" | b"MODIFIED" => Line::Changed(enveloped(kind, object)),
        b"DELETED" => Line::Deleted(enveloped(kind, object)),
        b"BOOKMARK" => Line::Bookmark(bookmark(Envelope::open(object)?.expect(kind.as_str())?)?),
        b"ERROR" => Line::Error(read_status(object)?),
        _ => Line::Unknown,
    })
}

/// Reads a page of a list and passes on each item.
pub(super) fn page(kind: Kind, body: &[u8], each: &mut dyn FnMut(Item)) -> Result<PageEnd, Malformed> {
    let list = Envelope::open(body)?.expect(&format!("{}List", kind.as_str()))?;
    let ListMeta { version, r#continue } = message::list(list, &mut |it| each(item(kind, it)))?;
    Ok(PageEnd { resource_version: version, r#continue })
}

/// The `Status` in the body of an error response, if it is one.
pub(super) fn status(body: &[u8]) -> Option<Status> {
    read_status(body).ok()
}

fn read_status(body: &[u8]) -> Result<Status, Malformed> {
    let message::Status { code, reason, message } =
        message::Status::read(Envelope::open(body)?.expect("Status")?)?;
    Ok(Status { code, reason, message })
}

fn bookmark(message: &[u8]) -> Result<Bookmark, Malformed> {
    let message::Bookmark { version, ends_list } = message::Bookmark::read(message)?;
    Ok(Bookmark { version, ends_list })
}

/// An object that is not well-formed is [`Content::Unusable`], not an error: errors end the connection, and one bad object
/// must not.
fn enveloped(kind: Kind, object: &[u8]) -> Item {
    match Envelope::open(object).and_then(|envelope| envelope.expect(kind.as_str())) {
        Ok(message) => item(kind, message),
        Err(why) => unusable(why),
    }
}

fn item(kind: Kind, message: &[u8]) -> Item {
    let mut notes = Notes::default();
    match protobuf::object(kind, message, &mut notes) {
        Ok((Decoded::Object(object), version)) => {
            Item { version, content: Content::Object(object, notes.finish()) }
        }
        Ok((Decoded::LeftOut(key), version)) => Item { version, content: Content::LeftOut(key) },
        Ok((Decoded::Nameless, version)) => Item { version, content: Content::Unusable("it has no name") },
        Ok((Decoded::TooManyEntries(key), version)) => Item { version, content: Content::TooLong(key) },
        Err(why) => unusable(why),
    }
}

fn unusable(why: Malformed) -> Item {
    let why = match why {
        Malformed::Kind => "it is of another kind",
        _ => "it is not valid protobuf",
    };
    Item { version: None, content: Content::Unusable(why) }
}
