//! Protobuf's wire format: the fields of a message, one after the other, borrowed from its bytes. Independent of the
//! type of message.
//!
//! Nothing is allocated for a length that a message announces: a length must fit into the bytes that are there.

use ferroxy_core::foreign;

/// Why bytes are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("it ends within a field")]
    Truncated,
    #[error("a number has more than 64 bits")]
    LongNumber,
    #[error("a field has the number 0, or one that is too large")]
    FieldNumber,
    #[error("a field has wire type {0}, which the API does not use")]
    WireType(u8),
    #[error("it does not begin with the API's four bytes")]
    Magic,
    #[error("it contains another encoding")]
    Encoding,
    #[error("it is of another kind")]
    Kind,
    #[error("it has no {0}")]
    Missing(&'static str),
    #[error("its lists have more than {} entries", super::MOST_ENTRIES)]
    TooManyEntries,
}

/// The value of a field. A field whose value has an unexpected form is skipped, as one with an unknown number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Value<'a> {
    Number(u64),
    /// Text, or a message.
    Bytes(&'a [u8]),
    /// 32 or 64 bits of fixed size. No field that we read has one.
    Fixed,
}

/// Iterates over the fields of a message. Ends after the first error.
#[derive(Debug, Clone)]
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

pub(crate) fn fields(message: &[u8]) -> Fields<'_> {
    Fields { rest: message }
}

/// Text of an object, which tenants may write: cut as `wire/` cuts it.
pub(crate) fn text(bytes: &[u8]) -> String {
    foreign::cut(&String::from_utf8_lossy(bytes)).to_owned()
}

/// Text of the API server itself, as it is: a resource version or a continue token that was cut would be another one.
/// As in Go's JSON, invalid UTF-8 is replaced.
pub(crate) fn whole(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The API's `int32`. Negative numbers are encoded with 64 bits.
pub(crate) fn int32(number: u64) -> i64 {
    i64::from(number as i32)
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Value<'a>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

impl<'a> Fields<'a> {
    fn field(&mut self) -> Result<(u32, Value<'a>), Malformed> {
        let tag = u32::try_from(self.varint()?).map_err(|_| Malformed::FieldNumber)?;
        let number = tag >> 3;
        if number == 0 {
            return Err(Malformed::FieldNumber);
        }
        let value = match tag & 7 {
            0 => Value::Number(self.varint()?),
            1 => self.take(8).map(|_| Value::Fixed)?,
            2 => {
                // A length that does not fit into usize is longer than anything that is there.
                let length = usize::try_from(self.varint()?).map_err(|_| Malformed::Truncated)?;
                Value::Bytes(self.take(length)?)
            }
            5 => self.take(4).map(|_| Value::Fixed)?,
            other => return Err(Malformed::WireType(other as u8)),
        };
        Ok((number, value))
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut number = 0;
        for (index, &byte) in self.rest.iter().enumerate() {
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has one bit left.
            if index == 9 && byte > 1 {
                return Err(Malformed::LongNumber);
            }
            number |= bits << (7 * index);
            if byte < 0x80 {
                self.rest = self.rest.get(index + 1..).unwrap_or_default();
                return Ok(number);
            }
        }
        Err(Malformed::Truncated)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(Malformed::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(message: &[u8]) -> Result<Vec<(u32, Value<'_>)>, Malformed> {
        fields(message).collect()
    }

    #[test]
    fn fields_of_every_wire_type() {
        let message =
            b"\x08\x96\x01\x12\x03abc\x19\x01\x02\x03\x04\x05\x06\x07\x08\x25\x01\x02\x03\x04\x2a\x00";
        let expected = [
            (1, Value::Number(150)),
            (2, Value::Bytes(b"abc")),
            (3, Value::Fixed),
            (4, Value::Fixed),
            (5, Value::Bytes(b"")),
        ];
        assert_eq!(read(message).unwrap(), expected);
        assert_eq!(read(b"").unwrap(), []);
    }

    #[test]
    fn numbers_at_their_limits() {
        let number = |bytes: &[u8]| match fields(&[b"\x08", bytes].concat()).next() {
            Some(Ok((1, Value::Number(number)))) => Ok(number),
            Some(Err(error)) => Err(error),
            other => panic!("{other:?}"),
        };
        assert_eq!(number(b"\x00"), Ok(0));
        assert_eq!(number(b"\x80\x00"), Ok(0), "longer than it need be");
        assert_eq!(number(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), Ok(u64::MAX));
        assert_eq!(int32(u64::MAX), -1);
        assert_eq!(number(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"), Err(Malformed::LongNumber));
        assert_eq!(number(&[0x80; 20]), Err(Malformed::LongNumber));
        assert_eq!(number(b"\x80"), Err(Malformed::Truncated));
    }

    #[test]
    fn lengths_are_checked_and_errors_end_the_message() {
        // Four bytes announced, three there; then almost 2^64.
        assert_eq!(read(b"\x0a\x04abc"), Err(Malformed::Truncated));
        assert_eq!(read(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01abc"), Err(Malformed::Truncated));
        assert_eq!(read(b"\x0a"), Err(Malformed::Truncated));
        assert_eq!(read(b"\x09\x01"), Err(Malformed::Truncated));
        assert_eq!(read(b"\x0d\x01"), Err(Malformed::Truncated));
        assert_eq!(read(b"\x00\x01"), Err(Malformed::FieldNumber));
        assert_eq!(read(b"\xf8\xff\xff\xff\xff\x01\x00"), Err(Malformed::FieldNumber));
        for wire_type in [3, 4, 6, 7] {
            assert_eq!(read(&[0x08 | wire_type, 0]), Err(Malformed::WireType(wire_type)));
        }
        let mut broken = fields(b"\x08\x01\x0f\x08\x01");
        assert_eq!(broken.next(), Some(Ok((1, Value::Number(1)))));
        assert_eq!(broken.next(), Some(Err(Malformed::WireType(7))));
        assert_eq!(broken.next(), None);
    }

    #[test]
    fn every_beginning_of_a_message_is_read_or_refused() {
        let message = b"\x08\x96\x01\x12\x03abc\x19\x01\x02\x03\x04\x05\x06\x07\x08";
        let ends = (0..message.len()).filter(|&end| read(&message[..end]).is_ok());
        assert_eq!(ends.collect::<Vec<_>>(), [0, 3, 8], "only between fields");
    }
}
