//! Decodes bytes to messages and attributes. Borrows the bytes without copying them, and never panics, whatever they are.

use std::fmt;

use super::{ATTRIBUTE_HEADER, MESSAGE_HEADER, NESTED, NET_BYTEORDER, align};

/// Bytes that violate the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// A message header with a length that is too small or goes past the end of the buffer.
    Message { length: usize, available: usize },
    /// An attribute header with a length that is too small or goes past the end.
    Attribute { length: usize, available: usize },
    /// An attribute or fixed header whose size is wrong for its type.
    Size { expected: usize, found: usize },
    /// A name that is not valid UTF-8.
    Text,
    /// A mandatory attribute is missing.
    Missing { what: &'static str },
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message { length, available } => {
                write!(f, "malformed answer: a message of {length} bytes where {available} are left")
            }
            Self::Attribute { length, available } => {
                write!(f, "malformed answer: an attribute of {length} bytes where {available} are left")
            }
            Self::Size { expected, found } => {
                write!(f, "malformed answer: a value of {found} bytes where {expected} were expected")
            }
            Self::Text => f.write_str("malformed answer: a name that is not text"),
            Self::Missing { what } => write!(f, "malformed answer: no {what}"),
        }
    }
}

impl std::error::Error for Malformed {}

/// One message of a receive buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    pub kind: u16,
    pub flags: u16,
    pub sequence: u32,
    pub port_id: u32,
    /// The protocol's fixed header and the attributes.
    pub payload: &'a [u8],
}

impl<'a> Message<'a> {
    /// Splits the protocol's fixed header of `N` bytes from the attributes after it.
    pub fn split<const N: usize>(&self) -> Result<(&'a [u8; N], Attributes<'a>), Malformed> {
        let header = self
            .payload
            .first_chunk::<N>()
            .ok_or(Malformed::Size { expected: N, found: self.payload.len() })?;
        Ok((header, Attributes::new(self.payload.get(align(N)..).unwrap_or_default())))
    }
}

/// Iterates over the messages of a receive buffer. Ends after the first error.
#[derive(Debug, Clone)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Messages<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let bytes = std::mem::take(&mut self.rest);
        let Some(header) = bytes.first_chunk::<MESSAGE_HEADER>() else {
            return Some(Err(Malformed::Message { length: MESSAGE_HEADER, available: bytes.len() }));
        };
        let &[l0, l1, l2, l3, k0, k1, f0, f1, s0, s1, s2, s3, p0, p1, p2, p3] = header;
        let length = u32::from_ne_bytes([l0, l1, l2, l3]) as usize;
        let Some(payload) = bytes.get(MESSAGE_HEADER..length) else {
            return Some(Err(Malformed::Message { length, available: bytes.len() }));
        };
        self.rest = bytes.get(align(length)..).unwrap_or_default();
        Some(Ok(Message {
            kind: u16::from_ne_bytes([k0, k1]),
            flags: u16::from_ne_bytes([f0, f1]),
            sequence: u32::from_ne_bytes([s0, s1, s2, s3]),
            port_id: u32::from_ne_bytes([p0, p1, p2, p3]),
            payload,
        }))
    }
}

/// One attribute. `kind` does not contain the flag bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attribute<'a> {
    pub kind: u16,
    pub payload: &'a [u8],
}

impl<'a> Attribute<'a> {
    pub fn array<const N: usize>(&self) -> Result<[u8; N], Malformed> {
        self.payload.try_into().map_err(|_| Malformed::Size { expected: N, found: self.payload.len() })
    }

    pub fn u8(&self) -> Result<u8, Malformed> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub fn u16(&self) -> Result<u16, Malformed> {
        self.array().map(u16::from_ne_bytes)
    }

    pub fn u32(&self) -> Result<u32, Malformed> {
        self.array().map(u32::from_ne_bytes)
    }

    pub fn u64(&self) -> Result<u64, Malformed> {
        self.array().map(u64::from_ne_bytes)
    }

    pub fn u16_be(&self) -> Result<u16, Malformed> {
        self.array().map(u16::from_be_bytes)
    }

    pub fn u32_be(&self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    pub fn u64_be(&self) -> Result<u64, Malformed> {
        self.array().map(u64::from_be_bytes)
    }

    /// The text up to its terminating zero, or all of it when there is none.
    pub fn str(&self) -> Result<&'a str, Malformed> {
        let text = self.payload.split(|byte| *byte == 0).next().unwrap_or_default();
        std::str::from_utf8(text).map_err(|_| Malformed::Text)
    }

    pub fn nested(&self) -> Attributes<'a> {
        Attributes::new(self.payload)
    }
}

/// Iterates over encoded attributes, in order. Ends after the first error.
#[derive(Debug, Clone)]
pub struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Attributes<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The bytes that were not iterated over yet.
    pub fn bytes(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<Attribute<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let bytes = std::mem::take(&mut self.rest);
        let Some(&[l0, l1, k0, k1]) = bytes.first_chunk::<ATTRIBUTE_HEADER>() else {
            return Some(Err(Malformed::Attribute { length: ATTRIBUTE_HEADER, available: bytes.len() }));
        };
        let length = usize::from(u16::from_ne_bytes([l0, l1]));
        let Some(payload) = bytes.get(ATTRIBUTE_HEADER..length) else {
            return Some(Err(Malformed::Attribute { length, available: bytes.len() }));
        };
        self.rest = bytes.get(align(length)..).unwrap_or_default();
        let kind = u16::from_ne_bytes([k0, k1]) & !(NESTED | NET_BYTEORDER);
        Some(Ok(Attribute { kind, payload }))
    }
}

/// Attributes by kind, for messages whose attributes come in any order. Kinds from `N` on are ignored: a newer kernel
/// may send attributes that we do not know.
#[derive(Debug, Clone, Copy)]
pub struct Fields<'a, const N: usize>([Option<&'a [u8]>; N]);

impl<'a, const N: usize> Fields<'a, N> {
    pub fn new(attributes: Attributes<'a>) -> Result<Self, Malformed> {
        let mut fields = [None; N];
        for attribute in attributes {
            let attribute = attribute?;
            if let Some(slot) = fields.get_mut(usize::from(attribute.kind)) {
                *slot = Some(attribute.payload);
            }
        }
        Ok(Self(fields))
    }

    pub fn get(&self, kind: u16) -> Option<Attribute<'a>> {
        self.0.get(usize::from(kind)).copied().flatten().map(|payload| Attribute { kind, payload })
    }

    /// A mandatory attribute.
    pub fn need(&self, kind: u16, what: &'static str) -> Result<Attribute<'a>, Malformed> {
        self.get(kind).ok_or(Malformed::Missing { what })
    }
}
