//! `ferroxy cleanup`: everything of ours leaves the kernel.

use clap::Args;
use ferroxy_core::Family;
use ferroxy_nftables::Dataplane;

use super::Answer;

#[derive(Debug, Args)]
pub struct Cleanup {}

impl Cleanup {
    pub fn run(self) -> anyhow::Result<Answer> {
        cleanup()
    }
}

/// A diff to nothing.
pub fn cleanup() -> anyhow::Result<Answer> {
    let removed = Dataplane::open(&Family::ALL)?.cleanup()?;
    println!("{}", if removed { "removed the tables of Ferroxy" } else { "nothing of Ferroxy was there" });
    Ok(Answer::Yes)
}
