//! Changes of the configuration file while the agent runs: which fields are applied at once, and which need a restart.
//!
//! The caller applies them. The original exits at every change, and does not notice changes of a ConfigMap.

mod follow;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use serde_json::Value;
use tracing::{error, info, warn};

use super::doubts::{has_no_effect, leaves};
use super::file::File;
use super::{Config, validate, write};
use crate::flags::Flags;
use crate::modes::Modes;
pub use follow::Follower;

/// The result of a changed file.
#[derive(Debug, Clone, PartialEq)]
pub enum Reload {
    /// It is invalid, for these reasons: the configuration does not change.
    Refused(Vec<String>),
    Changed {
        /// The configuration to use now. Settings that need a restart have their old values.
        new: Box<Config>,
        /// Fields of the file that changed and are applied at once.
        live: Vec<String>,
        /// Fields of the file that changed, and did not change in `new`.
        needs_restart: Vec<String>,
        warnings: Vec<String>,
    },
}

impl Reload {
    /// Logs the result.
    pub fn tell(&self) {
        match self {
            Reload::Refused(reasons) => {
                error!("the changed configuration is refused, the old one stays: {}", reasons.join("; "));
            }
            Reload::Changed { live, needs_restart, warnings, .. } => {
                warnings.iter().for_each(|warning| warn!("{warning}"));
                if !live.is_empty() {
                    info!("the configuration changed: {} applied", live.join(", "));
                }
                if !needs_restart.is_empty() {
                    warn!(
                        "the configuration changed: {} needs a restart; until then the old value stays",
                        needs_restart.join(", ")
                    );
                }
                if live.is_empty() && needs_restart.is_empty() {
                    info!("the configuration changed, but no field that this mode reads");
                }
            }
        }
    }
}

/// Follows the file that `--config` names, on a thread of its own, until the follower is dropped. `current` is what
/// [`Config::load`] made of the same flags.
pub fn spawn(
    path: PathBuf,
    flags: Flags,
    mut current: Config,
    mut on: impl FnMut(Reload) + Send + 'static,
) -> io::Result<Follower> {
    follow::start(path, move |content| {
        let reload = match content {
            Ok(text) => judge(&text, &flags, &current),
            Err(reason) => Some(Reload::Refused(vec![reason])),
        };
        if let Some(Reload::Changed { new, .. }) = &reload {
            current.clone_from(new);
        }
        reload.into_iter().for_each(&mut on);
    })
}

/// Fields outside the modes' tables that a running agent can apply: packet policy, periods, log verbosity, and kernel
/// settings. A name that ends in a dot stands for all fields of that block. All other fields need a restart.
const LIVE: [&str; 10] = [
    "clusterCIDR",
    "configSyncPeriod",
    "conntrack.",
    "detectLocal.",
    "detectLocalMode",
    "featureGates.AllowServiceExternalIPs",
    "logging.verbosity",
    "logging.vmodule",
    "nodePortAddresses",
    "oomScoreAdj",
];

/// Compares the file with the configuration in use. `None`: nothing changes.
pub(super) fn judge(text: &str, flags: &Flags, current: &Config) -> Option<Reload> {
    let modes = current.modes;
    let (loaded, warnings) = match Config::from_text(text, flags, modes) {
        Ok(loaded) => loaded,
        Err(reasons) => return Some(Reload::Refused(reasons)),
    };
    let (old, new) = (Fields::of(current), Fields::of(&loaded));
    let mut changed = new.different_from(&old);
    let mode_changed = changed.iter().any(|field| field == "mode");
    if mode_changed {
        // These fields belong to the new mode; the running mode keeps its settings.
        changed.retain(|field| modes.field(field).is_none());
    }
    changed.retain(|field| !has_no_effect(field) && current.reads(field));
    let (live, needs_restart): (Vec<_>, Vec<_>) =
        changed.into_iter().partition(|field| is_live(field, modes));

    let mut merged = new;
    for field in &needs_restart {
        merged.keep(field, &old);
    }
    if mode_changed {
        modes.fields().iter().for_each(|field| merged.keep(field.name, &old));
    }
    let merged = match merged.into_config(modes) {
        Ok(merged) => merged,
        Err(reasons) => {
            let waiting = needs_restart.join(", ");
            let reason = |it| format!("{it} (until a restart applies {waiting})");
            return Some(Reload::Refused(reasons.into_iter().map(reason).collect()));
        }
    };
    (merged != *current || !needs_restart.is_empty()).then(|| Reload::Changed {
        new: Box::new(merged),
        live,
        needs_restart,
        warnings,
    })
}

fn is_live(field: &str, modes: Modes) -> bool {
    if let Some(field) = modes.field(field) {
        return field.is_live;
    }
    LIVE.iter().any(|live| field == *live || live.ends_with('.') && field.starts_with(live))
}

/// A configuration as a complete file, so that every field is compared.
struct Fields {
    file: Value,
    /// Whether each gate is on. Gates are compared by this: setting a gate to its default changes nothing.
    gates: Value,
}

impl Fields {
    fn of(config: &Config) -> Fields {
        let file = write::complete(config).to_json();
        let gates = config.feature_gates.all().map(|(name, _, on)| (name.to_owned(), Value::Bool(on)));
        Fields { file, gates: Value::Object(gates.collect()) }
    }

    /// Every field that is not a mapping, by path.
    fn all(&self) -> BTreeMap<String, &Value> {
        let file = leaves(&self.file).into_iter().filter(|(field, _)| !field.starts_with(GATES));
        let gates = leaves(&self.gates).into_iter().map(|(gate, on)| (format!("{GATES}.{gate}"), on));
        file.chain(gates).collect()
    }

    fn different_from(&self, other: &Fields) -> Vec<String> {
        let others = other.all();
        let differs = |(field, value): &(String, &Value)| others.get(field) != Some(value);
        self.all().into_iter().filter(differs).map(|(field, _)| field).collect()
    }

    /// Copies the value of a field from `other`.
    fn keep(&mut self, field: &str, other: &Fields) {
        let pointer = format!("/{}", field.replace('.', "/"));
        if let Some(gate) = field.strip_prefix(GATES).and_then(|it| it.strip_prefix('.')) {
            self.file[GATES][gate] = other.gates[gate].clone();
        } else if let (Some(mine), Some(its)) =
            (self.file.pointer_mut(&pointer), other.file.pointer(&pointer))
        {
            mine.clone_from(its);
        }
    }

    /// Back to a configuration.
    fn into_config(self, modes: Modes) -> Result<Config, Vec<String>> {
        let file = File::from_json(self.file, modes).map_err(|error| vec![error.to_string()])?;
        validate::check(file, modes).map_err(|problems| {
            problems.into_iter().map(|it| format!("{}: {}", it.field, it.reason)).collect()
        })
    }
}

const GATES: &str = "featureGates";

#[cfg(test)]
mod tests;
