//! A field that may be absent or of the wrong type without invalidating its object. Does not validate values.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use ferroxy_core::foreign;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::room;

/// A field as it was found. `null` is absent, as in the API.
#[derive(Debug, Default)]
pub(crate) enum Field<T> {
    #[default]
    Absent,
    Is(T),
    /// What was found instead: `a list`.
    Wrong(&'static str),
}

/// The fields of one object that had the wrong type: a limited number is kept, and the rest is counted.
#[derive(Debug, Default)]
pub(crate) struct Notes(pub(crate) Vec<Note>, usize);

const MOST_NOTES: usize = 20;

impl Notes {
    pub(crate) fn add(&mut self, field: impl fmt::Display, reason: String) {
        if self.0.len() < MOST_NOTES {
            self.0.push(Note { field: field.to_string(), reason });
        } else {
            self.1 += 1;
        }
    }

    pub(crate) fn finish(mut self) -> Vec<Note> {
        if self.1 > 0 {
            self.0.push(Note { field: "(more)".to_owned(), reason: format!("and {} more", self.1) });
        }
        self.0
    }
}

#[derive(Debug, PartialEq)]
pub(crate) struct Note {
    /// `spec.ports[1].port`
    pub(crate) field: String,
    pub(crate) reason: String,
}

impl<T: Shape> Field<T> {
    /// The value, if there is one. A value of the wrong type is noted under this path.
    pub(crate) fn take(self, path: fmt::Arguments<'_>, notes: &mut Notes) -> Option<T> {
        match self {
            Field::Absent => None,
            Field::Is(value) => Some(value),
            Field::Wrong(found) => {
                let reason = format!("must be {}, but is {found}", T::WANTED);
                notes.add(path, reason);
                None
            }
        }
    }
}

impl<T: Shape> Field<Vec<Field<T>>> {
    /// The entries with their index; those of the wrong type are noted and left out.
    pub(crate) fn entries(self, path: fmt::Arguments<'_>, notes: &mut Notes) -> Vec<(usize, T)> {
        let entries = self.take(path, notes).unwrap_or_default();
        let numbered = entries.into_iter().enumerate();
        numbered.filter_map(|(i, e)| Some((i, e.take(format_args!("{path}[{i}]"), notes)?))).collect()
    }
}

impl Field<Vec<Field<String>>> {
    pub(crate) fn texts(self, path: fmt::Arguments<'_>, notes: &mut Notes) -> Vec<String> {
        self.entries(path, notes).into_iter().map(|(_, text)| text).collect()
    }
}

/// Converts each kind of value to a type; `None` means that this kind of value is wrong for it.
pub(crate) trait Shape: Sized {
    /// `text`, `a list`: completes "must be …".
    const WANTED: &'static str;

    fn from_text(_: &str) -> Option<Self> {
        None
    }
    fn from_integer(_: i64) -> Option<Self> {
        None
    }
    fn from_boolean(_: bool) -> Option<Self> {
        None
    }
    fn from_list<'de, A: SeqAccess<'de>>(mut list: A) -> Result<Option<Self>, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }
    fn from_map<'de, A: MapAccess<'de>>(mut map: A) -> Result<Option<Self>, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(None)
    }
}

impl Shape for String {
    const WANTED: &'static str = "text";
    /// Text longer than any valid value is cut, whatever it is: it stays invalid, and costs no more than other text.
    fn from_text(text: &str) -> Option<String> {
        Some(foreign::cut(text).to_owned())
    }
}

/// Text of the API server itself, as it is: a resource version that was cut would be another one.
#[derive(Debug, Default)]
pub(crate) struct Whole(pub(crate) String);

impl Shape for Whole {
    const WANTED: &'static str = "text";
    fn from_text(text: &str) -> Option<Whole> {
        Some(Whole(text.to_owned()))
    }
}

