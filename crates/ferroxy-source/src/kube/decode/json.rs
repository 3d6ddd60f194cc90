//! Answers in JSON: lines of a watch, pages of a list, errors.

use std::fmt;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{Bookmark, Content, Item, Line, PageEnd, Status};
use crate::object::Kind;
use crate::wire::field::Notes;
use crate::wire::{self, Decoded};

/// Reads a line. An error means that it is not JSON, or not a watch event.
pub(super) fn line(kind: Kind, bytes: &[u8]) -> serde_json::Result<Line> {
    let read = |known| {
        let mut from = serde_json::Deserializer::from_slice(bytes);
        let envelope = EnvelopeSeed { kind, known }.deserialize(&mut from)?;
        from.end().map(|()| envelope)
    };
    match read(None)? {
        Envelope::Opened(line) => Ok(line),
        // Go writes the type first; a server that sorts its keys does not.
        Envelope::TypeCameLast(known) => match read(Some(known))? {
            Envelope::Opened(line) => Ok(line),
            Envelope::TypeCameLast(_) => Err(serde_json::Error::custom("the object is missing")),
        },
    }
}

/// Reads a page of a list and passes on each item.
pub(super) fn page(kind: Kind, bytes: &[u8], each: &mut dyn FnMut(Item)) -> serde_json::Result<PageEnd> {
    let mut from = serde_json::Deserializer::from_slice(bytes);
    let end = PageSeed { kind, each }.deserialize(&mut from)?;
    from.end().map(|()| end)
}

