//! Decodes the answers of the API server: events of a watch, pages of a list, errors. The result is the same for every
//! encoding. `list_watch.rs` decides what to do with it.

mod json;
mod protobuf;

use std::fmt;

use ferroxy_core::{Event, foreign};
use serde::Deserialize;

use super::encoding::Encoding;
use crate::object::{Key, Kind, Object};
use crate::protobuf::Malformed;
use crate::protobuf::message::has_magic;
use crate::wire::field::Note;

/// One event of a watch.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "matched where it is returned, never kept")]
pub(super) enum Line {
    /// Added or modified.
    Changed(Item),
    Deleted(Item),
    Bookmark(Bookmark),
    Error(Status),
    /// Of an unknown type.
    Unknown,
}

/// An object, as far as it could be read.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) version: Option<String>,
    pub(super) content: Content,
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "matched where it is returned, never kept")]
pub(super) enum Content {
    /// The object, and its fields of the wrong type.
    Object(Object, Vec<Note>),
    /// The selector should have excluded it.
    LeftOut(Key),
    /// Its lists have more than [`MOST_ENTRIES`](crate::wire::room::MOST_ENTRIES) entries.
    TooLong(Key),
    /// The object cannot be identified.
    Unusable(&'static str),
}

#[derive(Debug)]
pub(super) struct Bookmark {
    pub(super) version: Option<String>,
    /// Everything that existed when the watch began has been sent.
    pub(super) ends_list: bool,
}

/// A `metav1.Status`: why the server rejected the request.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    pub(super) code: u16,
    pub(super) reason: String,
    pub(super) message: String,
}

impl Status {
    /// The server is behind the version that we have, for instance after a restored backup.
    pub(super) fn is_version_too_large(&self) -> bool {
        self.message.contains("Too large resource version")
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = self.code;
        match (&*foreign::kept(&self.reason), &*foreign::kept(&self.message)) {
            ("", "") => write!(f, "answered {code}"),
            (reason, "") => write!(f, "answered {code} {reason}"),
            (_, message) => write!(f, "answered {code}: {message}"),
        }
    }
}

/// The position of a list after a page.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PageEnd {
    pub(super) resource_version: String,
    /// The token of the next page; empty after the last.
    pub(super) r#continue: String,
}

/// A malformed answer. A single malformed object is [`Content::Unusable`] instead.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unreadable {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Protobuf(#[from] Malformed),
}

/// Reads an event of a watch: a line, or a frame.
pub(super) fn line(encoding: Encoding, kind: Kind, bytes: &[u8]) -> Result<Line, Unreadable> {
    Ok(match encoding {
        Encoding::Json => json::line(kind, bytes)?,
        Encoding::Protobuf => protobuf::line(kind, bytes)?,
    })
}

/// Reads a page of a list and passes on each item.
pub(super) fn page(
    encoding: Encoding,
    kind: Kind,
    bytes: &[u8],
    each: &mut dyn FnMut(Item),
) -> Result<PageEnd, Unreadable> {
    Ok(match encoding {
        Encoding::Json => json::page(kind, bytes, each)?,
        Encoding::Protobuf => protobuf::page(kind, bytes, each)?,
    })
}

/// Reads the body of an error response in any encoding; a body that is not a Status is quoted.
pub(super) fn status(code: u16, body: &[u8]) -> Status {
    let status = if has_magic(body) { protobuf::status(body) } else { json::status(body) };
    let Status { reason, message, .. } = status.unwrap_or_default();
    let message = if message.is_empty() { quoted(body) } else { message };
    Status { code, reason, message }
}

fn quoted(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(200).collect()
}

/// The event of an `ADDED` or `MODIFIED` line in JSON. For measuring decoding alone; `list_watch.rs` decides
/// what happens with lines.
pub fn event_of(kind: Kind, bytes: &[u8]) -> Option<Event> {
    match json::line(kind, bytes).ok()? {
        Line::Changed(Item { content: Content::Object(object, _), .. }) => Some(object.into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
