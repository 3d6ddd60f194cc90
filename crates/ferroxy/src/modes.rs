//! The modes of this binary. To add a dataplane, write its crate and list its mode here.

use ferroxy_dataplane::{Field, Flag, Kind, Mode, PeriodFields, Platform};

/// The one list. Configuration, flags, help texts and commands are made from it.
pub static MODES: Modes = Modes(&[
    &ferroxy_iptables::MODE,
    &ferroxy_ipvs::MODE,
    &ferroxy_kernelspace::MODE,
    &ferroxy_nftables::MODE,
    &ferroxy_userspace::MODE,
    &ferroxy_winuserspace::MODE,
]);

/// A list of modes, each name once. Functions take it as an argument, so that a test can add a mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Modes(pub &'static [&'static Mode]);

/// A name, and the mode that it stands for, with accelerated sockets.
pub const ACCELERATED: (&str, &str) = ("ebpf", "nftables");

/// The mode to use where none is configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    pub mode: &'static Mode,
    /// The modes that come first in the list and cannot run here, each with the reason.
    pub unavailable: Vec<(&'static Mode, String)>,
}

/// A flag of the command line that sets fields of modes.
#[derive(Debug, Clone)]
pub struct ModeFlag {
    pub flag: &'static Flag,
    pub kind: Kind,
    /// The modes that read one of the fields.
    pub readers: Vec<&'static Mode>,
}

impl Modes {
    pub fn iter(self) -> impl Iterator<Item = &'static Mode> {
        self.0.iter().copied()
    }

    pub fn find(self, name: &str) -> Option<&'static Mode> {
        self.iter().find(|mode| mode.name == name)
    }

    /// A name that means a mode with sockets accelerated for all clients (`--accelerate-sockets=all`).
    pub fn accelerated(self, name: &str) -> Option<&'static Mode> {
        (name == ACCELERATED.0).then(|| self.find(ACCELERATED.1)).flatten()
    }

    pub fn names(self) -> Vec<&'static str> {
        self.iter().map(|mode| mode.name).collect()
    }

    /// The names as a list in a sentence: `iptables, ipvs, kernelspace or nftables`.
    pub fn sentence(self, conjunction: &str) -> String {
        sentence(&self.names(), conjunction)
    }

    /// The modes that can count the traffic of Services, as [`Modes::sentence`] lists all.
    pub fn counting(self, conjunction: &str) -> String {
        let counting = self.iter().filter(|mode| mode.counts_traffic).map(|mode| mode.name);
        sentence(&counting.collect::<Vec<_>>(), conjunction)
    }

    /// The modes that can run on this platform.
    pub fn for_platform(self, platform: Platform) -> impl Iterator<Item = &'static Mode> {
        self.iter().filter(move |mode| mode.runs_on(platform))
    }

    /// The mode to use where none is configured: the first candidate that can run on this host. Where none can, the
    /// first candidate: it can still render, trace and explain. `None` only for an empty list.
    pub fn default(self) -> Option<Choice> {
        let mut unavailable = Vec::new();
        for mode in self.candidates() {
            let available = if mode.runs_on(Platform::HERE) {
                (mode.available)()
            } else {
                Err(format!("{} mode does not run on {}", mode.name, Platform::HERE.as_str()))
            };
            match available {
                Ok(()) => return Some(Choice { mode, unavailable }),
                Err(reason) => unavailable.push((mode, reason)),
            }
        }
        let mode = unavailable.first()?.0;
        Some(Choice { mode, unavailable })
    }

    /// The modes that may be chosen where none is configured: those that run on this platform (all of them where none
    /// does). A mode behind a feature gate is used only when it is configured.
    pub fn candidates(self) -> Vec<&'static Mode> {
        let here: Vec<_> = self.for_platform(Platform::HERE).filter(|mode| mode.gate.is_none()).collect();
        if here.is_empty() { self.iter().filter(|mode| mode.gate.is_none()).collect() } else { here }
    }

    /// Every field that a mode reads, once.
    pub fn fields(self) -> Vec<&'static Field> {
        let mut fields: Vec<&'static Field> = Vec::new();
        for field in self.iter().flat_map(|mode| mode.fields) {
            if fields.iter().all(|known| known.name != field.name) {
                fields.push(field);
            }
        }
        fields
    }

    pub fn field(self, name: &str) -> Option<&'static Field> {
        self.iter().flat_map(|mode| mode.fields).find(|field| field.name == name)
    }

    /// The period fields of the modes, each pair once.
    pub fn periods(self) -> Vec<PeriodFields> {
        let mut periods: Vec<PeriodFields> = Vec::new();
        for pair in self.iter().map(|mode| mode.periods) {
            if periods.iter().all(|known| known.min_sync.name != pair.min_sync.name) {
                periods.push(pair);
            }
        }
        periods
    }

    /// Every flag that sets a field of a mode, once.
    pub fn flags(self) -> Vec<ModeFlag> {
        let mut flags: Vec<ModeFlag> = Vec::new();
        for mode in self.iter() {
            for (field, flag) in mode.fields.iter().filter_map(|field| Some((field, field.flag.as_ref()?))) {
                match flags.iter_mut().find(|known| known.flag.name == flag.name) {
                    Some(known) if known.readers.contains(&mode) => {}
                    Some(known) => known.readers.push(mode),
                    None => flags.push(ModeFlag { flag, kind: field.kind, readers: vec![mode] }),
                }
            }
        }
        flags
    }

    /// The devices that carry addresses of Services, in any mode.
    pub fn devices(self) -> Vec<&'static str> {
        let mut devices: Vec<&'static str> = self.iter().flat_map(|mode| mode.devices).copied().collect();
        devices.sort_unstable();
        devices.dedup();
        devices
    }
}

