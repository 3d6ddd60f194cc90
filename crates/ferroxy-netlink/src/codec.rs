//! Netlink messages and attributes, to bytes and back. Knows the framing only: no protocol, no socket.
//!
//! Encoding appends to one reusable buffer and patches lengths in afterwards. Decoding borrows: it copies nothing,
//! and never panics whatever the bytes are.

use std::fmt;

/// `nlmsghdr`: length u32, type u16, flags u16, sequence u32, port u32; all in host byte order.
pub const MESSAGE_HEADER: usize = 16;
/// `nlattr`: length u16, type u16.
pub const ATTRIBUTE_HEADER: usize = 4;
/// What one attribute can carry: its length field has 16 bits and counts the header.
pub const ATTRIBUTE_MAX: usize = u16::MAX as usize - ATTRIBUTE_HEADER;

const NESTED: u16 = 1 << 15;
const NET_BYTEORDER: u16 = 1 << 14;

/// Message types every netlink protocol shares.
pub mod kind {
    pub const NOOP: u16 = 1;
    pub const ERROR: u16 = 2;
    pub const DONE: u16 = 3;
    pub const OVERRUN: u16 = 4;
}

/// Message flags (`NLM_F_*`). The same bits mean different things in requests, in answers and in acknowledgements.
pub mod flag {
    pub const REQUEST: u16 = 0x1;
    pub const MULTI: u16 = 0x2;
    pub const ACK: u16 = 0x4;
    pub const ECHO: u16 = 0x8;
    pub const DUMP_INTR: u16 = 0x10;

    pub const DUMP: u16 = 0x300;

    pub const REPLACE: u16 = 0x100;
    pub const EXCL: u16 = 0x200;
    pub const CREATE: u16 = 0x400;
    pub const APPEND: u16 = 0x800;

    pub const CAPPED: u16 = 0x100;
    pub const ACK_TLVS: u16 = 0x200;
}

/// Rounds up to the 4 bytes that messages and attributes are aligned to.
pub const fn align(len: usize) -> usize {
    len.wrapping_add(3) & !3
}

/// Builds messages one after another in one buffer.
#[derive(Debug, Clone, Default)]
pub struct Encoder {
    buffer: Vec<u8>,
    oversized: bool,
}

/// A message whose length is not yet known. Hand it back to [`Encoder::end_message`]; as long as nothing else follows
/// it, more can be appended and its end told again.
#[derive(Debug, Clone, Copy)]
#[must_use]
pub struct OpenMessage(usize);

/// A nested attribute whose length is not yet known. Hand it back to [`Encoder::end_nested`]; its end may be told again too.
#[derive(Debug, Clone, Copy)]
#[must_use]
pub struct OpenNest(usize);

impl Encoder {
    pub fn new() -> Self {
        Self::default()
    }

