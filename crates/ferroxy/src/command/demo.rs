//! `ferroxy demo`

use clap::Args;

use super::Answer;

#[derive(Debug, Args)]
pub struct Demo {}

impl Demo {
    pub fn run(self) -> anyhow::Result<Answer> {
        anyhow::bail!("being written")
    }
}