impl Shape for i64 {
    const WANTED: &'static str = "a whole number";
    fn from_integer(number: i64) -> Option<i64> {
        Some(number)
    }
}

impl Shape for bool {
    const WANTED: &'static str = "true or false";
    fn from_boolean(value: bool) -> Option<bool> {
        Some(value)
    }
}

/// A port by number or by name (`targetPort`), as written.
#[derive(Debug)]
pub(crate) struct NumberOrName(pub(crate) String);

impl Shape for NumberOrName {
    const WANTED: &'static str = "a whole number or text";
    fn from_text(text: &str) -> Option<NumberOrName> {
        Some(NumberOrName(foreign::cut(text).to_owned()))
    }
    fn from_integer(number: i64) -> Option<NumberOrName> {
        Some(NumberOrName(number.to_string()))
    }
}

impl<T: Shape> Shape for Vec<Field<T>> {
    const WANTED: &'static str = "a list";
    fn from_list<'de, A: SeqAccess<'de>>(mut list: A) -> Result<Option<Self>, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = list.next_element()? {
            if !room::take() {
                // The object will not be used. The rest is skipped, as an error would end the connection.
                while list.next_element::<IgnoredAny>()?.is_some() {}
                break;
            }
            entries.push(entry);
        }
        Ok(Some(entries))
    }
}

pub(crate) type Labels = BTreeMap<String, Field<String>>;

impl Shape for Labels {
    const WANTED: &'static str = "a mapping";
    fn from_map<'de, A: MapAccess<'de>>(mut map: A) -> Result<Option<Self>, A::Error> {
        let mut labels = BTreeMap::new();
        while let Some((key, value)) = map.next_entry()? {
            if !room::take() {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                break;
            }
            labels.insert(key, value);
        }
        Ok(Some(labels))
    }
}

/// Makes structs that derive `Deserialize` usable as fields.
macro_rules! mappings {
    ($($name:ident),+ $(,)?) => {$(
        impl $crate::wire::field::Shape for $name {
            const WANTED: &'static str = "a mapping";
            fn from_map<'de, A: serde::de::MapAccess<'de>>(map: A) -> Result<Option<Self>, A::Error> {
                let whole = serde::de::value::MapAccessDeserializer::new(map);
                serde::Deserialize::deserialize(whole).map(Some)
            }
        }
    )+};
}
pub(crate) use mappings;

impl<'de, T: Shape> Deserialize<'de> for Field<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Field<T>, D::Error> {
        from.deserialize_any(FieldVisitor(PhantomData))
    }
}

struct FieldVisitor<T>(PhantomData<T>);

fn found<T>(value: Option<T>, what: &'static str) -> Field<T> {
    value.map_or(Field::Wrong(what), Field::Is)
}

