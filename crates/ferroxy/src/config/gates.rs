//! Feature gates: which there are, and which are on.

use std::collections::BTreeMap;

use Stage::{Alpha, Beta, Deprecated, Locked, Stable};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Stage {
    Alpha,
    Beta,
    Stable,
    Deprecated,
    /// On, and cannot be switched off.
    Locked,
}

/// The gates that the original (1.37) reads: its own, those of logging, and those of its API client.
const KNOWN: [(&str, Stage, bool); 20] = [
    ("AllowServiceExternalIPs", Stable, true),
    ("ClientsAllowCBOR", Alpha, false),
    ("ClientsPreferCBOR", Alpha, false),
    ("ComponentFlagz", Beta, true),
    ("ComponentStatusz", Beta, true),
    ("ContextualLogging", Beta, true),
    ("InOrderInformers", Beta, true),
    ("InformerResourceVersion", Alpha, false),
    ("KubeProxyIPVS", Deprecated, true),
    ("KubeProxyNFTablesLocalhostNodePorts", Alpha, false),
    ("LoggingAlphaOptions", Alpha, false),
    ("LoggingBetaOptions", Beta, true),
    ("MultiCIDRServiceAllocator", Locked, true),
    ("NFTablesNetlink", Beta, true),
    ("NFTablesProxyMode", Locked, true),
    ("NativeHistograms", Beta, true),
    ("PreferSameTrafficDistribution", Locked, true),
    ("WatchListClient", Beta, true),
    ("WinDSR", Locked, true),
    ("WinOverlay", Locked, true),
];

/// Gates as they were set; the rest have their defaults.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FeatureGates {
    set: BTreeMap<String, bool>,
}

impl FeatureGates {
    /// Checks names and locks. Problems are (gate, what is wrong).
    pub(super) fn new(set: BTreeMap<String, bool>) -> Result<FeatureGates, Vec<(String, String)>> {
        let wrong = |(name, on): (&String, &bool)| {
            let reason = match stage(name) {
                None => "is not a known feature gate",
                Some(Locked) if !on => "can no longer be switched off",
                Some(_) => return None,
            };
            Some((name.clone(), reason.to_owned()))
        };
        let problems: Vec<_> = set.iter().filter_map(wrong).collect();
        if problems.is_empty() { Ok(FeatureGates { set }) } else { Err(problems) }
    }

    /// Gates nobody knows are off.
    pub fn enabled(&self, name: &str) -> bool {
        let Some((_, stage, default)) = KNOWN.into_iter().find(|(known, _, _)| *known == name) else {
            return false;
        };
        let group = match stage {
            Alpha => self.set.get("AllAlpha"),
            Beta => self.set.get("AllBeta"),
            Stable | Deprecated | Locked => None,
        };
        self.set.get(name).or(group).copied().unwrap_or(default)
    }

    /// Every gate with its stage (as metrics spell it) and whether it is on.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, &'static str, bool)> {
        KNOWN.into_iter().map(|(name, stage, _)| {
            let stage = match stage {
                Alpha => "ALPHA",
                Beta => "BETA",
                Deprecated => "DEPRECATED",
                Stable | Locked => "",
            };
            (name, stage, self.enabled(name))
        })
    }

    pub fn given(&self) -> &BTreeMap<String, bool> {
        &self.set
    }
}

fn stage(name: &str) -> Option<Stage> {
    match name {
        "AllAlpha" => Some(Alpha),
        "AllBeta" => Some(Beta),
        _ => KNOWN.into_iter().find(|(known, _, _)| *known == name).map(|(_, stage, _)| stage),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gates(set: &[(&str, bool)]) -> Result<FeatureGates, Vec<(String, String)>> {
        FeatureGates::new(set.iter().map(|(name, on)| (name.to_string(), *on)).collect())
    }

    #[test]
    fn defaults_and_what_was_set() {
        let none = FeatureGates::default();
        assert!(none.enabled("AllowServiceExternalIPs") && none.enabled("KubeProxyIPVS"));
        assert!(!none.enabled("KubeProxyNFTablesLocalhostNodePorts") && !none.enabled("NoSuchGate"));
        let set = gates(&[("AllowServiceExternalIPs", false), ("LoggingAlphaOptions", true)]).unwrap();
        assert!(!set.enabled("AllowServiceExternalIPs") && set.enabled("LoggingAlphaOptions"));
    }

    #[test]
    fn groups_give_way_to_single_gates() {
        let set = gates(&[("AllAlpha", true), ("LoggingAlphaOptions", false), ("AllBeta", false)]).unwrap();
        assert!(set.enabled("KubeProxyNFTablesLocalhostNodePorts") && !set.enabled("LoggingAlphaOptions"));
        assert!(!set.enabled("NFTablesNetlink") && set.enabled("AllowServiceExternalIPs"));
    }

    #[test]
    fn unknown_and_locked_gates_are_all_named() {
        let problems =
            gates(&[("Nonsense", true), ("NFTablesProxyMode", false), ("WinDSR", true)]).unwrap_err();
        let expected = [
            ("NFTablesProxyMode".to_owned(), "can no longer be switched off".to_owned()),
            ("Nonsense".to_owned(), "is not a known feature gate".to_owned()),
        ];
        assert_eq!(problems, expected);
    }
}
