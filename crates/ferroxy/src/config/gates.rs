//! Feature gates: the known ones, and which are on.

use std::collections::BTreeMap;

use ferroxy_core::explain::distance;

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

/// The gates that the original (1.37) reads: its own, those of logging, and those of its API client. And ours, which begins with
/// our name.
const KNOWN: [(&str, Stage, bool); 21] = [
    ("AllowServiceExternalIPs", Stable, true),
    ("ClientsAllowCBOR", Alpha, false),
    ("ClientsPreferCBOR", Alpha, false),
    ("ComponentFlagz", Beta, true),
    ("ComponentStatusz", Beta, true),
    ("ContextualLogging", Beta, true),
    ("FerroxyProbes", Beta, true),
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
    /// Refuses to switch off locked gates. A problem is (gate, reason).
    pub(super) fn new(set: BTreeMap<String, bool>) -> Result<FeatureGates, Vec<(String, String)>> {
        let is_wrong = |(name, on): &(&String, &bool)| stage(name) == Some(Locked) && !**on;
        let locked = set.iter().filter(is_wrong);
        let problems: Vec<_> =
            locked.map(|(name, _)| (name.clone(), "can no longer be switched off".to_owned())).collect();
        if problems.is_empty() { Ok(FeatureGates { set }) } else { Err(problems) }
    }

    /// Warnings, at most one line of each kind.
    ///
    /// The original refuses gates that it does not know. But it knows every gate of every Kubernetes component, and a
    /// configuration that works with it must work here: so such a gate is a warning, with a similar name if there is one.
    pub(super) fn doubts(&self) -> Vec<String> {
        let list = |names: Vec<String>, what: &str| {
            (!names.is_empty()).then(|| format!("featureGates: {} {what}", names.join(", ")))
        };
        let of_stage = |wanted: &[Stage]| {
            let is_wanted = |name: &&String| stage(name).is_some_and(|stage| wanted.contains(&stage));
            self.set.keys().filter(is_wanted).cloned().collect()
        };
        let unknown = self.set.keys().filter(|name| stage(name).is_none());
        let unknown = unknown.map(|name| match nearest(name) {
            Some(known) => format!("{name} (did you mean {known}?)"),
            None => name.clone(),
        });
        [
            list(unknown.collect(), "has no effect: unknown feature gate"),
            list(of_stage(&[Locked]), "is always on, and the gate will be removed: do not set it"),
            list(of_stage(&[Deprecated]), "is deprecated and will be removed"),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Unknown gates are off.
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

/// The known gate with the most similar name.
fn nearest(name: &str) -> Option<&'static str> {
    let furthest = 1 + name.chars().count() / 6;
    let groups = ["AllAlpha", "AllBeta"];
    let known = KNOWN.into_iter().map(|(known, _, _)| known).chain(groups);
    let near = known.map(|known| (distance(&known.to_lowercase(), &name.to_lowercase()), known)).min();
    near.filter(|(distance, _)| *distance <= furthest).map(|(_, known)| known)
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
    fn locked_gates_cannot_be_switched_off() {
        let problems =
            gates(&[("Nonsense", true), ("NFTablesProxyMode", false), ("WinDSR", true)]).unwrap_err();
        let expected = ("NFTablesProxyMode".to_owned(), "can no longer be switched off".to_owned());
        assert_eq!(problems, [expected]);
    }

    #[test]
    fn gates_of_other_components_are_a_warning_and_so_are_misspelt_ones() {
        let set = gates(&[("SidecarContainers", true), ("nftablesNetlnk", false), ("WinDSR", true)]).unwrap();
        assert!(set.enabled("NFTablesNetlink") && !set.enabled("SidecarContainers"));
        let expected = [
            "featureGates: SidecarContainers, nftablesNetlnk (did you mean NFTablesNetlink?) has no effect: \
             unknown feature gate",
            "featureGates: WinDSR is always on, and the gate will be removed: do not set it",
        ];
        assert_eq!(set.doubts(), expected);
        let deprecated = gates(&[("KubeProxyIPVS", true), ("NFTablesNetlink", true)]).unwrap();
        assert_eq!(deprecated.doubts(), ["featureGates: KubeProxyIPVS is deprecated and will be removed"]);
    }
}