fn sentence(names: &[&str], conjunction: &str) -> String {
    match names.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} {conjunction} {last}", others.join(", ")),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fields_and_flags_are_unique_and_agree() {
        for mode in MODES.iter() {
            assert_eq!(MODES.names().iter().filter(|name| **name == mode.name).count(), 1, "{}", mode.name);
        }
        for field in MODES.iter().flat_map(|mode| mode.fields) {
            assert_eq!(MODES.field(field.name), Some(field), "{} has two definitions", field.name);
            if let Some(flag) = &field.flag {
                let known = MODES.flags().into_iter().find(|it| it.flag.name == flag.name).unwrap();
                assert_eq!((known.flag, known.kind), (flag, field.kind), "--{}", flag.name);
            }
        }
        for mode in MODES.iter() {
            assert!(mode.reads(mode.periods.sync.name) && mode.reads(mode.periods.min_sync.name));
        }
    }

    #[test]
    fn a_sentence_lists_the_names() {
        static TWO: [&Mode; 2] = [&ferroxy_ipvs::MODE, &ferroxy_nftables::MODE];
        static ONE: [&Mode; 1] = [&ferroxy_nftables::MODE];
        assert_eq!(Modes(&TWO).sentence("and"), "ipvs and nftables");
        assert_eq!(Modes(&ONE).sentence("and"), "nftables");
        let all = MODES.sentence("and");
        assert!(MODES.names().iter().all(|name| all.contains(name)), "{all}");
        assert_eq!(MODES.counting("or"), "nftables, userspace or winuserspace");
    }

    #[test]
    fn one_name_stands_for_a_mode_with_sockets() {
        assert_eq!(MODES.accelerated("ebpf"), Some(&ferroxy_nftables::MODE));
        assert_eq!((MODES.accelerated("nftables"), MODES.find("ebpf")), (None, None));
    }

    #[test]
    fn a_mode_behind_a_gate_is_never_the_default() {
        assert!(MODES.candidates().iter().all(|mode| mode.name != "ipvs"));
        let choice = MODES.default().unwrap();
        assert!(!["ipvs", "userspace", "winuserspace"].contains(&choice.mode.name), "{}", choice.mode.name);
        assert_eq!(Modes(&[]).default(), None);
    }

    #[test]
    fn flags_know_the_modes_that_read_them() {
        let readers = |flag: &str| {
            let known = MODES.flags().into_iter().find(|it| it.flag.name == flag).unwrap();
            known.readers.iter().map(|mode| mode.name).collect::<Vec<_>>()
        };
        for flag in MODES.flags() {
            let has_it = |field: &Field| field.flag.as_ref().is_some_and(|it| it.name == flag.flag.name);
            let expected = MODES.iter().filter(|mode| mode.fields.iter().any(has_it)).map(|mode| mode.name);
            assert_eq!(readers(flag.flag.name), expected.collect::<Vec<_>>(), "--{}", flag.flag.name);
        }
        assert!(
            ["iptables", "kernelspace"].iter().all(|name| readers("iptables-sync-period").contains(name))
        );
        assert_eq!(readers("ipvs-scheduler"), ["ipvs"]);
    }
}