    /// Everything encoded so far.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer
    }

    /// Where the next byte goes.
    pub fn position(&self) -> usize {
        self.buffer.len()
    }

    /// Something did not fit the 16-bit length of an attribute; these bytes must not be sent.
    pub fn is_oversized(&self) -> bool {
        self.oversized
    }

    /// Starts over, keeping the memory.
    pub fn clear(&mut self) {
        self.buffer.clear();
        self.oversized = false;
    }

    pub fn begin_message(&mut self, kind: u16, flags: u16, sequence: u32) -> OpenMessage {
        let start = self.buffer.len();
        self.buffer.extend_from_slice(&[0; 4]);
        self.buffer.extend_from_slice(&kind.to_ne_bytes());
        self.buffer.extend_from_slice(&flags.to_ne_bytes());
        self.buffer.extend_from_slice(&sequence.to_ne_bytes());
        // Port 0: the kernel fills in ours.
        self.buffer.extend_from_slice(&[0; 4]);
        OpenMessage(start)
    }

    pub fn end_message(&mut self, message: OpenMessage) {
        match u32::try_from(self.buffer.len() - message.0) {
            Ok(length) => self.patch(message.0, &length.to_ne_bytes()),
            Err(_) => self.oversized = true,
        }
        self.pad();
    }

    /// Replaces the flags of a message already written, by where it starts.
    pub fn set_message_flags(&mut self, start: usize, flags: u16) {
        self.patch(start + 6, &flags.to_ne_bytes());
    }

    /// A protocol's fixed header, or anything else that is not an attribute. Padded to 4 bytes.
    pub fn put_raw(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
        self.pad();
    }

    pub fn put_bytes(&mut self, kind: u16, payload: &[u8]) {
        self.put_two(kind, payload, &[]);
    }

    /// Zero-terminated, as the kernel wants its names.
    pub fn put_str(&mut self, kind: u16, text: &str) {
        self.put_two(kind, text.as_bytes(), &[0]);
    }

    /// An attribute whose presence is its meaning.
    pub fn put_flag(&mut self, kind: u16) {
        self.put_bytes(kind, &[]);
    }

    pub fn put_u8(&mut self, kind: u16, value: u8) {
        self.put_bytes(kind, &[value]);
    }

    pub fn put_u16(&mut self, kind: u16, value: u16) {
        self.put_bytes(kind, &value.to_ne_bytes());
    }

    pub fn put_u32(&mut self, kind: u16, value: u32) {
        self.put_bytes(kind, &value.to_ne_bytes());
    }

    pub fn put_u64(&mut self, kind: u16, value: u64) {
        self.put_bytes(kind, &value.to_ne_bytes());
    }

    pub fn put_u16_be(&mut self, kind: u16, value: u16) {
        self.put_bytes(kind, &value.to_be_bytes());
    }

    pub fn put_u32_be(&mut self, kind: u16, value: u32) {
        self.put_bytes(kind, &value.to_be_bytes());
    }

    pub fn put_u64_be(&mut self, kind: u16, value: u64) {
        self.put_bytes(kind, &value.to_be_bytes());
    }

    pub fn begin_nested(&mut self, kind: u16) -> OpenNest {
        let start = self.buffer.len();
        self.put_bytes(kind | NESTED, &[]);
        OpenNest(start)
    }

    pub fn end_nested(&mut self, nest: OpenNest) {
        match u16::try_from(self.buffer.len() - nest.0) {
            Ok(length) => self.patch(nest.0, &length.to_ne_bytes()),
            Err(_) => self.oversized = true,
        }
    }

    fn put_two(&mut self, kind: u16, payload: &[u8], end: &[u8]) {
        let Ok(length) = u16::try_from(ATTRIBUTE_HEADER + payload.len() + end.len()) else {
            self.oversized = true;
            return;
        };
        self.buffer.extend_from_slice(&length.to_ne_bytes());
        self.buffer.extend_from_slice(&kind.to_ne_bytes());
        self.buffer.extend_from_slice(payload);
        self.buffer.extend_from_slice(end);
        self.pad();
    }

    fn pad(&mut self) {
        self.buffer.resize(align(self.buffer.len()), 0);
    }

    fn patch(&mut self, at: usize, bytes: &[u8]) {
        if let Some(place) = self.buffer.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }
}

/// Bytes that are not what the protocol says they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// A message header with a length that is too small or goes past the end of the buffer.
    Message { length: usize, available: usize },
    /// An attribute header with a length that is too small or goes past the end.
    Attribute { length: usize, available: usize },
    /// An attribute or fixed header of another size than its type has.
    Size { expected: usize, found: usize },
    /// A name that is not text.
    Text,
    /// An attribute that is always there is not.
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

/// The messages of a receive buffer. After an error it ends.
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

/// One attribute, its flag bits taken off the kind.
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

/// The attributes in some bytes, in order. After an error it ends.
#[derive(Debug, Clone)]
pub struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Attributes<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
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