impl<'de, T: Shape> Visitor<'de> for FieldVisitor<T> {
    type Value = Field<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }
    fn visit_unit<E>(self) -> Result<Field<T>, E> {
        Ok(Field::Absent)
    }
    fn visit_none<E>(self) -> Result<Field<T>, E> {
        Ok(Field::Absent)
    }
    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Field<T>, D::Error> {
        from.deserialize_any(self)
    }
    fn visit_str<E>(self, text: &str) -> Result<Field<T>, E> {
        Ok(found(T::from_text(text), "text"))
    }
    fn visit_bool<E>(self, value: bool) -> Result<Field<T>, E> {
        Ok(found(T::from_boolean(value), "true or false"))
    }
    fn visit_i64<E>(self, number: i64) -> Result<Field<T>, E> {
        Ok(found(T::from_integer(number), "a number"))
    }
    fn visit_u64<E>(self, number: u64) -> Result<Field<T>, E> {
        Ok(found(i64::try_from(number).ok().and_then(T::from_integer), "a number"))
    }
    fn visit_f64<E>(self, number: f64) -> Result<Field<T>, E> {
        // Some JavaScript tools write 80 as 80.0, and the API server accepts it.
        let whole = (number.fract() == 0.0 && number.abs() < 1e15).then_some(number as i64);
        Ok(found(whole.and_then(T::from_integer), "a number with a fraction"))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Field<T>, A::Error> {
        Ok(found(T::from_list(list)?, "a list"))
    }
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Field<T>, A::Error> {
        Ok(found(T::from_map(map)?, "a mapping"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn field<T: Shape>(value: serde_json::Value) -> Field<T> {
        serde_json::from_value(value).unwrap()
    }

    fn taken<T: Shape>(value: serde_json::Value) -> (Option<T>, Vec<String>) {
        let mut notes = Notes::default();
        let taken = field::<T>(value).take(format_args!("f"), &mut notes);
        (taken, notes.0.into_iter().map(|note| format!("{}: {}", note.field, note.reason)).collect())
    }

    #[test]
    fn right_types_are_taken_as_they_are() {
        assert_eq!(taken::<String>(json!("a")), (Some("a".into()), vec![]));
        assert_eq!(taken::<i64>(json!(80)), (Some(80), vec![]));
        assert_eq!(taken::<i64>(json!(80.0)), (Some(80), vec![]));
        assert_eq!(taken::<i64>(json!(-1)), (Some(-1), vec![]));
        assert_eq!(taken::<bool>(json!(false)), (Some(false), vec![]));
        assert_eq!(taken::<NumberOrName>(json!(8080)).0.unwrap().0, "8080");
        assert_eq!(taken::<NumberOrName>(json!("http")).0.unwrap().0, "http");
    }

    #[test]
    fn long_text_is_cut() {
        let novel = "a".repeat(200_000);
        assert_eq!(taken::<String>(json!(novel)).0.unwrap().len(), foreign::LONGEST);
        assert_eq!(taken::<NumberOrName>(json!(novel)).0.unwrap().0.len(), foreign::LONGEST);
        assert_eq!(taken::<Vec<Field<String>>>(json!([novel])).1, [""; 0]);
    }

    #[test]
    fn many_mistakes_are_counted() {
        let mut notes = Notes::default();
        let list = field::<Vec<Field<String>>>(json!(vec![1; 1000]));
        assert_eq!(list.texts(format_args!("spec.ips"), &mut notes), [""; 0]);
        let notes = notes.finish();
        assert_eq!(notes.len(), MOST_NOTES + 1);
        assert_eq!(notes[MOST_NOTES].reason, "and 980 more");
    }

    #[test]
    fn null_is_absent_and_is_not_noted() {
        assert_eq!(taken::<String>(json!(null)), (None, vec![]));
        assert_eq!(taken::<i64>(json!(null)), (None, vec![]));
    }

    #[test]
    fn wrong_types_are_noted_with_what_was_found() {
        assert_eq!(taken::<String>(json!(80)), (None, vec!["f: must be text, but is a number".into()]));
        assert_eq!(taken::<i64>(json!("80")), (None, vec!["f: must be a whole number, but is text".into()]));
        assert_eq!(
            taken::<i64>(json!(1.5)),
            (None, vec!["f: must be a whole number, but is a number with a fraction".into()])
        );
        assert_eq!(taken::<i64>(json!(u64::MAX)).1.len(), 1);
        assert_eq!(
            taken::<bool>(json!([{"a": 1}])),
            (None, vec!["f: must be true or false, but is a list".into()])
        );
        assert_eq!(
            taken::<String>(json!({"a": [1]})),
            (None, vec!["f: must be text, but is a mapping".into()])
        );
    }

    #[test]
    fn one_wrong_entry_leaves_the_others() {
        let mut notes = Notes::default();
        let list = field::<Vec<Field<String>>>(json!(["a", 1, "b"]));
        assert_eq!(list.texts(format_args!("spec.ips"), &mut notes), ["a", "b"]);
        assert_eq!(notes.0[0].field, "spec.ips[1]");
    }
}
