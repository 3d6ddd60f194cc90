//! `ObjectMeta`: the fields that a proxy reads. Labels and annotations are searched where they are and not collected.

use ferroxy_core::foreign;
use ferroxy_core::policy::is_kept_annotation;

use super::reader::{Malformed, Value, fields, text, whole};
use crate::wire::field::Notes;
use crate::wire::metadata::{LAST_CHANGE, LAST_CHANGE_FIELD, MOST};
use crate::wire::time;

const LABELS: u32 = 11;
const ANNOTATIONS: u32 = 12;

#[derive(Debug, Default)]
pub(super) struct Metadata<'a> {
    name: &'a [u8],
    namespace: &'a [u8],
    version: &'a [u8],
    created: Option<i64>,
    /// It is being deleted.
    pub(super) deleting: bool,
    all: &'a [u8],
}

impl<'a> Metadata<'a> {
    pub(super) fn read(message: &'a [u8]) -> Result<Metadata<'a>, Malformed> {
        let mut metadata = Metadata { all: message, ..Metadata::default() };
        for field in fields(message) {
            match field? {
                (1, Value::Bytes(it)) => metadata.name = it,
                (3, Value::Bytes(it)) => metadata.namespace = it,
                (6, Value::Bytes(it)) => metadata.version = it,
                (8, Value::Bytes(it)) => metadata.created = seconds(it)?,
                (9, Value::Bytes(it)) => metadata.deleting = seconds(it)?.is_some(),
                // Checked here, so that a later search meets no error.
                (LABELS | ANNOTATIONS, Value::Bytes(it)) => {
                    entry(it)?;
                }
                _ => {}
            }
        }
        Ok(metadata)
    }

    /// `None`: the object cannot be identified.
    pub(super) fn name(&self) -> Option<String> {
        (!self.name.is_empty()).then(|| text(self.name))
    }

    pub(super) fn namespace(&self) -> String {
        if self.namespace.is_empty() { "default".to_owned() } else { text(self.namespace) }
    }

    /// The position of the object in a watch.
    pub(super) fn version(&self) -> Option<String> {
        (!self.version.is_empty()).then(|| whole(self.version))
    }

    /// Seconds since 1970.
    pub(super) fn created(&self, notes: &mut Notes) -> Option<i64> {
        time::in_range(self.created?, "metadata.creationTimestamp", notes)
    }

    pub(super) fn label(&self, key: &str) -> Option<String> {
        self.entries(LABELS).filter(|(it, _)| *it == key.as_bytes()).last().map(|(_, value)| text(value))
    }

    pub(super) fn annotation(&self, key: &str) -> Option<&'a [u8]> {
        self.entries(ANNOTATIONS).filter(|(it, _)| *it == key.as_bytes()).last().map(|(_, value)| value)
    }

    /// When the change happened that led to this state of a slice, in nanoseconds since 1970.
    pub(super) fn last_change(&self, notes: &mut Notes) -> Option<i64> {
        time::nanoseconds(&text(self.annotation(LAST_CHANGE)?), LAST_CHANGE_FIELD, notes)
    }

    /// Our annotations, with their values.
    pub(super) fn our_annotations(&self) -> Vec<(String, String)> {
        let ours = self.entries(ANNOTATIONS).filter(|(key, _)| {
            str::from_utf8(key).is_ok_and(is_kept_annotation) && key.len() <= foreign::LONGEST
        });
        ours.take(MOST).map(|(key, value)| (text(key), text(value))).collect()
    }

    /// The entries of one of the maps.
    fn entries(&self, map: u32) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        fields(self.all).filter_map(move |field| match field {
            Ok((number, Value::Bytes(it))) if number == map => entry(it).ok(),
            _ => None,
        })
    }
}

/// Key and value of an entry of a map of texts.
fn entry(message: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let mut entry: (&[u8], &[u8]) = (b"", b"");
    for field in fields(message) {
        match field? {
            (1, Value::Bytes(it)) => entry.0 = it,
            (2, Value::Bytes(it)) => entry.1 = it,
            _ => {}
        }
    }
    Ok(entry)
}

/// A `Time`. Go writes the zero time, which JSON shows as `null`, without fields.
fn seconds(message: &[u8]) -> Result<Option<i64>, Malformed> {
    let mut seconds = (!message.is_empty()).then_some(0);
    for field in fields(message) {
        if let (1, Value::Number(it)) = field? {
            seconds = Some(it.cast_signed());
        }
    }
    Ok(seconds)
}
