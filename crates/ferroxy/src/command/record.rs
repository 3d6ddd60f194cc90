//! `ferroxy record`: a support bundle of this node's agent, in one file that can be read on another machine.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Parser};
use ferroxy_core::resolve;
use ferroxy_dataplane::Preview;
use serde_json::{Value, json};

use super::bundle::Bundle;
use super::input::Input;
use super::objects::objects;
use super::{Answer, agent_page};
use crate::agent::inputs;
use crate::client::{AgentAddress, Api, Local};
use crate::flags::Flags;
use crate::log;
use crate::modes::Modes;
use crate::progress::{Step, in_steps};
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
        let shown = self.file.display();
        let is_file = self.file.as_os_str() != "-";
        in_steps(|step| -> anyhow::Result<()> {
            let bundle = collect(&agent, modes, step)?;
            step.is("writing the bundle");
            if !is_file {
                return Ok(write(&bundle, io::stdout().lock())?);
            }
            write_file(&bundle, &self.file).with_context(|| format!("--file: cannot write {shown}"))
        })?;
        if !is_file {
            return Ok(Answer::Yes);
        }
        log::print_error(&format!(
            "ferroxy: wrote {shown}; `ferroxy explain --bundle {shown} NAMESPACE/SERVICE` reads it"
        ));
        Ok(Answer::Yes)
    }
}

/// Replaces an existing file as a whole: an interrupt leaves it unchanged, and leaves a file `.partial` beside it.
fn write_file(bundle: &Value, path: &Path) -> io::Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let written = File::create(&partial).and_then(|file| {
        write(bundle, &file)?;
        file.sync_all()?;
        fs::rename(&partial, path)
    });
    // An incomplete bundle is useless.
    written.inspect_err(|_| drop(fs::remove_file(&partial)))
}

fn write(bundle: &Value, to: impl Write) -> io::Result<()> {
    let mut out = BufWriter::new(to);
    serde_json::to_writer_pretty(&mut out, bundle)?;
    writeln!(out)?;
    out.flush()
}

fn collect(agent: &Local, modes: Modes, step: &Step) -> anyhow::Result<Value> {
    step.is("reading the status");
    let status = agent.get("status")?;
    let config = agent.get("config")?;
    step.is("reading the journal");
    let journal = agent.get("journal?limit=2000")?;
    let known = objects(agent, step)?;
    step.is("reading traffic");
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
            "objects": known.objects,
            "hostAddresses": known.host_addresses,
            "ledger": known.ledger,
        }),
    );
    step.is("reading verdicts of probes");
    bundle["probes"] = probes(&bundle["configuration"]);
    step.is("comparing the rules");
    bundle["rules"] = rules(&Bundle::of(bundle.clone()), modes);
    step.is("reading metrics");
    bundle["metrics"] = agent.metrics(&bundle["configuration"]);
    Ok(bundle)
}

/// The report about probes, from the page beside the metrics; null if no agent answers there.
fn probes(configuration: &Value) -> Value {
    let place = configuration["metricsBindAddress"].as_str().and_then(|it| it.parse().ok());
    let page = place.and_then(|it| agent_page::ask(it).ok());
    page.map(|(mut page, _)| page["probes"].take()).unwrap_or_default()
}

/// The desired rules, and how the kernel's differ, if this process has permission to read them.
fn rules(bundle: &Bundle, modes: Modes) -> Value {
    let looked = || -> anyhow::Result<Value> {
        let input =
            Input { manifests: None, bundle: None, flags: NoFlags::try_parse_from(["ferroxy"])?.flags };
        let settings = input.settings_of(Some(bundle), modes, &mut drop)?;
        let mut facts = settings.facts();
        bundle.facts(&mut facts);
        if facts.host_addresses().is_none() {
            facts.apply(inputs::host_addresses(&settings.devices())?);
        }
        let (intent, _) = resolve::all(&facts);
        let desired = settings.ruleset(&intent, &facts).to_string();
        let compared = settings.open().and_then(|mut dataplane| dataplane.preview(&intent));
        Ok(match compared {
            Ok(Preview { text, operations }) => {
                json!({ "desired": desired, "difference": text, "operations": operations })
            }
            Err(error) => json!({ "desired": desired, "notCompared": error.to_string() }),
        })
    };
    looked().unwrap_or_else(|error| json!({ "notCompared": format!("{error:#}") }))
}

fn kernel() -> Option<String> {
    let version = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    Some(version.trim().to_owned())
}
