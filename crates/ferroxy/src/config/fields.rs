//! The fields in a configuration file that tables describe, those of the modes and our own: where they are, their
//! defaults, and how a value is written. `validate/fields.rs` checks them.

use std::collections::BTreeMap;
use std::time::Duration;

use ferroxy_dataplane::{Field, Kind, Settings, Value as Setting, Zero};
use serde_json::{Map, Value};

use super::defaults::Origin;
use super::{duration, own};
use crate::modes::Modes;

/// Values of these fields as a file has them, by the name of the field. A field that is not there is not written.
pub(super) type Written = BTreeMap<&'static str, Value>;

/// Every field that a table describes.
pub(super) fn table(modes: Modes) -> Vec<&'static Field> {
    own::FIELDS.iter().chain(modes.fields()).collect()
}

/// Takes the fields out of a file.
pub(super) fn take(modes: Modes, file: &mut Value) -> Written {
    let written = |field: &'static Field| Some((field.name, remove(file, field.name)?));
    table(modes).into_iter().filter_map(written).collect()
}

/// Puts the fields back, and creates the blocks that they are in.
pub(super) fn put(written: &Written, file: &mut Value) {
    for (name, value) in written {
        insert(file, name, value.clone());
    }
}

/// Fills in the fields that are not written.
pub(super) fn fill(written: &mut Written, modes: Modes, mode: &str, origin: Origin) {
    for field in table(modes) {
        let is_given = written.get(field.name).is_some_and(|value| !means_default(field, value, origin));
        if !is_given {
            written.insert(field.name, default(field, mode, origin));
        }
    }
}

/// An example of each field, with the type that it has in a file.
pub(super) fn examples(modes: Modes) -> Written {
    let example = |kind| match kind {
        Kind::Truth { .. } => Value::Bool(true),
        Kind::Number { .. } => Value::from(0),
        Kind::Text { .. } | Kind::Duration { .. } | Kind::Choice { .. } | Kind::Ports => {
            Value::String(String::new())
        }
        Kind::Cidrs => Value::Array(vec![Value::String(String::new())]),
    };
    table(modes).into_iter().map(|field| (field.name, example(field.kind))).collect()
}

/// Every field with its value.
pub(super) fn all(modes: Modes, values: &Settings) -> Written {
    table(modes).into_iter().map(|field| (field.name, to_json(values.get(field)))).collect()
}

/// A checked value as a file has it.
pub(super) fn to_json(value: Setting) -> Value {
    match value {
        Setting::Truth(truth) => Value::Bool(truth),
        Setting::Number(number) => Value::from(number),
        Setting::Text(text) => Value::String(text),
        Setting::Duration(duration) => Value::String(duration::format(duration)),
        Setting::Cidrs(cidrs) => cidrs.iter().map(ToString::to_string).collect(),
    }
}

/// A value that loads as this one: where zero stands for the default, the shortest duration stands for zero.
pub(super) fn for_file(field: &Field, value: Setting) -> Value {
    let zero = Value::String(duration::format(Duration::ZERO));
    let written = to_json(value);
    let is_default = written == zero && means_default(field, &zero, Origin::File);
    if is_default && default(field, "", Origin::File) != zero {
        return Value::String(duration::format(SHORTEST));
    }
    written
}

pub(super) const SHORTEST: Duration = Duration::from_nanos(1);

fn default(field: &Field, mode: &str, origin: Origin) -> Value {
    match field.kind {
        Kind::Duration { default_in_file: Some(default), .. } if origin == Origin::File => {
            Value::String(duration::format(default))
        }
        _ => to_json(own::default(field, mode)),
    }
}

/// In a file, zero stands for the default of some durations.
fn means_default(field: &Field, value: &Value, origin: Origin) -> bool {
    let Kind::Duration { zero: Zero::DefaultInFile | Zero::Refused, .. } = field.kind else { return false };
    origin == Origin::File && value.as_str().is_some_and(|text| duration::parse(text) == Ok(0))
}

fn remove(file: &mut Value, path: &str) -> Option<Value> {
    let fields = file.as_object_mut()?;
    match path.split_once('.') {
        Some((block, rest)) => remove(fields.get_mut(block)?, rest),
        None => fields.remove(path),
    }
}

fn insert(file: &mut Value, path: &str, value: Value) {
    if !file.is_object() {
        *file = Value::Object(Map::new());
    }
    match path.split_once('.') {
        Some((block, rest)) => insert(&mut file[block], rest, value),
        None => file[path] = value,
    }
}
