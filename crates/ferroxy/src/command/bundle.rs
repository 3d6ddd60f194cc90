//! A support bundle: what `record` writes, and how `explain`, `trace`, `render` and `diff` read it on another machine.
//!
//! One JSON document of kind `Bundle`. It has no secrets: the configuration names files with credentials, never their content.

use std::path::Path;

use anyhow::Context;
use ferroxy_core::{Diagnostic, Facts};
use ferroxy_source::read_str;
use serde_json::Value;

use crate::config::Config;
use crate::flags::Flags;
use crate::modes::Modes;

/// The largest file that is read: 100,000 Services with ten endpoints each are a third of it.
const LARGEST: u64 = 2 << 30;

#[derive(Debug)]
pub struct Bundle(Value);

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
        Ok(Bundle(value))
    }

    pub fn of(value: Value) -> Bundle {
        Bundle(value)
    }

    /// The recorded configuration, with the flags that are given here before it.
    pub fn config(&self, flags: &Flags, modes: Modes) -> Result<(Config, Vec<String>), Vec<String>> {
        if flags.config.as_deref().is_some_and(|path| !path.is_empty()) {
            return Config::load(flags, modes);
        }
        Config::from_text(&self.0["configuration"].to_string(), flags, modes)
    }

    /// The mode that was in force: the configuration may leave the choice to the machine.
    pub fn mode(&self) -> Option<&str> {
        self.0["status"]["mode"].as_str()
    }

    pub fn node(&self) -> Option<&str> {
        self.0["status"]["node"].as_str()
    }

    /// What would have changed in that kernel, as text; or why that is not known.
    pub fn difference(&self) -> Result<&str, &str> {
        match self.0["rules"]["difference"].as_str() {
            Some(text) => Ok(text),
            None => Err(self.0["rules"]["notCompared"].as_str().unwrap_or("the bundle does not say why")),
        }
    }

    /// The objects that the agent knew.
    pub fn facts(&self, facts: &mut Facts) -> Vec<Diagnostic> {
        let mut problems = Vec::new();
        for object in self.0["objects"].as_array().into_iter().flatten() {
            let (objects, diagnostics) = read_str("objects.json", &object.to_string());
            objects.into_iter().for_each(|object| drop(facts.apply(object.into())));
            problems.extend(diagnostics);
        }
        problems
    }
}
