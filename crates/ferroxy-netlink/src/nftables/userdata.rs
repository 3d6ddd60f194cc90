//! Userdata: bytes the kernel keeps for us and never reads. `nft` finds comments and the types of sets in them, as
//! triples of type u8, length u8 and value. Numbers in them are in host byte order.

use super::types::{Datatype, Set, SetData};
use super::wire::USERDATA_MAX;

/// Longer comments are cut, at the end of a character. Comments of sets with long types may be cut shorter.
pub const COMMENT_MAX: usize = 128;

/// The comment's type in the userdata of tables, chains, rules and elements.
const COMMENT: u8 = 0;

const SET_KEY_BYTEORDER: u8 = 0;
const SET_DATA_BYTEORDER: u8 = 1;
const SET_KEY_TYPEOF: u8 = 3;
const SET_DATA_TYPEOF: u8 = 4;
const SET_DATA_INTERVAL: u8 = 6;
const SET_COMMENT: u8 = 7;

/// The userdata of an object that has nothing but a comment; empty without a comment.
pub(super) fn comment(buffer: &mut Vec<u8>, comment: Option<&str>) {
    buffer.clear();
    if let Some(text) = comment {
        put_comment(buffer, COMMENT, text);
    }
}

pub(super) fn read_comment(userdata: &[u8]) -> Option<&str> {
    find(userdata, COMMENT)
}

pub(super) fn read_set_comment(userdata: &[u8]) -> Option<&str> {
    find(userdata, SET_COMMENT)
}

/// The userdata of a set, byte for byte what nft 1.0.6 writes.
///
/// `nft` cannot derive the length of an integer inside a concatenation from the type alone. Such a set must list the
/// expressions that its key and data were made of (`typeof`). We list those that our rules use.
pub(super) fn set(buffer: &mut Vec<u8>, set: &Set) {
    buffer.clear();
    let data = match &set.data {
        Some(SetData::Value(fields)) => fields.as_slice(),
        Some(SetData::Verdict) | None => &[],
    };
    let by_expression = set.key.contains(&Datatype::Integer32) || data.contains(&Datatype::Integer32);
    put_u32(buffer, SET_KEY_BYTEORDER, byteorder(&set.key));
    if set.data.is_some() {
        put_u32(buffer, SET_DATA_BYTEORDER, byteorder(data));
    }
    put_typeof(buffer, SET_KEY_TYPEOF, &set.key, by_expression);
    match &set.data {
        Some(SetData::Verdict) if by_expression => {
            put_nested(buffer, SET_DATA_TYPEOF, |inner| put_expression(inner, EXPR_VERDICT, |_| {}));
        }
        Some(SetData::Value(fields)) => put_typeof(buffer, SET_DATA_TYPEOF, fields, by_expression),
        Some(SetData::Verdict) | None => {}
    }
    if set.data.is_some() {
        put_u32(buffer, SET_DATA_INTERVAL, 0);
    }
    if let Some(text) = &set.comment {
        put_comment(buffer, SET_COMMENT, text);
    }
}

/// nft's kinds of expressions.
const EXPR_VERDICT: u32 = 1;
const EXPR_PAYLOAD: u32 = 7;
const EXPR_META: u32 = 9;
const EXPR_CONCAT: u32 = 13;
const EXPR_NUMGEN: u32 = 23;

const EXPRESSION_KIND: u8 = 0;
const EXPRESSION_DATA: u8 = 1;

/// nft's protocol descriptions and the numbers of their fields.
const TH_DPORT: (u32, u32) = (11, 2);
const IP_DADDR: (u32, u32) = (12, 12);
const IP6_DADDR: (u32, u32) = (13, 9);
const META_L4PROTO: u32 = 16;
const META_PRIORITY: u32 = 2;
const NUMGEN_RANDOM: u32 = 1;
/// Any value works: `nft` only derives from it that the number has 32 bits.
const NUMGEN_MODULUS: u32 = 65536;

/// 0 is unspecified (for concatenations), 1 is host byte order, 2 is big endian.
fn byteorder(fields: &[Datatype]) -> u32 {
    match fields {
        [Datatype::Priority | Datatype::Integer32 | Datatype::Unknown(_)] => 1,
        [_] => 2,
        _ => 0,
    }
}

fn put_typeof(buffer: &mut Vec<u8>, kind: u8, fields: &[Datatype], by_expression: bool) {
    match fields {
        [] => {}
        [field] if by_expression => put_nested(buffer, kind, |inner| put_field(inner, *field)),
        [_] => {}
        fields => put_nested(buffer, kind, |inner| {
            put_expression(inner, EXPR_CONCAT, |inner| {
                if by_expression {
                    for (index, field) in (0u8..).zip(fields) {
                        put_nested(inner, index, |inner| put_field(inner, *field));
                    }
                }
            });
        }),
    }
}