/// The `Status` in the body of an error response, if it is one.
pub(super) fn status(body: &[u8]) -> Option<Status> {
    serde_json::from_slice(body).ok()
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(field_identifier, rename_all = "UPPERCASE")]
enum Type {
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
    #[serde(other)]
    Unknown,
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum EnvelopeField {
    Type,
    Object,
    #[serde(other)]
    Other,
}

#[allow(clippy::large_enum_variant, reason = "matched where it is returned, never kept")]
enum Envelope {
    Opened(Line),
    TypeCameLast(Type),
}

struct EnvelopeSeed {
    kind: Kind,
    /// The type, if an earlier pass found it after the object.
    known: Option<Type>,
}

impl<'de> DeserializeSeed<'de> for EnvelopeSeed {
    type Value = Envelope;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Envelope, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for EnvelopeSeed {
    type Value = Envelope;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a watch event")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Envelope, A::Error> {
        let mut line = None;
        while let Some(field) = map.next_key()? {
            match field {
                EnvelopeField::Type => self.known = Some(map.next_value()?),
                EnvelopeField::Object => match self.known {
                    Some(known) => line = Some(read_object(self.kind, known, &mut map)?),
                    None => drop(map.next_value::<IgnoredAny>()?),
                },
                EnvelopeField::Other => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        match (line, self.known) {
            (Some(line), _) => Ok(Envelope::Opened(line)),
            (None, Some(known)) => Ok(Envelope::TypeCameLast(known)),
            (None, None) => Err(A::Error::missing_field("type")),
        }
    }
}

fn read_object<'de, A: MapAccess<'de>>(kind: Kind, known: Type, map: &mut A) -> Result<Line, A::Error> {
    Ok(match known {
        Type::Added | Type::Modified => Line::Changed(map.next_value_seed(ItemSeed(kind))?),
        Type::Deleted => Line::Deleted(map.next_value_seed(ItemSeed(kind))?),
        Type::Bookmark => Line::Bookmark(map.next_value::<BookmarkObject>()?.into()),
        Type::Error => Line::Error(map.next_value()?),
        Type::Unknown => {
            map.next_value::<IgnoredAny>()?;
            Line::Unknown
        }
    })
}

#[derive(Deserialize)]
struct BookmarkObject {
    metadata: BookmarkMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BookmarkMetadata {
    #[serde(default)]
    resource_version: String,
    #[serde(default)]
    annotations: BookmarkAnnotations,
}

#[derive(Default, Deserialize)]
struct BookmarkAnnotations {
    #[serde(rename = "k8s.io/initial-events-end", default)]
    ends_list: String,
}

impl From<BookmarkObject> for Bookmark {
    fn from(object: BookmarkObject) -> Bookmark {
        let BookmarkMetadata { resource_version: version, annotations } = object.metadata;
        Bookmark {
            version: Some(version).filter(|it| !it.is_empty()),
            ends_list: annotations.ends_list == "true",
        }
    }
}

/// Reads an object of a kind. A value that is not a mapping is [`Content::Unusable`], not an error: errors end the
/// connection, and one bad object must not.
struct ItemSeed(Kind);

impl<'de> DeserializeSeed<'de> for ItemSeed {
    type Value = Item;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Item, D::Error> {
        from.deserialize_any(self)
    }
}

fn unusable<E>(why: &'static str) -> Result<Item, E> {
    Ok(Item { version: None, content: Content::Unusable(why) })
}

impl<'de> Visitor<'de> for ItemSeed {
    type Value = Item;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Item, A::Error> {
        let mut notes = Notes::default();
        let (decoded, version) = wire::decode_versioned(self.0, MapAccessDeserializer::new(map), &mut notes)?;
        let content = match decoded {
            Decoded::Object(object) => Content::Object(object, notes.finish()),
            Decoded::LeftOut(key) => Content::LeftOut(key),
            Decoded::Nameless => Content::Unusable("it has no name"),
            Decoded::TooManyEntries(key) => Content::TooLong(key),
        };
        Ok(Item { version, content })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Item, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        unusable("it is a list")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Item, E> {
        unusable("it is true or false")
    }

    fn visit_i64<E>(self, _: i64) -> Result<Item, E> {
        unusable("it is a number")
    }

    fn visit_u64<E>(self, _: u64) -> Result<Item, E> {
        unusable("it is a number")
    }

    fn visit_f64<E>(self, _: f64) -> Result<Item, E> {
        unusable("it is a number")
    }

    fn visit_str<E>(self, _: &str) -> Result<Item, E> {
        unusable("it is text")
    }

    fn visit_unit<E>(self) -> Result<Item, E> {
        unusable("it is null")
    }
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum PageField {
    Metadata,
    Items,
    #[serde(other)]
    Other,
}

struct PageSeed<'a> {
    kind: Kind,
    each: &'a mut dyn FnMut(Item),
}

impl<'de> DeserializeSeed<'de> for PageSeed<'_> {
    type Value = PageEnd;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<PageEnd, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for PageSeed<'_> {
    type Value = PageEnd;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PageEnd, A::Error> {
        let mut end = None;
        while let Some(field) = map.next_key()? {
            match field {
                PageField::Metadata => end = Some(map.next_value()?),
                PageField::Items => map.next_value_seed(ItemsSeed { kind: self.kind, each: self.each })?,
                PageField::Other => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        end.ok_or_else(|| A::Error::missing_field("metadata"))
    }
}

struct ItemsSeed<'a> {
    kind: Kind,
    each: &'a mut dyn FnMut(Item),
}

impl<'de> DeserializeSeed<'de> for ItemsSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ItemsSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the items of a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(item) = list.next_element_seed(ItemSeed(self.kind))? {
            (self.each)(item);
        }
        Ok(())
    }

    /// Go writes a list without items as `null`.
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(item: &Item) -> String {
        match &item.content {
            Content::Object(object, notes) => format!("{} {}", object.key().name, notes.len()),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn lines_of_every_type_and_order() {
        let changed = r#"{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"7","managedFields":[{"x":1}]}}}"#;
        let Line::Changed(item) = line(Kind::Service, changed.as_bytes()).unwrap() else { panic!() };
        assert_eq!((name(&item).as_str(), item.version.as_deref()), ("a 0", Some("7")));
        let sorted = br#"{"object":{"metadata":{"name":"a"}},"type":"DELETED"}"#;
        let Line::Deleted(item) = line(Kind::Node, sorted).unwrap() else { panic!() };
        assert_eq!(name(&item), "a 0");
        let end = br#"{"type":"BOOKMARK","object":{"kind":"Service","metadata":{"resourceVersion":"9",
            "creationTimestamp":null,"annotations":{"k8s.io/initial-events-end":"true","b":"c"}},"spec":{}}}"#;
        let Line::Bookmark(bookmark) = line(Kind::Service, end).unwrap() else { panic!() };
        assert_eq!((bookmark.version.as_deref(), bookmark.ends_list), (Some("9"), true));
        let error = br#"{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}"#;
        let Line::Error(status) = line(Kind::Service, error).unwrap() else { panic!() };
        assert_eq!(
            (status.code, status.reason.as_str(), status.message.as_str()),
            (410, "Expired", "too old")
        );
        assert!(matches!(line(Kind::Service, br#"{"type":"NEW","object":1}"#), Ok(Line::Unknown)));
    }

    #[test]
    fn a_bad_object_is_not_an_error_but_a_bad_line_is() {
        for object in ["7", "-7", "1.5", "\"x\"", "null", "true", "[{}]", "{}", r#"{"metadata":[]}"#] {
            let text = format!(r#"{{"type":"ADDED","object":{object}}}"#);
            let Ok(Line::Changed(item)) = line(Kind::Slice, text.as_bytes()) else { panic!("{text}") };
            assert!(matches!(item.content, Content::Unusable(_)), "{text}");
        }
        for text in
            ["", "{", "7", "[]", "{}", "garbage", r#"{"type":"ADDED"}"#, r#"{"type":"ADDED","object":{}} x"#]
        {
            assert!(line(Kind::Slice, text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn pages() {
        let mut names = Vec::new();
        let body =
            br#"{"kind":"NodeList","items":[{"metadata":{"name":"a"},"spec":7},8,{"metadata":{"name":"b"}}],
            "metadata":{"resourceVersion":"5","continue":"next","remainingItemCount":3}}"#;
        let end = page(Kind::Node, body, &mut |item| names.push(name(&item))).unwrap();
        assert_eq!(names, ["a 1", "Unusable(\"it is a number\")", "b 0"]);
        assert_eq!((end.resource_version.as_str(), end.r#continue.as_str()), ("5", "next"));
        let empty = br#"{"metadata":{"resourceVersion":"5"},"items":null}"#;
        assert_eq!(page(Kind::Node, empty, &mut |_| panic!()).unwrap().r#continue, "");
        assert!(page(Kind::Node, br#"{"items":[]}"#, &mut |_| panic!()).is_err());
    }
}
