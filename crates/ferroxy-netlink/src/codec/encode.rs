//! Messages and attributes to bytes: appends to one reusable buffer, and writes each length once it is known.

use super::{ATTRIBUTE_HEADER, NESTED, align};

/// Builds messages one after another in one buffer.
#[derive(Debug, Clone, Default)]
pub struct Encoder {
    buffer: Vec<u8>,
    oversized: bool,
}

/// A message whose length is not yet known. Pass it to [`Encoder::end_message`]. Until the next message begins, you can append
/// more attributes and end the message again.
#[derive(Debug, Clone, Copy)]
#[must_use]
pub struct OpenMessage(usize);

/// A nested attribute whose length is not yet known. Pass it to [`Encoder::end_nested`], again whenever you append more.
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

    /// The offset of the next byte.
    pub fn position(&self) -> usize {
        self.buffer.len()
    }

    /// True if something exceeded a length field (16 bits for an attribute): the bytes must not be sent.
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

    /// Replaces the flags of the encoded message that starts at this offset.
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

    /// Zero-terminated, as the kernel expects names.
    pub fn put_str(&mut self, kind: u16, text: &str) {
        self.put_two(kind, text.as_bytes(), &[0]);
    }

    /// An attribute without a payload: its presence is the value.
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
