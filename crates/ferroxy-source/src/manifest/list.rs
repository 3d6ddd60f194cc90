//! A large list, read item by item, so that only one item is in memory at a time. Does not interpret the items.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::wire::field::{Field, Shape, mappings};

/// The fields of a document besides its items. They may come after the items (as `kubectl get` writes them), so they
/// are read in a pass of their own, before the items.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Outline {
    pub(super) kind: Field<String>,
    pub(super) api_version: Field<String>,
    pub(super) items: Field<Items>,
}

/// There is a list of items, whatever it contains.
#[derive(Debug)]
pub(super) struct Items;

mappings!(Outline);

impl Shape for Items {
    const WANTED: &'static str = "a list";
    fn from_list<'de, A: SeqAccess<'de>>(mut list: A) -> Result<Option<Items>, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Some(Items))
    }
}

/// Passes on each entry of the list `items` of a mapping, with its index.
pub(super) struct EachItem<F>(pub(super) F);

impl<'de, F: FnMut(usize, Value)> DeserializeSeed<'de> for EachItem<F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de, F: FnMut(usize, Value)> Visitor<'de> for EachItem<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mapping")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "items" => map.next_value_seed(Entries(&mut self.0))?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

struct Entries<'f, F>(&'f mut F);

impl<'de, F: FnMut(usize, Value)> DeserializeSeed<'de> for Entries<'_, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de, F: FnMut(usize, Value)> Visitor<'de> for Entries<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let mut index = 0;
        while let Some(item) = list.next_element()? {
            (self.0)(index, item);
            index += 1;
        }
        Ok(())
    }
}
