//! A CPU profile as an uncompressed pprof protocol buffer. It has addresses only: pprof looks symbols up in the
//! program.

use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use ferroxy_platform::profile::{Mapping, PERIOD, Profile};

/// The fields and their numbers are those of pprof's `profile.proto`.
pub fn encode(profile: &Profile, mappings: &[Mapping]) -> Vec<u8> {
    let mut strings = Strings::default();
    let mut out = Message::default();
    let value_type = |strings: &mut Strings, kind: &str, unit: &str| {
        let mut message = Message::default();
        message.number(1, strings.index(kind));
        message.number(2, strings.index(unit));
        message
    };
    out.message(1, &value_type(&mut strings, "samples", "count"));
    out.message(1, &value_type(&mut strings, "cpu", "nanoseconds"));
    let period = u64::try_from(PERIOD.as_nanos()).unwrap_or_default();
    let mut locations = Locations::default();
    for (stack, count) in counted(profile) {
        let ids: Vec<u64> =
            stack.iter().enumerate().map(|(depth, at)| locations.id(call(*at, depth))).collect();
        let mut sample = Message::default();
        sample.numbers(1, &ids);
        sample.numbers(2, &[count, count * period]);
        out.message(2, &sample);
    }
    for (id, mapping) in (1..).zip(mappings) {
        out.message(3, &encode_mapping(mapping, id, &mut strings));
    }
    for (address, id) in &locations.ids {
        let mut location = Message::default();
        location.number(1, *id);
        let mapping = mappings.iter().position(|mapping| mapping.range.contains(address));
        location.number(2, mapping.map_or(0, |index| index as u64 + 1));
        location.number(3, *address);
        out.message(4, &location);
    }
    let began = profile.began.duration_since(UNIX_EPOCH).unwrap_or_default();
    let period_type = value_type(&mut strings, "cpu", "nanoseconds");
    strings.write(&mut out, 6);
    out.number(9, u64::try_from(began.as_nanos()).unwrap_or_default());
    out.number(10, u64::try_from(profile.took.as_nanos()).unwrap_or_default());
    out.message(11, &period_type);
    out.number(12, period);
    out.bytes
}

/// Counts equal stacks.
fn counted(profile: &Profile) -> BTreeMap<&[u64], u64> {
    let mut counted = BTreeMap::new();
    for stack in &profile.stacks {
        *counted.entry(stack.as_slice()).or_default() += 1;
    }
    counted
}

/// A caller's address is its return address; the call is before that address.
fn call(address: u64, depth: usize) -> u64 {
    if depth == 0 { address } else { address.saturating_sub(1) }
}

fn encode_mapping(mapping: &Mapping, id: u64, strings: &mut Strings) -> Message {
    let mut message = Message::default();
    message.number(1, id);
    message.number(2, mapping.range.start);
    message.number(3, mapping.range.end);
    message.number(4, mapping.offset);
    message.number(5, strings.index(&mapping.file));
    message
}

/// Numbers of addresses, from 1 on.
#[derive(Default)]
struct Locations {
    ids: BTreeMap<u64, u64>,
}

impl Locations {
    fn id(&mut self, address: u64) -> u64 {
        let next = self.ids.len() as u64 + 1;
        *self.ids.entry(address).or_insert(next)
    }
}

/// The string table: every text is stored once and referred to by its index; the first is empty.
struct Strings(Vec<String>);

impl Default for Strings {
    fn default() -> Strings {
        Strings(vec![String::new()])
    }
}

impl Strings {
    fn index(&mut self, text: &str) -> u64 {
        let known = self.0.iter().position(|it| it == text);
        let index = known.unwrap_or_else(|| {
            self.0.push(text.to_owned());
            self.0.len() - 1
        });
        index as u64
    }

    fn write(&self, out: &mut Message, field: u64) {
        self.0.iter().for_each(|text| out.text(field, text.as_bytes()));
    }
}

/// A protocol buffer being written.
#[derive(Default)]
struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// Zero is the default and is not written.
    fn number(&mut self, field: u64, value: u64) {
        if value != 0 {
            self.varint(field << 3);
            self.varint(value);
        }
    }

    fn numbers(&mut self, field: u64, values: &[u64]) {
        let mut packed = Message::default();
        values.iter().for_each(|value| packed.varint(*value));
        self.message(field, &packed);
    }

    fn message(&mut self, field: u64, message: &Message) {
        self.text(field, &message.bytes);
    }

    fn text(&mut self, field: u64, bytes: &[u8]) {
        const WITH_LENGTH: u64 = 2;
        self.varint(field << 3 | WITH_LENGTH);
        self.varint(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }

    /// Seven bits to a byte, the lowest first; the top bit says that more follow.
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime};

    #[test]
    fn numbers_are_written_as_protocol_buffers_do() {
        let mut message = Message::default();
        message.number(1, 150);
        message.number(2, 0);
        message.text(2, b"testing");
        assert_eq!(message.bytes, b"\x08\x96\x01\x12\x07testing");
    }

    /// Field numbers and contents of a message.
    fn fields(mut bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
        fn varint(bytes: &mut &[u8]) -> u64 {
            let (mut value, mut shift) = (0, 0);
            loop {
                let (byte, rest) = bytes.split_first().unwrap();
                *bytes = rest;
                value |= u64::from(byte & 0x7f) << shift;
                shift += 7;
                if byte & 0x80 == 0 {
                    return value;
                }
            }
        }
        let mut found = Vec::new();
        while !bytes.is_empty() {
            let tag = varint(&mut bytes);
            let content = if tag & 7 == 2 {
                let length = varint(&mut bytes) as usize;
                let (content, rest) = bytes.split_at(length);
                bytes = rest;
                content.to_vec()
            } else {
                varint(&mut bytes).to_string().into_bytes()
            };
            found.push((tag >> 3, content));
        }
        found
    }

    #[test]
    fn equal_stacks_are_one_sample_and_addresses_one_location() {
        let stacks = vec![vec![0x1010, 0x1021], vec![0x1010, 0x1021], vec![0x1020]];
        #[allow(clippy::disallowed_methods, reason = "for people")]
        let profile = Profile { began: SystemTime::now(), took: Duration::from_secs(1), stacks };
        let mapping = Mapping { range: 0x1000..0x2000, offset: 0, file: "/usr/bin/ferroxy".into() };
        let all = fields(&encode(&profile, &[mapping]));
        let of = |field| all.iter().filter(move |(it, _)| *it == field).map(|(_, content)| content);
        assert_eq!((of(1).count(), of(2).count(), of(3).count()), (2, 2, 1));
        // 0x1010, and 0x1020: this is both the call before the return address 0x1021 and a sampled address.
        assert_eq!(of(4).count(), 2);
        let first = fields(of(2).next().unwrap());
        assert_eq!(first[0], (1, vec![1, 2]), "innermost first");
        assert_eq!(first[1].1[0], 2, "seen twice");
        let strings: Vec<&[u8]> = of(6).map(Vec::as_slice).collect();
        assert_eq!(strings, [&b""[..], b"samples", b"count", b"cpu", b"nanoseconds", b"/usr/bin/ferroxy"]);
    }
}
