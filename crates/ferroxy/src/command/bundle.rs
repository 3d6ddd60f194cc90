//! A support bundle: what `record` writes, and how `explain`, `trace`, `render` and `diff` read it on another machine.
//!
//! One JSON document of kind `Bundle`. It has no secrets: the configuration names files with credentials, never their content.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Context;
use ferroxy_core::event::Verdict;
use ferroxy_core::foreign::printable;
use ferroxy_core::{Diagnostic, Event, Facts, Intent};
use ferroxy_dataplane::Preview;
use ferroxy_source::read_str;
use serde_json::Value;

use super::input::Recorded;
use super::verdicts;
use crate::config::Config;
use crate::flags::Flags;
use crate::modes::Modes;
use crate::view::{API_VERSION, ledger};

/// The largest file that is read, about three times a bundle of 100,000 Services with ten endpoints each.
const LARGEST: u64 = 2 << 30;

#[derive(Debug)]
pub struct Bundle {
    content: Value,
    /// The flag that named the source, for errors.
    flag: &'static str,
}

impl Bundle {
    pub fn read(path: &Path) -> anyhow::Result<Bundle> {
        let shown = path.display();
        let size = std::fs::metadata(path).with_context(|| format!("--bundle: cannot read {shown}"))?.len();
        anyhow::ensure!(size <= LARGEST, "--bundle: {shown} is larger than {LARGEST} bytes");
        let text = std::fs::read_to_string(path).with_context(|| format!("--bundle: cannot read {shown}"))?;
        let value: Value =
            serde_json::from_str(&text).with_context(|| format!("--bundle: {shown} is not JSON"))?;
        anyhow::ensure!(
            value["kind"] == "Bundle",
            "--bundle: {shown} is not a bundle: `ferroxy record` writes one"
        );
        anyhow::ensure!(
            value["apiVersion"] == API_VERSION,
            "--bundle: {shown} is of version {}, and this program reads {API_VERSION}",
            value["apiVersion"]
        );
        Ok(Bundle::of(value))
    }

    pub fn of(content: Value) -> Bundle {
        Bundle { content, flag: "--bundle" }
    }

    /// A bundle of the answers of the agent on this node.
    pub fn of_agent(content: Value) -> Bundle {
        Bundle { content, flag: "--agent" }
    }

    /// The recorded configuration. Flags of this command override it.
    pub fn config(&self, flags: &Flags, modes: Modes) -> Result<(Config, Vec<String>), Vec<String>> {
        if flags.config.as_deref().is_some_and(|path| !path.is_empty()) {
            return Config::load(flags, modes);
        }
        let recorded = Config::from_text(&self.content["configuration"].to_string(), flags, modes);
        let named =
            |lines: Vec<String>| lines.into_iter().map(|line| named(line, self.flag)).collect::<Vec<_>>();
        recorded.map(|(config, warnings)| (config, named(warnings))).map_err(named)
    }

    /// The mode that was in force. The configuration does not always say, because the agent may choose by the machine.
    pub fn mode(&self) -> Option<&str> {
        self.content["status"]["mode"].as_str()
    }

    pub fn node(&self) -> Option<&str> {
        self.content["status"]["node"].as_str()
    }

    /// The time of the recording, and the state of the node.
    pub fn recorded(&self) -> Recorded {
        let refused = self.content["status"]["refused"].as_array().into_iter().flatten();
        let refusal =
            |it: &Value| Some((it["service"].as_str()?.to_owned(), it["reason"].as_str()?.to_owned()));
        Recorded {
            has_verdicts: self.verdicts().is_some(),
            at: self.content["recorded"].as_str().unwrap_or("an unknown time").to_owned(),
            refused: refused.filter_map(refusal).collect(),
            is_equal: self.difference().map(|it| it.text.is_empty() && it.operations.is_empty()),
        }
    }

    /// The recorded difference between the kernel and the desired state, or the reason why it is not known.
    pub fn difference(&self) -> Result<Preview, String> {
        let rules = &self.content["rules"];
        let Some(text) = rules["difference"].as_str() else {
            return Err(rules["notCompared"].as_str().unwrap_or("the bundle does not say why").to_owned());
        };
        let operations = rules["operations"].as_array().into_iter().flatten();
        let operations = operations.filter_map(Value::as_str).map(str::to_owned).collect();
        Ok(Preview { text: text.to_owned(), operations })
    }

    /// The difference between the ledger and the desired state: for bundles without a comparison with the kernel.
    /// `None` if the bundle has no ledger.
    pub fn behind(&self, intent: &Intent) -> Option<Preview> {
        let ledger = self.content["ledger"]["services"].as_array()?;
        let lines = |values: &mut dyn Iterator<Item = Value>| -> BTreeSet<String> {
            values.flat_map(|it| ledger::lines(&it)).collect()
        };
        let had = lines(&mut ledger.iter().cloned().chain([self.content["ledger"]["node"].clone()]));
        let wanted = intent.services.values().map(|it| ledger::service(it));
        let wanted = lines(&mut wanted.chain([ledger::node(&intent.node)]));
        let removed = had.difference(&wanted).map(|line| format!("- {line}"));
        let operations: Vec<String> =
            removed.chain(wanted.difference(&had).map(|line| format!("+ {line}"))).collect();
        let text = operations.iter().map(|it| format!("{}\n", printable(it))).collect();
        Some(Preview { text, operations })
    }

    /// The verdicts of probes; `None` if no agent answered.
    pub fn verdicts(&self) -> Option<Vec<Verdict>> {
        verdicts::in_report(&self.content["probes"])
    }

    /// The objects that the agent knew, the addresses of its host, and which endpoints failed their probes.
    pub fn facts(&self, facts: &mut Facts) -> Vec<Diagnostic> {
        let mut problems = Vec::new();
        for object in self.content["objects"].as_array().into_iter().flatten() {
            let (objects, diagnostics) = read_str("objects.json", &object.to_string());
            objects.into_iter().for_each(|object| drop(facts.apply(object.into())));
            problems.extend(diagnostics);
        }
        if let Some(addresses) = self.content["hostAddresses"].as_array() {
            let addresses = addresses.iter().filter_map(|it| it.as_str()?.parse().ok()).collect();
            facts.apply(Event::HostAddresses(addresses));
        }
        for verdict in self.verdicts().unwrap_or_default() {
            facts.apply(Event::Verdict(verdict));
        }
        problems
    }
}

/// Names the flag in messages about a file. Messages about flags stay as they are.
fn named(line: String, flag: &str) -> String {
    match line.strip_prefix("--config: ") {
        Some(rest) => format!("{flag}: {rest}"),
        None if line.starts_with("--") => line,
        None => format!("{flag}: its configuration: {line}"),
    }
}
