//! The journal: the latest actions of the agent, for people. A bounded ring: new entries evict the oldest.
//!
//! The agent writes it through `Status`. There is a journal only where it has a reader: the page, or a collector of traces. Readers
//! copy entries and can wait for the next one. It ends with the process.

mod entry;

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ferroxy_core::foreign;
use tokio::sync::watch;

pub use entry::{Entry, Sizes, What};

/// How many entries are kept.
pub const MOST: usize = 2_000;

/// The most characters of a text. Reasons of the kernel and Diagnostics may quote what tenants wrote.
const LONGEST: usize = 300;

#[derive(Debug)]
pub struct Journal {
    ring: Mutex<Ring>,
    /// The number of the last entry.
    last: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Ring {
    entries: VecDeque<Entry>,
    last: u64,
}

/// A copy of some entries.
#[derive(Debug, Default, PartialEq)]
pub struct Part {
    pub entries: Vec<Entry>,
    /// The number of the oldest entry that is kept, and of the newest; `first` is `last + 1` while there is none.
    pub first: u64,
    pub last: u64,
}

/// The times from a change in the API to the kernel, of the entries that have one.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Latencies {
    pub count: usize,
    pub median: Option<f64>,
    pub p99: Option<f64>,
}

impl Default for Journal {
    fn default() -> Journal {
        Journal { ring: Mutex::default(), last: watch::Sender::new(0) }
    }
}

impl Journal {
    /// Adds an entry; its number is set here.
    pub fn write(&self, mut entry: Entry) {
        entry.text = cut(&entry.text);
        let mut ring = self.ring();
        ring.last += 1;
        entry.number = ring.last;
        if ring.entries.len() == MOST {
            ring.entries.pop_front();
        }
        ring.entries.push_back(entry);
        let last = ring.last;
        drop(ring);
        self.last.send_replace(last);
    }

    /// The entries after this number, the oldest first, and not more than `limit`.
    pub fn after(&self, number: u64, limit: usize) -> Part {
        let ring = self.ring();
        let first = ring.first();
        let skipped = usize::try_from(number.saturating_add(1).saturating_sub(first)).unwrap_or(usize::MAX);
        let entries = ring.entries.iter().skip(skipped).take(limit).cloned().collect();
        Part { entries, first, last: ring.last }
    }

    /// The newest entries, the oldest of them first.
    pub fn newest(&self, limit: usize) -> Part {
        let after = self.last().saturating_sub(limit as u64);
        self.after(after, limit)
    }

    /// The number of the newest entry; 0 while there is none.
    pub fn last(&self) -> u64 {
        *self.last.borrow()
    }

    /// The number of the oldest entry that is kept, and of the newest.
    pub fn bounds(&self) -> (u64, u64) {
        let ring = self.ring();
        (ring.first(), ring.last)
    }

    /// Notifies of every new entry.
    pub fn follow(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }

    pub fn latencies(&self) -> Latencies {
        let ring = self.ring();
        let mut seconds: Vec<f64> = ring.entries.iter().filter_map(|entry| entry.api_to_kernel).collect();
        drop(ring);
        seconds.sort_by(f64::total_cmp);
        let at = |percent: usize| {
            let rank = (seconds.len() * percent).div_ceil(100).max(1);
            seconds.get(rank - 1).copied()
        };
        Latencies { count: seconds.len(), median: at(50), p99: at(99) }
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        // A panic while writing leaves whole entries.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring {
    fn first(&self) -> u64 {
        self.last + 1 - self.entries.len() as u64
    }
}

/// Printable, and not longer than a few sentences.
fn cut(text: &str) -> Box<str> {
    let printable = foreign::printable(text);
    match printable.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &printable[..end]).into(),
        None => printable.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journal(entries: usize) -> Journal {
        let journal = Journal::default();
        (0..entries).for_each(|_| journal.write(Entry::new(What::Drift, "x")));
        journal
    }

    fn numbers(part: &Part) -> Vec<u64> {
        part.entries.iter().map(|entry| entry.number).collect()
    }

    #[test]
    fn entries_are_numbered_and_read_in_parts() {
        let journal = journal(5);
        let part = journal.after(0, 2);
        assert_eq!((numbers(&part), part.first, part.last), (vec![1, 2], 1, 5));
        assert_eq!(numbers(&journal.after(2, 100)), [3, 4, 5]);
        assert_eq!(numbers(&journal.newest(2)), [4, 5]);
        assert!(journal.after(5, 100).entries.is_empty());
        assert!(journal.after(u64::MAX, 100).entries.is_empty());
    }

    #[test]
    fn an_empty_journal_has_no_first_entry() {
        let part = journal(0).after(0, 10);
        assert_eq!((part.entries.len(), part.first, part.last), (0, 1, 0));
    }

    #[test]
    fn the_oldest_entries_make_way() {
        let journal = journal(MOST + 3);
        let part = journal.after(0, usize::MAX);
        assert_eq!((part.entries.len(), part.first, part.last), (MOST, 4, MOST as u64 + 3));
        assert_eq!((part.entries[0].number, journal.bounds()), (4, (4, MOST as u64 + 3)));
        assert_eq!(numbers(&journal.after(5, 1)), [6], "what is lost is skipped");
    }

    #[test]
    fn texts_are_cut_and_printable() {
        let journal = Journal::default();
        journal.write(Entry::new(What::Failed, &"ä\u{1b}".repeat(LONGEST)));
        let text = &journal.after(0, 1).entries[0].text;
        assert_eq!(text.chars().count(), LONGEST + 1);
        assert!(text.starts_with("ä\\u{1b}ä") && text.ends_with('…'));
    }

    #[test]
    fn whoever_follows_is_notified() {
        let journal = journal(1);
        let mut following = journal.follow();
        assert!(!following.has_changed().unwrap());
        journal.write(Entry::new(What::Drift, "x"));
        assert!(following.has_changed().unwrap());
        assert_eq!((*following.borrow_and_update(), journal.last()), (2, 2));
    }

    #[test]
    fn latencies_are_those_of_the_entries_that_have_one() {
        let journal = Journal::default();
        assert_eq!(journal.latencies(), Latencies::default());
        for number in 1..=100_u32 {
            journal.write(Entry::new(What::Drift, "x"));
            let api_to_kernel = Some(f64::from(number));
            journal.write(Entry { api_to_kernel, ..Entry::new(What::Changed, "") });
        }
        assert_eq!(journal.latencies(), Latencies { count: 100, median: Some(50.0), p99: Some(99.0) });
    }
}
