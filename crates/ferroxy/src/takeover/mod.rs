//! Taking over from kube-proxy: what it has left in this kernel, in whatever mode it ran, goes once ours is in force. So does
//! what Ferroxy itself left there in another mode: iptables chains go by the same names, its nftables table by its own.
//!
//! ```text
//! its nftables tables    in the transaction that brings ours (`Dataplane::start`); found again later: `nftables.rs`
//! our nftables table     right after, in another mode: `nftables.rs`
//! its iptables chains    right after: `iptables_nft.rs` over netlink, `iptables_legacy.rs` through socket options
//! its virtual servers    after those, with their device and the sets that chains asked; what connections still go through
//!                        stays until they have ended: `ipvs.rs`
//! ```
//! `names.rs` says what is kube-proxy's, `removal.rs` what of it can go. Rules of others stay, even in the same chains.

mod iptables_legacy;
mod iptables_nft;
mod ipvs;
mod names;
mod nftables;
mod removal;

use std::fmt;
use std::time::{Duration, Instant};

use ferroxy_core::Family;
use tracing::{debug, info, warn};

use crate::dataplane::Mode;
use names::Spared;

/// How long connections through kube-proxy's IPVS may go on: as long as those to an endpoint that has left, in ipvs mode.
const LIMIT: Duration = Duration::from_secs(15 * 60);

/// How often they are counted, while there are any.
const COUNT_AGAIN: Duration = Duration::from_secs(5);

/// What becomes of connections that go through kube-proxy's virtual servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Established {
    /// What they need stays.
    GoOn,
    End,
}

/// Removes what kube-proxy has left, but for what the mode in force calls its own (ours go by the same names there).
/// With no mode in force, everything. One thing that cannot be removed does not keep the others.
pub fn remove_leftovers(in_force: Option<Mode>, established: Established) -> Report {
    let mut report = Report::default();
    nftables::remove(in_force, &mut report);
    let ipvs = ipvs::Leftovers::look(in_force, established);
    // Where it is not known what is there, it is guarded.
    let guard = ipvs.as_ref().map_or(true, ipvs::Leftovers::are_needed);
    let spared = Spared { in_force, guard };
    iptables_nft::remove(spared, &mut report);
    iptables_legacy::remove(spared, &mut report);
    match ipvs {
        Ok(left) => left.remove(&mut report),
        Err(error) => report.failed(&error),
    }
    report
}

/// What was found and what became of it, a sentence's part each.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// `table ip kube-proxy`, `14 chains of ip nat`.
    pub removed: Vec<String>,
    /// What Ferroxy itself left, in another mode: `table ip ferroxy`.
    pub own: Vec<String>,
    /// What stays because somebody else uses it.
    pub kept: Vec<String>,
    /// What should have gone, and why it did not.
    pub failed: Vec<String>,
    /// How many connections go on through virtual servers, which stay for them.
    pub connections: u64,
}

impl Report {
    fn failed(&mut self, error: &impl fmt::Display) {
        self.failed.push(error.to_string());
    }
}

/// The agent's side of it: looks after the first sync, whenever the rules are verified, and while connections are waited for.
/// A kube-proxy that still runs puts its rules back; when it has ended at last, what it left goes too.
#[derive(Debug)]
pub struct Takeover {
    mode: Mode,
    /// It has been looked once: what is found from now on has come back.
    looked: bool,
    told_that_it_runs: bool,
    /// What could not be removed the last time: said again only when it is something else.
    failed: Vec<String>,
    waiting: Option<Waiting>,
}

/// For connections to end. After a restart it begins anew: nobody knows since when they have been waited for.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    since: Instant,
    next: Instant,
}

impl Takeover {
    pub fn new(mode: Mode) -> Takeover {
        Takeover { mode, looked: false, told_that_it_runs: false, failed: Vec::new(), waiting: None }
    }

    /// When to look next, if there is something to wait for.
    pub fn due(&self) -> Option<Instant> {
        self.waiting.map(|waiting| waiting.next)
    }

    /// Looks and removes. `replaced` are kube-proxy's nftables tables that have gone already, as ours came.
    pub fn look(&mut self, replaced: &[Family], now: Instant) {
        let established = self.established(now);
        let mut report = remove_leftovers(Some(self.mode), established);
        report.removed.splice(0..0, replaced.iter().map(|family| nftables::describe(*family)));
        self.tell(&report, established);
        self.looked = true;
        self.wait(report.connections, now);
        self.failed = report.failed;
    }

    fn established(&self, now: Instant) -> Established {
        let is_over = |waiting: Waiting| now.saturating_duration_since(waiting.since) >= LIMIT;
        if self.waiting.is_some_and(is_over) { Established::End } else { Established::GoOn }
    }

    fn wait(&mut self, connections: u64, now: Instant) {
        let since = self.waiting.map_or(now, |waiting| waiting.since);
        self.waiting = (connections > 0).then_some(Waiting { since, next: now + COUNT_AGAIN });
    }

    fn tell(&mut self, report: &Report, established: Established) {
        if !report.own.is_empty() {
            info!("{} of Ferroxy's nftables mode removed", report.own.join(", "));
        }
        let removed = report.removed.join(", ");
        match (removed.as_str(), self.waiting) {
            ("", _) => {}
            (_, Some(_)) if established == Established::End => {
                let minutes = LIMIT.as_secs() / 60;
                info!("connections through kube-proxy's IPVS end after {minutes} minutes: {removed} removed");
            }
            (_, Some(_)) if report.connections > 0 => {
                debug!("no longer needed by connections through kube-proxy's IPVS: {removed} removed");
            }
            (_, Some(_)) => info!("nothing goes through kube-proxy's IPVS any more: {removed} removed"),
            (_, None) if !self.looked => info!("taken over from kube-proxy: {removed} removed"),
            (_, None) if self.told_that_it_runs => {
                debug!("kube-proxy still runs on this node: {removed} came back and went again");
            }
            (_, None) => {
                warn!("kube-proxy still runs on this node: {removed} came back and went again; stop it");
                self.told_that_it_runs = true;
            }
        }
        if report.connections > 0 && self.waiting.is_none() {
            info!(
                "{} connections go through kube-proxy's IPVS: the virtual servers they need stay until they have ended, \
                 for {} minutes at most; new connections are ours",
                report.connections,
                LIMIT.as_secs() / 60,
            );
        }
        if !self.looked {
            report.kept.iter().for_each(|kept| warn!("left by kube-proxy, and stays: {kept}"));
        }
        for failed in report.failed.iter().filter(|failed| !self.failed.contains(failed)) {
            warn!("what kube-proxy left may still be there: {failed}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_counted_until_they_have_ended_or_the_limit_has_passed() {
        let start = Instant::now();
        let mut takeover = Takeover::new(Mode::Nftables);
        assert_eq!(takeover.due(), None);
        takeover.wait(2, start);
        assert_eq!(takeover.due(), Some(start + COUNT_AGAIN));
        takeover.wait(1, start + COUNT_AGAIN);
        assert_eq!(takeover.established(start + LIMIT - COUNT_AGAIN), Established::GoOn);
        assert_eq!(takeover.established(start + LIMIT), Established::End);
        takeover.wait(0, start + LIMIT);
        assert_eq!(takeover.due(), None);
        assert_eq!(takeover.established(start + 2 * LIMIT), Established::GoOn);
    }
}
