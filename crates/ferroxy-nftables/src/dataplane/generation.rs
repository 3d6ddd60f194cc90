//! Tells the changes of others from our own by the kernel's generation, which counts every transaction of anybody. Pure.
//!
//! Notifications can be lost, the generation cannot. Commits that the watch has seen, and that did not touch our tables, are
//! subtracted: on a node where others change rules all the time, we would otherwise list our tables every period, and listing
//! a large table is expensive.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ferroxy_dataplane::Changed;
use ferroxy_netlink::nftables::Notice;

use crate::TABLE;

#[derive(Debug, Default)]
pub(super) struct Generation {
    /// The kernel's generation, if only we changed something since `counted`.
    expected: u32,
    /// How many commits of others the watch has seen that did not touch our tables.
    elsewhere: Arc<AtomicU32>,
    /// How many of those are in `expected`.
    counted: u32,
    /// How many of those were reported as [`Changed::Elsewhere`].
    reported: u32,
}

impl Generation {
    /// Each transaction of ours increases the generation by one.
    pub(super) fn committed(&mut self, commits: usize) {
        self.expected = self.expected.wrapping_add(commits as u32);
    }

    /// The kernel had this generation when the watch had seen `elsewhere` commits of others.
    pub(super) fn expect(&mut self, generation: u32, elsewhere: u32) {
        (self.expected, self.counted) = (generation, elsewhere);
    }

    pub(super) fn elsewhere(&self) -> u32 {
        self.elsewhere.load(Ordering::SeqCst)
    }

    /// What changed, if the kernel's generation is `now`. A commit whose notification is still on its way counts as a change of
    /// ours: that costs one unnecessary verification.
    pub(super) fn compare(&mut self, now: u32) -> Changed {
        let elsewhere = self.elsewhere();
        let reported = std::mem::replace(&mut self.reported, elsewhere);
        if now != self.expected.wrapping_add(elsewhere.wrapping_sub(self.counted)) {
            Changed::Ours
        } else if elsewhere != reported {
            Changed::Elsewhere
        } else {
            Changed::Nothing
        }
    }

    pub(super) fn listener(&self) -> Listener {
        Listener { elsewhere: Arc::clone(&self.elsewhere), is_ours: false }
    }
}

/// The watch's side: counts the commits that did not touch our tables.
#[derive(Debug)]
pub(super) struct Listener {
    elsewhere: Arc<AtomicU32>,
    /// The commit that is being reported touches our tables.
    is_ours: bool,
}

impl Listener {
    /// What to report of a notice: changes of our tables.
    pub(super) fn receive(&mut self, notice: &Notice) -> Option<&'static str> {
        match notice {
            Notice::Changed { table, .. } if table == TABLE => {
                self.is_ours = true;
                Some("another program changed table ferroxy")
            }
            // The last notice of a commit.
            Notice::Generation { .. } => {
                let is_elsewhere = !std::mem::take(&mut self.is_ours);
                self.elsewhere.fetch_add(is_elsewhere.into(), Ordering::SeqCst);
                None
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(table: &str) -> Notice {
        Notice::Changed {
            family: None,
            table: table.into(),
            what: "chain",
            chain: None,
            removed: false,
            port_id: 7,
        }
    }

    const COMMITTED: Notice = Notice::Generation { id: 1, port_id: 7 };

    #[test]
    fn only_unexplained_commits_count_as_ours() {
        let mut generation = Generation::default();
        let mut listener = generation.listener();
        generation.expect(10, 0);
        generation.committed(2);
        assert_eq!(generation.compare(12), Changed::Nothing);

        assert_eq!(listener.receive(&changed("other")), None);
        assert_eq!(listener.receive(&COMMITTED), None);
        assert_eq!(generation.compare(13), Changed::Elsewhere);
        assert_eq!(generation.compare(13), Changed::Nothing, "it was reported");
        assert_eq!(generation.compare(14), Changed::Ours, "its notification was lost, or is on its way");

        assert!(listener.receive(&changed(TABLE)).is_some());
        listener.receive(&changed("other"));
        listener.receive(&COMMITTED);
        assert_eq!(generation.compare(14), Changed::Ours);
        generation.expect(14, generation.elsewhere());
        assert_eq!(generation.compare(14), Changed::Nothing);
    }

    #[test]
    fn counters_wrap_around() {
        let mut generation = Generation::default();
        generation.expect(u32::MAX, 0);
        generation.committed(1);
        assert_eq!(generation.compare(0), Changed::Nothing);
    }
}