fn put_field(buffer: &mut Vec<u8>, field: Datatype) {
    match field {
        Datatype::Ipv4Addr => put_payload(buffer, IP_DADDR),
        Datatype::Ipv6Addr => put_payload(buffer, IP6_DADDR),
        Datatype::InetService => put_payload(buffer, TH_DPORT),
        Datatype::InetProto => {
            put_expression(buffer, EXPR_META, |inner| put_u32(inner, 0, META_L4PROTO));
        }
        Datatype::Priority => {
            put_expression(buffer, EXPR_META, |inner| put_u32(inner, 0, META_PRIORITY));
        }
        Datatype::Integer32 | Datatype::Unknown(_) => put_expression(buffer, EXPR_NUMGEN, |inner| {
            put_u32(inner, 0, NUMGEN_RANDOM);
            put_u32(inner, 1, NUMGEN_MODULUS);
            put_u32(inner, 2, 0);
        }),
    }
}

fn put_payload(buffer: &mut Vec<u8>, (protocol, field): (u32, u32)) {
    put_expression(buffer, EXPR_PAYLOAD, |inner| {
        put_u32(inner, 0, protocol);
        put_u32(inner, 1, field);
    });
}

fn put_expression(buffer: &mut Vec<u8>, kind: u32, data: impl FnOnce(&mut Vec<u8>)) {
    put_u32(buffer, EXPRESSION_KIND, kind);
    put_nested(buffer, EXPRESSION_DATA, data);
}

fn put_u32(buffer: &mut Vec<u8>, kind: u8, value: u32) {
    put_nested(buffer, kind, |inner| inner.extend_from_slice(&value.to_ne_bytes()));
}

fn put_nested(buffer: &mut Vec<u8>, kind: u8, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = buffer.len();
    buffer.extend_from_slice(&[kind, 0]);
    fill(buffer);
    match u8::try_from(buffer.len() - start - 2) {
        Ok(length) => buffer[start + 1] = length,
        // Too long for `nft` to read: leave it out. `nft` then prints the set with less detail.
        Err(_) => buffer.truncate(start),
    }
}

/// Cuts at the end of a character, to [`COMMENT_MAX`] bytes or the room that is left.
fn put_comment(buffer: &mut Vec<u8>, kind: u8, text: &str) {
    let room = USERDATA_MAX.saturating_sub(buffer.len() + 3).min(COMMENT_MAX);
    let text = &text[..text.floor_char_boundary(room)];
    put_nested(buffer, kind, |inner| {
        inner.extend_from_slice(text.as_bytes());
        inner.push(0);
    });
}

