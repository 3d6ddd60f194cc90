//! Reading fields that HNS writes in more than one way: null for nothing, numbers or names for enumerations.

use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// Null gives the default value.
pub(super) fn nullable<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// A text, or a number written as one.
pub(super) fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::Null => String::new(),
        Value::String(text) => text,
        other => other.to_string(),
    })
}

/// A number, a number in quotation marks, or names: `EnableDirectServerReturn, EnableIPv6`. Names without a meaning here
/// count as nothing.
pub(super) fn number<'de, D: Deserializer<'de>>(
    deserializer: D,
    names: &[(&str, u32)],
) -> Result<u32, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Null => Ok(0),
        Value::Number(number) => number
            .as_u64()
            .and_then(|number| u32::try_from(number).ok())
            .ok_or_else(|| serde::de::Error::custom(format!("{number} is out of range"))),
        Value::String(text) => Ok(named(&text, names)),
        other => Err(serde::de::Error::custom(format!("{other} is neither a number nor a name"))),
    }
}

fn named(text: &str, names: &[(&str, u32)]) -> u32 {
    if let Ok(number) = text.trim().parse() {
        return number;
    }
    let value = |word: &str| {
        let known = names.iter().find(|(name, _)| name.eq_ignore_ascii_case(word.trim()));
        known.map_or(0, |(_, value)| *value)
    };
    text.split([',', '|']).map(value).fold(0, |all, one| all | one)
}
