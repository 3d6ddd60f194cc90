//! `ferroxy cleanup`: everything of ours leaves the kernel, and whatever kube-proxy left there.

use anyhow::bail;
use clap::Args;
use ferroxy_core::Family;

use super::Answer;
use crate::config::Mode;
use crate::{dataplane, host, takeover};

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
    let removed = dataplane::open(Mode::Nftables, &Family::ALL)?.cleanup()?;
    println!("{}", if removed { "removed the tables of Ferroxy" } else { "nothing of Ferroxy was there" });
    if only_ours {
        return Ok(Answer::Yes);
    }
    let report = takeover::remove_leftovers(None);
    report.removed.iter().for_each(|removed| println!("removed what kube-proxy left: {removed}"));
    report.kept.iter().for_each(|kept| println!("left by kube-proxy, and stays: {kept}"));
    if !report.failed.is_empty() {
        bail!("not all of what kube-proxy left could be removed: {}", report.failed.join("; "));
    }
    Ok(Answer::Yes)
}