/// Invalid UTF-8 is read as U+FFFD, which none of our comments contains.
fn find(mut userdata: &[u8], wanted: u8) -> Option<&str> {
    while let [kind, length, rest @ ..] = userdata {
        let (value, after) = rest.split_at_checked(usize::from(*length))?;
        if *kind == wanted {
            let text = value.split(|byte| *byte == 0).next().unwrap_or_default();
            return Some(std::str::from_utf8(text).unwrap_or("\u{fffd}"));
        }
        userdata = after;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn of(key: &[Datatype], data: Option<SetData>, comment: Option<&str>) -> Vec<u8> {
        let mut buffer = Vec::new();
        let set = Set {
            name: "s".into(),
            key: key.to_vec(),
            data,
            interval: false,
            dynamic: false,
            timeout_ms: None,
            size: None,
            comment: comment.map(str::to_owned),
        };
        super::set(&mut buffer, &set);
        buffer
    }

    /// Bytes in hexadecimal as nft sends them on this machine, from those of a little-endian machine: `nft` writes 32-bit numbers in
    /// host byte order. Here, every attribute of 4 bytes is such a number, and longer attributes are nested or text.
    fn of_this_machine(little: &str) -> String {
        let bytes: Vec<u8> = (0..little.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&little[at..at + 2], 16).unwrap())
            .collect();
        if cfg!(target_endian = "little") { hex(&bytes) } else { hex(&with_numbers_swapped(&bytes)) }
    }

    fn with_numbers_swapped(mut bytes: &[u8]) -> Vec<u8> {
        let mut swapped = Vec::new();
        while let [kind, length, rest @ ..] = bytes {
            let (value, after) = rest.split_at(usize::from(*length));
            swapped.extend([*kind, *length]);
            match value.len() {
                4 if *kind != SET_COMMENT => swapped.extend(value.iter().rev()),
                _ if *kind != SET_COMMENT => swapped.extend(with_numbers_swapped(value)),
                _ => swapped.extend(value),
            }
            bytes = after;
        }
        swapped
    }

    #[test]
    fn numbers_are_in_host_order() {
        let found = of(&[Datatype::Ipv4Addr], None, None);
        assert_eq!(found, [&[SET_KEY_BYTEORDER, 4][..], &crate::codec::host([0, 0, 0, 2])].concat());
    }

    // The expected bytes below are what nft 1.0.6 sends for the set in the comment on a little-endian machine.
    #[test]
    fn sets_carry_what_nft_would_write() {
        use Datatype::{InetProto, InetService, Integer32, Ipv4Addr, Ipv6Addr};
        // type ipv4_addr; comment "live cluster IPs"
        let found = of(&[Ipv4Addr], None, Some("live cluster IPs"));
        assert_eq!(hex(&found), of_this_machine("00040200000007116c69766520636c75737465722049507300"));
        // type ipv4_addr . inet_proto . inet_service : verdict
        let found = of(&[Ipv4Addr, InetProto, InetService], Some(SetData::Verdict), None);
        assert_eq!(hex(&found), of_this_machine("000400000000010400000000030800040d0000000100060400000000"));
        // type ipv6_addr . ipv6_addr . inet_proto . inet_service : ipv6_addr
        let data = SetData::Value(vec![Ipv6Addr]);
        let found = of(&[Ipv6Addr, Ipv6Addr, InetProto, InetService], Some(data), None);
        assert_eq!(hex(&found), of_this_machine("000400000000010402000000030800040d0000000100060400000000"));
        // typeof numgen random mod 65536 . ip daddr . meta l4proto . th dport : ip daddr . th dport; comment "eps"
        let data = SetData::Value(vec![Ipv4Addr, InetService]);
        let found = of(&[Integer32, Ipv4Addr, InetProto, InetService], Some(data), Some("eps"));
        assert_eq!(
            hex(&found),
            of_this_machine(
                "000400000000010400000000036000040d0000000158001a00041700000001120004010000000104000001000204000000\
             000114000407000000010c00040c00000001040c000000020e00040900000001060004100000000314000407000000010c\
             00040b000000010402000000043400040d000000012c0014000407000000010c00040c00000001040c0000000114000407\
             000000010c00040b000000010402000000060400000000070465707300"
            )
        );
        // typeof numgen random mod 65536 : ip daddr . th dport
        let data = SetData::Value(vec![Ipv4Addr, InetService]);
        let found = of(&[Integer32], Some(data), None);
        assert_eq!(
            hex(&found),
            of_this_machine(
                "000401000000010400000000031a0004170000000112000401000000010400000100020400000000043400040d00000001\
             2c0014000407000000010c00040c00000001040c0000000114000407000000010c00040b000000010402000000060400000000"
            )
        );
    }

    #[test]
    fn comments_come_back_cut_at_a_character() {
        let mut buffer = Vec::new();
        comment(&mut buffer, Some("default/web:http"));
        assert_eq!(buffer, b"\x00\x11default/web:http\x00");
        assert_eq!(read_comment(&buffer), Some("default/web:http"));

        comment(&mut buffer, Some(&"é".repeat(100)));
        assert_eq!(read_comment(&buffer), Some(&*"é".repeat(64)));
        comment(&mut buffer, Some(&format!("x{}", "é".repeat(100))));
        assert_eq!(read_comment(&buffer), Some(&*format!("x{}", "é".repeat(63))));
        comment(&mut buffer, None);
        assert!(buffer.is_empty());
    }

    #[test]
    fn a_set_with_long_userdata_leaves_less_room_for_its_comment() {
        use Datatype::{InetProto, InetService, Integer32, Ipv4Addr};
        let data = SetData::Value(vec![Ipv4Addr, InetService]);
        let found = of(&[Integer32, Ipv4Addr, InetProto, InetService], Some(data), Some(&"c".repeat(300)));
        assert_eq!(found.len(), USERDATA_MAX);
        let kept = read_set_comment(&found).unwrap();
        assert!(!kept.is_empty() && kept.bytes().all(|byte| byte == b'c'));
    }

    #[test]
    fn garbage_has_no_comment() {
        for bytes in [&[][..], &[0], &[0, 9, 1], &[1, 2, 3], &[5, 0, 0, 200]] {
            assert_eq!(read_comment(bytes), None);
        }
    }
}
