//! The codec's tests, and helpers with which the tests of the protocols look into messages.

use super::*;

/// Follows a path of nested attribute kinds (without flags) and returns the last payload. `bytes` begin with an attribute.
pub(crate) fn payload<'a>(bytes: &'a [u8], path: &[u16]) -> &'a [u8] {
    path.iter().fold(bytes, |inside, kind| {
        let mut attributes = Attributes::new(inside).map(Result::unwrap);
        attributes.find(|attribute| attribute.kind == *kind).map(|attribute| attribute.payload).unwrap()
    })
}

/// A number in host byte order, from bytes with the most significant first: an expectation that does not use the tested code.
pub(crate) fn host<const N: usize>(mut digits: [u8; N]) -> [u8; N] {
    if cfg!(target_endian = "little") {
        digits.reverse();
    }
    digits
}

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

/// An attribute of kind 1 whose header has this length, whether or not it is right.
fn attribute(length: u16, payload: &[u8]) -> Vec<u8> {
    [&length.to_ne_bytes()[..], &1u16.to_ne_bytes(), payload].concat()
}

#[test]
fn bad_attribute_lengths_end_the_list_with_an_error() {
    // Shorter than a header, zero, past the end, and a truncated header.
    let truncated = attribute(8, &[])[..2].to_vec();
    for (bytes, length) in [
        (attribute(3, &[]), 3),
        (attribute(0, &[]), 0),
        (attribute(9, &[1, 2, 3, 4]), 9),
        (truncated, ATTRIBUTE_HEADER),
    ] {
        let expected = Malformed::Attribute { length, available: bytes.len() };
        assert_eq!(attributes(&bytes), [Err(expected)]);
    }
}

#[test]
fn a_last_attribute_may_lack_its_padding() {
    assert_eq!(attributes(&attribute(5, &[7])), [Ok((1, vec![7]))]);
    assert_eq!(attributes(&[]), []);
}

/// A round trip does not detect a wrong byte order, because both directions would have it.
#[test]
fn headers_and_plain_numbers_are_in_host_order_and_the_others_in_network_order() {
    let mut encoder = Encoder::new();
    let message = encoder.begin_message(0x0a0b, 0x0c0d, 0x0102_0304);
    encoder.put_u16(0x11, 0x0102);
    encoder.put_u32(0x12, 0x0102_0304);
    encoder.put_u64(0x13, 0x0102_0304_0506_0708);
    encoder.put_u16_be(0x14, 0x0102);
    encoder.put_u32_be(0x15, 0x0102_0304);
    encoder.put_u64_be(0x16, 0x0102_0304_0506_0708);
    let nest = encoder.begin_nested(0x17);
    encoder.end_nested(nest);
    encoder.end_message(message);
    let little: &[&[u8]] = &[
        &[76, 0, 0, 0, 0x0b, 0x0a, 0x0d, 0x0c, 4, 3, 2, 1, 0, 0, 0, 0],
        &[6, 0, 0x11, 0, 2, 1, 0, 0],
        &[8, 0, 0x12, 0, 4, 3, 2, 1],
        &[12, 0, 0x13, 0, 8, 7, 6, 5, 4, 3, 2, 1],
        &[6, 0, 0x14, 0, 1, 2, 0, 0],
        &[8, 0, 0x15, 0, 1, 2, 3, 4],
        &[12, 0, 0x16, 0, 1, 2, 3, 4, 5, 6, 7, 8],
        &[4, 0, 0x17, 0x80],
    ];
    let big: &[&[u8]] = &[
        &[0, 0, 0, 76, 0x0a, 0x0b, 0x0c, 0x0d, 1, 2, 3, 4, 0, 0, 0, 0],
        &[0, 6, 0, 0x11, 1, 2, 0, 0],
        &[0, 8, 0, 0x12, 1, 2, 3, 4],
        &[0, 12, 0, 0x13, 1, 2, 3, 4, 5, 6, 7, 8],
        &[0, 6, 0, 0x14, 1, 2, 0, 0],
        &[0, 8, 0, 0x15, 1, 2, 3, 4],
        &[0, 12, 0, 0x16, 1, 2, 3, 4, 5, 6, 7, 8],
        &[0, 4, 0x80, 0x17],
    ];
    let expected = if cfg!(target_endian = "big") { big } else { little };
    assert_eq!(encoder.bytes(), expected.concat());
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
