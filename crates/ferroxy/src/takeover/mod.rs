//! Taking over from kube-proxy: what it has left in this kernel, in whatever mode it ran, goes once ours is in force. So does
//! what Ferroxy itself left there in another mode: iptables chains go by the same names, its nftables table by its own.
//!
//! ```text
//! its nftables tables    in the transaction that brings ours (`Dataplane::start`); found again later: `nftables.rs`
//! our nftables table     right after, in another mode: `nftables.rs`
//! its iptables chains    right after: `iptables_nft.rs` over netlink, `iptables_legacy.rs` through socket options
//! its virtual servers    after those, with their device and the sets that chains asked: `ipvs.rs`
//! ```
//! `names.rs` says what is kube-proxy's, `removal.rs` what of it can go. Rules of others stay, even in the same chains.

mod iptables_legacy;
mod iptables_nft;
mod ipvs;
mod names;
mod nftables;
mod removal;

use std::fmt;

use ferroxy_core::Family;
use tracing::{debug, info, warn};

use crate::config::Mode;

/// Removes what kube-proxy has left, but for what the mode in force calls its own (ours go by the same names there).
/// With no mode in force, everything. One thing that cannot be removed does not keep the others.
pub fn remove_leftovers(in_force: Option<Mode>) -> Report {
    let mut report = Report::default();
    nftables::remove(in_force, &mut report);
    iptables_nft::remove(in_force, &mut report);
    iptables_legacy::remove(in_force, &mut report);
    ipvs::remove(in_force, &mut report);
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
}

impl Report {
    fn failed(&mut self, error: &impl fmt::Display) {
        self.failed.push(error.to_string());
    }
}

/// The agent's side of it: looks after the first sync, and whenever the rules are verified. A kube-proxy that still runs
/// puts its rules back; when it has ended at last, what it left goes too.
#[derive(Debug)]
pub struct Takeover {
    mode: Mode,
    /// It has been looked once: what is found from now on has come back.
    looked: bool,
    told_that_it_runs: bool,
    /// What could not be removed the last time: said again only when it is something else.
    failed: Vec<String>,
}

impl Takeover {
    pub fn new(mode: Mode) -> Takeover {
        Takeover { mode, looked: false, told_that_it_runs: false, failed: Vec::new() }
    }

    /// Looks and removes. `replaced` are kube-proxy's nftables tables that have gone already, as ours came.
    pub fn look(&mut self, replaced: &[Family]) {
        let mut report = remove_leftovers(Some(self.mode));
        report.removed.splice(0..0, replaced.iter().map(|family| nftables::describe(*family)));
        self.tell(&report);
        self.looked = true;
        self.failed = report.failed;
    }

    fn tell(&mut self, report: &Report) {
        if !report.own.is_empty() {
            info!("{} of Ferroxy's nftables mode removed", report.own.join(", "));
        }
        let removed = report.removed.join(", ");
        if !removed.is_empty() && !self.looked {
            info!("taken over from kube-proxy: {removed} removed");
        } else if !removed.is_empty() && !self.told_that_it_runs {
            warn!("kube-proxy still runs on this node: {removed} came back and went again; stop it");
            self.told_that_it_runs = true;
        } else if !removed.is_empty() {
            debug!("kube-proxy still runs on this node: {removed} came back and went again");
        }
        if !self.looked {
            report.kept.iter().for_each(|kept| warn!("left by kube-proxy, and stays: {kept}"));
        }
        for failed in report.failed.iter().filter(|failed| !self.failed.contains(failed)) {
            warn!("what kube-proxy left may still be there: {failed}");
        }
    }
}
