//! `ferroxy cleanup`: everything of ours leaves the kernel, whatever mode it is of, and whatever kube-proxy left there.

use anyhow::bail;
use clap::Args;
use ferroxy_core::Family;
use ferroxy_iptables::counters;

use super::Answer;
use crate::dataplane::{Dataplane, Nftables};
use crate::host;
use crate::takeover::{self, Established, Report};

#[derive(Debug, Args)]
pub struct Cleanup {
    /// Leave what is kube-proxy's alone: it is at work here, or about to be
    #[arg(long)]
    only_ours: bool,
}

impl Cleanup {
    pub fn run(self) -> anyhow::Result<Answer> {
        cleanup(self.only_ours)
    }
}

/// A diff to nothing. With an agent at work it would last a moment only.
pub fn cleanup(only_ours: bool) -> anyhow::Result<Answer> {
    let Some(_claim) = host::Claim::take()? else {
        bail!(
            "a Ferroxy agent is running in this network namespace and would put everything back; stop it first"
        );
    };
    let tables = Nftables::open(&Family::ALL)?.cleanup()?;
    if tables {
        println!("removed the tables of Ferroxy");
    }
    if only_ours {
        return Ok(Answer::Yes);
    }
    // Chains of iptables mode are kube-proxy's by name, whoever made them.
    let report = takeover::remove_leftovers(None, Established::End);
    counters::remove()?;
    for removed in &report.removed {
        println!("removed what kube-proxy, iptables or ipvs mode left: {removed}");
    }
    for kept in &report.kept {
        println!("left by kube-proxy, iptables or ipvs mode, and stays: {kept}");
    }
    if !tables && report == Report::default() {
        println!("nothing of Ferroxy was there");
    }
    if !report.failed.is_empty() {
        bail!(
            "not all of what kube-proxy, iptables or ipvs mode left could be removed: {}",
            report.failed.join("; ")
        );
    }
    Ok(Answer::Yes)
}
