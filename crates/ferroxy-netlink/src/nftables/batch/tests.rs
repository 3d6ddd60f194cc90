//! Batches without a kernel: what is encoded, and what a refusal points at.

use super::*;
use crate::codec::{Message, Messages};

fn key(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}

fn plain(key: &[u8]) -> ElementRef<'_> {
    ElementRef { key, key_end: None, interval_end: false, data: DataRef::None, comment: None }
}

fn messages(batch: &Batch) -> Vec<Message<'_>> {
    Messages::new(batch.encoded()).collect::<Result<_, _>>().unwrap()
}

#[test]
fn an_empty_batch_is_two_brackets() {
    let batch = Batch::new();
    assert!(batch.is_empty());
    assert_eq!((batch.messages(), batch.bytes()), (0, 40));
}

#[test]
fn only_the_last_message_asks_for_an_acknowledgement() {
    let mut batch = Batch::new();
    for name in ["a", "b", "c"] {
        batch.delete_set(0, Family::Ip, "t", name);
    }
    batch.add_element(0, Family::Ip, "t", "s", plain(&key(1)));
    batch.add_element(0, Family::Ip, "t", "s", plain(&key(2)));
    let asks: Vec<bool> = messages(&batch).iter().map(|m| m.flags & flag::ACK != 0).collect();
    assert_eq!(asks, [false, false, false, false, true]);
    let sequences: Vec<u32> = messages(&batch).iter().map(|m| m.sequence).collect();
    assert_eq!(sequences, [0, 1, 2, 3, 4]);
    assert_eq!(batch.last_sequence(), 4);
}

#[test]
fn neighbouring_elements_of_one_set_share_a_message() {
    let mut batch = Batch::new();
    batch.add_element(0, Family::Ip, "t", "s", plain(&key(1)));
    batch.add_element(0, Family::Ip, "t", "s", plain(&key(2)));
    assert_eq!(batch.messages(), 1);
    batch.add_element(0, Family::Ip, "t", "other", plain(&key(2)));
    batch.add_element(0, Family::Ip6, "t", "other", plain(&key(2)));
    batch.delete_element(0, Family::Ip6, "t", "other", plain(&key(2)));
    assert_eq!(batch.messages(), 4);
    batch.flush_set(0, Family::Ip6, "t", "other");
    batch.delete_element(0, Family::Ip6, "t", "other", plain(&key(2)));
    assert_eq!(batch.messages(), 6);
}

#[test]
fn long_lists_are_cut_before_their_length_overflows() {
    let mut batch = Batch::new();
    for n in 0..20_000 {
        batch.add_element(n, Family::Ip, "t", "s", plain(&key(n)));
    }
    assert!(batch.messages() > 1 && !batch.is_oversized());
    let mut seen = 0;
    for message in &messages(&batch)[1..] {
        crate::nftables::decode::read_elements(message, &mut |_| seen += 1).unwrap();
    }
    assert_eq!(seen, 20_000);
}

#[test]
fn a_refusal_names_the_tag_it_points_at() {
    let mut batch = Batch::new();
    batch.delete_set(7, Family::Ip, "t", "gone");
    for n in 0..10 {
        let comment = Some("default/web:http");
        let element = ElementRef { comment, ..plain(&[10, 96, 0, 80]) };
        batch.add_element(100 + n, Family::Ip, "t", "s", element);
    }
    let refusal = |sequence, offset| Ack { sequence, errno: Some(Errno::EXIST), offset, words: None };
    let explain = |ack: Ack| batch.explain(&ack, Errno::EXIST);

    let failure = explain(refusal(1, None)).unwrap();
    assert_eq!(failure.tag, Some(7));
    assert_eq!(failure.error.to_string(), "cannot delete set ip t/gone: File exists");

    let (start, tag) = batch.elements[4];
    let failure = explain(refusal(2, Some(start))).unwrap();
    assert_eq!(failure.tag, Some(tag));
    assert_eq!(
        failure.error.to_string(),
        "cannot add element to ip t/s { 0a600050 \"default/web:http\" }: File exists"
    );
    // An offset inside the element, an offset before the list, and no offset.
    assert_eq!(explain(refusal(2, Some(start + 8))).unwrap().tag, Some(tag));
    assert_eq!(explain(refusal(2, Some(20))).unwrap().tag, None);
    assert_eq!(explain(refusal(2, None)).unwrap().tag, None);
    assert!(explain(refusal(0, None)).is_none() && explain(refusal(3, None)).is_none());
}

#[test]
fn clearing_starts_over() {
    let mut batch = Batch::new();
    batch.add_element(0, Family::Ip, "t", "s", plain(&key(1)));
    batch.clear();
    assert!(batch.is_empty());
    batch.add_element(0, Family::Ip, "t", "s", plain(&key(1)));
    assert_eq!(batch.messages(), 1);
    assert_eq!(messages(&batch).len(), 2);
}
