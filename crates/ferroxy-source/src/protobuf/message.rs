//! The messages around objects: the envelope of every body, the events of a watch, lists and errors.

use super::metadata::Metadata;
use super::reader::{Malformed, Value, fields, int32, whole};

/// The first bytes of every protobuf body.
const MAGIC: &[u8] = b"k8s\0";

/// Whether the body is marked as protobuf.
pub(crate) fn has_magic(body: &[u8]) -> bool {
    body.starts_with(MAGIC)
}

/// A `runtime.Unknown`: a message with its kind.
#[derive(Debug, Default)]
pub(crate) struct Envelope<'a> {
    /// `Service`, `ServiceList`, `Status`
    pub(crate) kind: &'a [u8],
    pub(crate) message: &'a [u8],
}

impl<'a> Envelope<'a> {
    pub(crate) fn open(body: &'a [u8]) -> Result<Envelope<'a>, Malformed> {
        let unknown = body.strip_prefix(MAGIC).ok_or(Malformed::Magic)?;
        let mut envelope = Envelope::default();
        for field in fields(unknown) {
            match field? {
                (1, Value::Bytes(it)) => envelope.kind = kind(it)?,
                (2, Value::Bytes(it)) => envelope.message = it,
                // Content encoding and content type: empty for plain protobuf.
                (3 | 4, Value::Bytes(it)) if !it.is_empty() => return Err(Malformed::Encoding),
                _ => {}
            }
        }
        Ok(envelope)
    }

    /// The message, if it is of this kind. In other kinds, field numbers have other meanings.
    pub(crate) fn expect(self, kind: &str) -> Result<&'a [u8], Malformed> {
        if self.kind == kind.as_bytes() { Ok(self.message) } else { Err(Malformed::Kind) }
    }
}

/// The kind in a `TypeMeta`.
fn kind(message: &[u8]) -> Result<&[u8], Malformed> {
    let mut kind: &[u8] = b"";
    for field in fields(message) {
        if let (2, Value::Bytes(it)) = field? {
            kind = it;
        }
    }
    Ok(kind)
}

/// A `WatchEvent`.
#[derive(Debug, Default)]
pub(crate) struct WatchEvent<'a> {
    /// `ADDED`
    pub(crate) kind: &'a [u8],
    /// In an envelope of its own.
    pub(crate) object: &'a [u8],
}

impl<'a> WatchEvent<'a> {
    pub(crate) fn read(frame: &'a [u8]) -> Result<WatchEvent<'a>, Malformed> {
        let (mut kind, mut object) = (None, None);
        for field in fields(frame) {
            match field? {
                (1, Value::Bytes(it)) => kind = Some(it),
                (2, Value::Bytes(it)) => object = raw(it)?,
                _ => {}
            }
        }
        Ok(WatchEvent {
            kind: kind.ok_or(Malformed::Missing("type"))?,
            object: object.ok_or(Malformed::Missing("object"))?,
        })
    }
}

/// The bytes of a `RawExtension`.
fn raw(message: &[u8]) -> Result<Option<&[u8]>, Malformed> {
    let mut raw = None;
    for field in fields(message) {
        if let (1, Value::Bytes(it)) = field? {
            raw = Some(it);
        }
    }
    Ok(raw)
}

/// The `ListMeta` of a list.
#[derive(Debug, Default)]
pub(crate) struct ListMeta {
    pub(crate) version: String,
    pub(crate) r#continue: String,
}

/// Reads a list of any kind and passes on the message of each item.
pub(crate) fn list(message: &[u8], each: &mut dyn FnMut(&[u8])) -> Result<ListMeta, Malformed> {
    let mut end = None;
    for field in fields(message) {
        match field? {
            (1, Value::Bytes(it)) => end = Some(list_meta(it)?),
            (2, Value::Bytes(it)) => each(it),
            _ => {}
        }
    }
    end.ok_or(Malformed::Missing("metadata"))
}

fn list_meta(message: &[u8]) -> Result<ListMeta, Malformed> {
    let mut meta = ListMeta::default();
    for field in fields(message) {
        match field? {
            (2, Value::Bytes(it)) => meta.version = whole(it),
            (3, Value::Bytes(it)) => meta.r#continue = whole(it),
            _ => {}
        }
    }
    Ok(meta)
}

/// The content of a bookmark: an object of the watched kind that has only metadata.
#[derive(Debug)]
pub(crate) struct Bookmark {
    pub(crate) version: Option<String>,
    pub(crate) ends_list: bool,
}

impl Bookmark {
    pub(crate) fn read(message: &[u8]) -> Result<Bookmark, Malformed> {
        let metadata = super::metadata_of(message)?;
        let ends_list = metadata.annotation("k8s.io/initial-events-end") == Some(b"true");
        Ok(Bookmark { version: Metadata::version(&metadata), ends_list })
    }
}

/// A `metav1.Status`.
#[derive(Debug, Default)]
pub(crate) struct Status {
    pub(crate) code: u16,
    pub(crate) reason: String,
    pub(crate) message: String,
}

impl Status {
    pub(crate) fn read(message: &[u8]) -> Result<Status, Malformed> {
        let mut status = Status::default();
        for field in fields(message) {
            match field? {
                (3, Value::Bytes(it)) => status.message = whole(it),
                (4, Value::Bytes(it)) => status.reason = whole(it),
                (6, Value::Number(it)) => status.code = u16::try_from(int32(it)).unwrap_or_default(),
                _ => {}
            }
        }
        Ok(status)
    }
}
