//! `ferroxy record`: a support bundle of this node's agent, in one file that can be read on another machine.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::{Args, Parser};
use ferroxy_core::resolve;
use serde_json::{Value, json};

use super::Answer;
use super::bundle::Bundle;
use super::input::Input;
use crate::agent::inputs;
use crate::client::{AgentAddress, Api, Local, encoded};
use crate::flags::Flags;
use crate::log;
use crate::modes::Modes;
use crate::serve::Moment;
use crate::view::document;

#[derive(Debug, Args)]
pub struct Record {
    /// Where to write the bundle; `-` is standard output
    #[arg(long, value_name = "PATH", default_value = "ferroxy-bundle.json")]
    file: PathBuf,
    #[command(flatten)]
    agent: AgentAddress,
}

/// Flags that are all at their defaults: the agent's configuration says everything.
#[derive(Debug, Parser)]
struct NoFlags {
    #[command(flatten)]
    flags: Flags,
}

impl Record {
    pub fn run(self, modes: Modes) -> anyhow::Result<Answer> {
        let agent = self.agent.open()?;
        let bundle = collect(&agent, modes)?;
        if self.file.as_os_str() == "-" {
            writeln!(io::stdout().lock(), "{bundle:#}")?;
            return Ok(Answer::Yes);
        }
        let shown = self.file.display();
        let mut file = File::create(&self.file).with_context(|| format!("--file: cannot write {shown}"))?;
        write!(file, "{bundle:#}")
            .and_then(|()| file.sync_all())
            .with_context(|| format!("--file: cannot write {shown}"))?;
        log::print_error(&format!(
            "ferroxy: wrote {shown}; `ferroxy explain --bundle {shown} NAMESPACE/SERVICE` reads it"
        ));
        Ok(Answer::Yes)
    }
}

fn collect(agent: &Local, modes: Modes) -> anyhow::Result<Value> {
    let status = agent.get("status")?;
    let config = agent.get("config")?;
    progress("the journal");
    let journal = agent.get("journal?limit=2000")?;
    let objects = objects(agent)?;
    progress("metrics and rules");
    let mut bundle = document(
        "Bundle",
        json!({
            "recorded": Moment::now().rfc3339(),
            "recordedBy": concat!("ferroxy ", env!("CARGO_PKG_VERSION")),
            "kernel": kernel(),
            "status": status,
            "configuration": config["configuration"],
            "journal": journal["items"],
            "traffic": agent.get("traffic")?,
            "objects": objects,
        }),
    );
    bundle["rules"] = rules(&Bundle::of(bundle.clone()), modes);
    bundle["metrics"] = agent.metrics(&bundle["configuration"]);
    Ok(bundle)
}

fn objects(agent: &Local) -> anyhow::Result<Vec<Value>> {
    let (mut all, mut after) = (Vec::new(), String::new());
    loop {
        progress(&format!("{} objects", all.len()));
        let mut page = agent.get(&format!("objects?limit=1000{after}"))?;
        match page["items"].take() {
            Value::Array(items) => all.extend(items),
            _ => bail!("{}: the list of objects has no items", agent.who()),
        }
        match page["next"].as_str() {
            Some(next) => after = format!("&after={}", encoded(next)),
            None => return Ok(all),
        }
    }
}

/// The rules as they must be, and how the kernel's differ, as far as this process may look.
fn rules(bundle: &Bundle, modes: Modes) -> Value {
    let looked = || -> anyhow::Result<Value> {
        let input =
            Input { manifests: None, bundle: None, flags: NoFlags::try_parse_from(["ferroxy"])?.flags };
        let settings = input.settings_of(Some(bundle), modes, &mut drop)?;
        let mut facts = settings.facts();
        bundle.facts(&mut facts);
        facts.apply(inputs::host_addresses(&settings.devices())?);
        let (intent, _) = resolve::all(&facts);
        let desired = settings.ruleset(&intent, &facts).to_string();
        let compared = settings.open().and_then(|mut dataplane| dataplane.preview(&intent));
        let difference = compared.as_ref().ok().map(|preview| preview.text.clone());
        let not_compared = compared.err().map(|error| error.to_string());
        Ok(json!({ "desired": desired, "difference": difference, "notCompared": not_compared }))
    };
    looked().unwrap_or_else(|error| json!({ "notCompared": format!("{error:#}") }))
}

fn kernel() -> Option<String> {
    let version = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    Some(version.trim().to_owned())
}

/// To a terminal only: what takes its time.
fn progress(what: &str) {
    if io::stderr().is_terminal() {
        log::print_error(&format!("ferroxy: reading {what}"));
    }
}