/// Attributes by kind, for messages whose attributes come in any order. Kinds from `N` on are left out: a newer kernel
/// may say more than we know.
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

    /// An attribute that is always there.
    pub fn need(&self, kind: u16, what: &'static str) -> Result<Attribute<'a>, Malformed> {
        self.get(kind).ok_or(Malformed::Missing { what })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(bytes: &[u8]) -> Vec<Result<(u16, Vec<u8>), Malformed>> {
        Attributes::new(bytes).map(|found| found.map(|a| (a.kind, a.payload.to_vec()))).collect()
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let mut encoder = Encoder::new();
        let message = encoder.begin_message(0x0a00, flag::REQUEST | flag::ACK, 7);
        encoder.put_raw(&[2, 0, 0, 0]);
        encoder.put_str(1, "ferroxy");
        let nest = encoder.begin_nested(2);
        encoder.put_u8(1, 9);
        encoder.put_u16_be(2, 0x0102);
        encoder.put_u32(3, 5);
        encoder.put_u64_be(4, 1 << 40);
        encoder.end_nested(nest);
        encoder.put_flag(3);
        encoder.end_message(message);

        let messages: Vec<_> = Messages::new(encoder.bytes()).collect::<Result<_, _>>().unwrap();
        assert_eq!(messages.len(), 1);
        assert_eq!((messages[0].kind, messages[0].flags, messages[0].sequence), (0x0a00, 5, 7));
        let (header, attributes) = messages[0].split::<4>().unwrap();
        assert_eq!(header, &[2, 0, 0, 0]);
        let found: Vec<_> = attributes.collect::<Result<_, _>>().unwrap();
        assert_eq!(found[0].str(), Ok("ferroxy"));
        let inner: Vec<_> = found[1].nested().collect::<Result<_, _>>().unwrap();
        assert_eq!(inner[0].u8(), Ok(9));
        assert_eq!(inner[1].u16_be(), Ok(0x0102));
        assert_eq!(inner[2].u32(), Ok(5));
        assert_eq!(inner[3].u64_be(), Ok(1 << 40));
        assert_eq!(inner[3].u32(), Err(Malformed::Size { expected: 4, found: 8 }));
        assert_eq!(found[2], Attribute { kind: 3, payload: &[] });
    }

    #[test]
    fn messages_follow_each_other_aligned() {
        let mut encoder = Encoder::new();
        for sequence in 0..3 {
            let message = encoder.begin_message(16, 0, sequence);
            encoder.put_raw(&[1]);
            encoder.end_message(message);
        }
        assert_eq!(encoder.bytes().len(), 3 * 20);
        let sequences: Vec<_> = Messages::new(encoder.bytes()).map(|m| m.unwrap().sequence).collect();
        assert_eq!(sequences, [0, 1, 2]);
    }

    #[test]
    fn an_attribute_too_long_for_its_length_field_is_noticed() {
        let mut encoder = Encoder::new();
        encoder.put_bytes(1, &vec![0; ATTRIBUTE_MAX]);
        assert!(!encoder.is_oversized());
        encoder.put_bytes(1, &vec![0; ATTRIBUTE_MAX + 1]);
        assert!(encoder.is_oversized());
        encoder.clear();
        let nest = encoder.begin_nested(1);
        encoder.put_bytes(1, &[0; 40_000]);
        encoder.put_bytes(1, &[0; 40_000]);
        encoder.end_nested(nest);
        assert!(encoder.is_oversized());
    }

    #[test]
    fn bad_attribute_lengths_end_the_list_with_an_error() {
        // Shorter than a header, zero, past the end, and a header cut off.
        for (bytes, length) in
            [(&[3u8, 0, 1, 0][..], 3), (&[0, 0, 1, 0], 0), (&[9, 0, 1, 0, 1, 2, 3, 4], 9), (&[8, 0], 4)]
        {
            let expected = Malformed::Attribute { length, available: bytes.len() };
            assert_eq!(attributes(bytes), [Err(expected)]);
        }
    }

    #[test]
    fn a_last_attribute_may_lack_its_padding() {
        assert_eq!(attributes(&[5, 0, 1, 0, 7]), [Ok((1, vec![7]))]);
        assert_eq!(attributes(&[]), []);
    }

    #[test]
    fn bad_message_lengths_end_the_list_with_an_error() {
        for length in [0u32, 15, 17, u32::MAX] {
            let mut bytes = [0u8; MESSAGE_HEADER];
            bytes[..4].copy_from_slice(&length.to_ne_bytes());
            let found: Vec<_> = Messages::new(&bytes).collect();
            assert_eq!(found, [Err(Malformed::Message { length: length as usize, available: 16 })]);
        }
        assert_eq!(Messages::new(&[0; 3]).count(), 1);
    }

    #[test]
    fn garbage_never_panics_and_always_ends() {
        // A small deterministic generator: coverage of the shapes, not cryptography.
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for _ in 0..20_000 {
            let bytes: Vec<u8> = (0..random() % 64).map(|_| (random() % 24) as u8).collect();
            assert!(Messages::new(&bytes).count() <= bytes.len());
            for attribute in Attributes::new(&bytes).flatten() {
                assert!(attribute.nested().count() <= bytes.len());
                let _ = (attribute.str(), attribute.u8(), attribute.u32_be(), attribute.u64());
            }
        }
    }
}
