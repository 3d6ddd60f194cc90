//! Identities of HNS objects.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Guid(pub [u8; 16]);

impl Guid {
    /// The service chooses an id for an object that is created with this one.
    pub const ZERO: Guid = Guid([0; 16]);

    /// The same text gives the same id on every node and in every run. Marked as version 8, "custom", of RFC 9562.
    pub fn derived(text: &str) -> Guid {
        let digest = Sha256::digest(text.as_bytes());
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest[..16]);
        bytes[6] = (bytes[6] & 0x0f) | 0x80;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        Guid(bytes)
    }
}

/// As HNS prints it: upper case, without braces.
impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02X}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a GUID")]
pub struct NotAGuid;

/// Either case, with or without braces.
impl FromStr for Guid {
    type Err = NotAGuid;

    fn from_str(text: &str) -> Result<Guid, NotAGuid> {
        let text = text.strip_prefix('{').and_then(|it| it.strip_suffix('}')).unwrap_or(text);
        let parts: Vec<&str> = text.split('-').collect();
        if parts.iter().map(|part| part.len()).ne([8, 4, 4, 4, 12]) {
            return Err(NotAGuid);
        }
        let digits = parts.concat();
        let mut bytes = [0; 16];
        for (at, byte) in bytes.iter_mut().enumerate() {
            let pair = digits.get(2 * at..2 * at + 2).ok_or(NotAGuid)?;
            // `from_str_radix` accepts a sign.
            let is_hex = pair.bytes().all(|digit| digit.is_ascii_hexdigit());
            *byte = u8::from_str_radix(pair, 16).ok().filter(|_| is_hex).ok_or(NotAGuid)?;
        }
        Ok(Guid(bytes))
    }
}

impl Serialize for Guid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Guid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Guid, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guid_reads_as_it_prints_in_either_case() {
        let guid = Guid::derived("10.96.0.80:80/TCP");
        assert_eq!(guid.to_string().parse(), Ok(guid));
        assert_eq!(format!("{{{guid}}}").to_lowercase().parse(), Ok(guid));
        assert_eq!(guid.to_string().as_bytes()[14], b'8');
        assert_ne!(guid, Guid::derived("10.96.0.80:80/UDP"));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in
            ["", "-", "{}", "0000000-0000-0000-0000-000000000000", "+0000000-0000-0000-0000-000000000000"]
        {
            assert_eq!(text.parse::<Guid>(), Err(NotAGuid), "{text}");
        }
        assert_eq!("äää00-0000-0000-0000-000000000000".parse::<Guid>(), Err(NotAGuid));
    }
}
