//! `ferroxy cleanup`: everything of ours leaves the kernel, and whatever kube-proxy left there.

use anyhow::bail;
use clap::Args;
use ferroxy_core::Family;
use ferroxy_iptables::tool::Tools;

use super::Answer;
use crate::config::Mode;
use crate::{dataplane, host, takeover};

#[derive(Debug, Args)]
pub struct Cleanup {}

impl Cleanup {
    pub fn run(self) -> anyhow::Result<Answer> {
        cleanup()
    }
}

/// A diff to nothing. With an agent at work it would last a moment only.
pub fn cleanup() -> anyhow::Result<Answer> {
    let Some(_claim) = host::Claim::take()? else {
        bail!(
            "a Ferroxy agent is running in this network namespace and would put everything back; stop it first"
        );
    };
    let tables = dataplane::open(Mode::Nftables, &Family::ALL)?.cleanup()?;
    // Without the tools there was no iptables mode either; and what kube-proxy left can be removed without them.
    let has_tools = Family::ALL.into_iter().all(Tools::are_installed);
    let chains = has_tools && dataplane::open(Mode::Iptables, &Family::ALL)?.cleanup()?;
    match (tables, chains) {
        (false, false) => println!("nothing of Ferroxy was there"),
        (true, _) => println!("removed the tables of Ferroxy"),
        (false, true) => {}
    }
    if chains {
        println!("removed the chains of iptables mode, Ferroxy's or kube-proxy's");
    }
    let report = takeover::remove_leftovers(None);
    report.removed.iter().for_each(|removed| println!("removed what kube-proxy left: {removed}"));
    report.kept.iter().for_each(|kept| println!("left by kube-proxy, and stays: {kept}"));
    if !report.failed.is_empty() {
        bail!("not all of what kube-proxy left could be removed: {}", report.failed.join("; "));
    }
    Ok(Answer::Yes)
}
