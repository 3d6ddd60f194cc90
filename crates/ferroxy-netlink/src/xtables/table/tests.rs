//! Tables without a kernel: what is read, and what stays when chains and rules are removed.

use super::*;
use crate::xtables::Parts;

const LAYOUT: Layout = Layout::of(Family::Ip);

/// An entry with a target of this name and these data.
fn entry(name: &str, data: &[u8]) -> Vec<u8> {
    let mut entry = vec![0; LAYOUT.size + TARGET_DATA];
    entry[LAYOUT.size + 2..LAYOUT.size + 2 + name.len()].copy_from_slice(name.as_bytes());
    entry.extend_from_slice(data);
    entry.resize(LAYOUT.size + if name == "ERROR" { 64 } else { 40 }, 0);
    let length = entry.len() as u16;
    entry[LAYOUT.target_offset..LAYOUT.target_offset + 2]
        .copy_from_slice(&(LAYOUT.size as u16).to_ne_bytes());
    entry[LAYOUT.next_offset..LAYOUT.next_offset + 2].copy_from_slice(&length.to_ne_bytes());
    entry
}

pub(in crate::xtables) const RULE: i32 = 152;
const BEGIN: i32 = 176;
const ACCEPT: i32 = -2;

/// One built-in chain (jump to `theirs`, jump to `mine`, policy), then `theirs` (a jump to `mine`, its end) and
/// `mine` (a rule that decides nothing, its end), then the end of the table.
pub(in crate::xtables) fn table() -> Table {
    let theirs = 3 * RULE + BEGIN;
    let mine = theirs + 2 * RULE + BEGIN;
    let standard = |verdict: i32| entry("", &verdict.to_ne_bytes());
    let bytes = [
        standard(theirs),
        standard(mine),
        standard(ACCEPT),
        entry("ERROR", b"theirs"),
        standard(mine),
        standard(ACCEPT),
        entry("ERROR", b"mine"),
        standard(mine + RULE),
        standard(ACCEPT),
        entry("ERROR", b"ERROR"),
    ];
    let mut info = named_header("nat", INFO).unwrap();
    info[INFO_HOOKS..INFO_HOOKS + 4].copy_from_slice(&1u32.to_ne_bytes());
    info[INFO_UNDERFLOWS..INFO_UNDERFLOWS + 4].copy_from_slice(&(2 * RULE).to_ne_bytes());
    Table::parse(Family::Ip, &info, bytes.concat(), 0).unwrap()
}

/// For each entry, its index before.
pub(in crate::xtables) fn kept(replacement: &Replacement) -> Vec<Option<usize>> {
    let each = |run: &Run| {
        let before = run.before.map(|it| it as usize);
        (0..run.count as usize).map(move |index| before.map(|first| first + index)).collect::<Vec<_>>()
    };
    replacement.runs.iter().flat_map(each).collect()
}

/// As the kernel would return it.
pub(in crate::xtables) fn reread(replacement: &Replacement) -> Table {
    let message = replacement.message.clone();
    Table::parse(Family::Ip, &replacement.info, message, REPLACE_HEADER).unwrap()
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(ToString::to_string).collect()
}

#[test]
fn what_rules_have_counted_is_not_in_the_digest() {
    let (mut counted, mut changed) = (table(), table());
    counted.block[LAYOUT.size - 1] = 7;
    counted.block[LAYOUT.size - COUNTER] = 7;
    assert_eq!(counted.digest(), table().digest());
    changed.block[LAYOUT.size - COUNTER - 1] = 7;
    assert_ne!(changed.digest(), table().digest());
    changed = table();
    *changed.block.last_mut().unwrap() = 7;
    assert_ne!(changed.digest(), table().digest());
}

#[test]
fn chains_and_jumps_are_seen() {
    let table = table();
    assert_eq!(table.chains().collect::<Vec<_>>(), ["theirs", "mine"]);
    let jumps: Vec<_> = table.jumps().into_iter().map(|jump| (jump.from, jump.to)).collect();
    let expected = [
        (None, "theirs".to_owned()),
        (None, "mine".to_owned()),
        (Some("theirs".to_owned()), "mine".to_owned()),
    ];
    assert_eq!(jumps, expected);
}

#[test]
fn what_stays_leads_where_it_led() {
    let before = table();
    let replacement = before.without(&names(&["theirs"]), &BTreeSet::from([0]));
    assert_eq!(kept(&replacement), [1, 2, 6, 7, 8, 9].map(Some));
    let after = reread(&replacement);
    assert_eq!(after.chains().collect::<Vec<_>>(), ["mine"]);
    assert_eq!(after.jumps(), [Jump { from: None, rule: 0, to: "mine".into() }]);
    assert_eq!(after.entries[3].target, Target::Next);
    // The chain's first rule was removed, so its policy has moved forward.
    assert_eq!(u32_at(&after.info, INFO_ENTRIES), 0);
    assert_eq!(u32_at(&after.info, INFO_UNDERFLOWS), RULE as u32);
}

#[test]
fn without_nothing_is_the_same() {
    let before = table();
    let replacement = before.without(&BTreeSet::new(), &BTreeSet::new());
    assert_eq!(replacement.message[REPLACE_HEADER..], *before.bytes());
    assert_eq!(replacement.info, before.info);
}

#[test]
fn the_end_of_the_table_is_no_chain() {
    let replacement = table().without(&names(&["ERROR"]), &BTreeSet::new());
    assert_eq!(kept(&replacement).len(), 10);
}

#[test]
fn counters_follow_their_rules() {
    let replacement = table().without(&names(&["theirs"]), &BTreeSet::from([0]));
    let before: Vec<u8> = (0..10).flat_map(|index| [index; COUNTER]).collect();
    let message = replacement.counters(&before);
    let after: Vec<u8> = message[COUNTERS_HEADER..].chunks(COUNTER).map(|counter| counter[0]).collect();
    assert_eq!(after, [1, 2, 6, 7, 8, 9]);
}

#[test]
fn damaged_tables_never_panic() {
    let table = table();
    for at in 0..table.block.len() {
        let _ = Table::parse(Family::Ip, &table.info, table.block[..at].to_vec(), 0);
        for value in [0, 1, 0x7f, 0xff] {
            let mut bytes = table.block.clone();
            bytes[at] = value;
            if let Ok(table) = Table::parse(Family::Ip, &table.info, bytes, 0) {
                let _ = (table.chains().count(), table.jumps());
                let _ = table.without(&names(&["mine"]), &BTreeSet::from([0]));
                let _ = Parts::new(table).map(|parts| parts.replacement());
            }
        }
    }
}
