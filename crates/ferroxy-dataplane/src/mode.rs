//! A mode: everything there is to know about a dataplane before it is opened. The binary keeps one list of them.

use std::net::IpAddr;
use std::time::Duration;

use ferroxy_core::{Family, Intent, Policy};

use crate::dataplane::Dataplane;
use crate::failure::Failure;
use crate::ruleset::Ruleset;
use crate::settings::{Field, Settings};
use ferroxy_platform::Privileges;

/// A static value in each dataplane crate, `MODE`. Help texts, validation, metrics and documentation are made from it.
#[derive(Debug)]
pub struct Mode {
    /// As `--proxy-mode` and the configuration file spell it.
    pub name: &'static str,
    /// One line for `--help`.
    pub help: &'static str,
    /// Where it can run. Everywhere else it can still render, trace and explain.
    pub platforms: &'static [Platform],
    pub families: &'static [Family],
    pub lifetime: Lifetime,
    pub pace: Pace,
    /// The fields of the configuration file that it reads.
    pub fields: &'static [Field],
    pub periods: PeriodFields,
    /// The Kubernetes feature gate that must be on.
    pub gate: Option<&'static str>,
    pub privileges: Privileges,
    /// What it needs of the host, for people: `Linux 5.13 with nf_tables`.
    pub needs: &'static str,
    /// Devices that carry addresses of Services: those are not addresses of the host.
    pub devices: &'static [&'static str],
    /// Its objects have the same names as those of the original, so the owner of an object cannot be determined.
    pub shares_names: bool,
    /// It can count the traffic of Services ([`Dataplane::counts_traffic`]).
    pub counts_traffic: bool,
    /// The metrics that this mode has and others may not.
    pub metrics: &'static [Metric],
    /// Enters the mode's settings into the policy that resolves the Intent.
    pub shape: fn(&Settings, &mut Policy),
    /// A cheap check of the host, for choosing a default. The error says why this mode cannot run here.
    pub available: fn() -> Result<(), String>,
    pub open: fn(&Opening<'_>) -> Result<Box<dyn Dataplane>, Failure>,
    pub render: fn(&Rendering<'_>) -> Box<dyn Ruleset>,
}

/// Modes are compared by name: a list of modes has each name once.
impl PartialEq for Mode {
    fn eq(&self, other: &Mode) -> bool {
        self.name == other.name
    }
}

impl Eq for Mode {}

impl Mode {
    pub fn reads(&self, field: &str) -> bool {
        self.fields.iter().any(|it| it.name == field)
    }

    pub fn runs_on(&self, platform: Platform) -> bool {
        self.platforms.contains(&platform)
    }

    pub fn periods(&self, settings: &Settings) -> Periods {
        Periods {
            sync: settings.duration(self.periods.sync),
            min_sync: settings.duration(self.periods.min_sync),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Platform {
    Linux,
    Windows,
    Other,
}

impl Platform {
    /// The one this program is built for.
    pub const HERE: Platform = if cfg!(target_os = "linux") {
        Platform::Linux
    } else if cfg!(windows) {
        Platform::Windows
    } else {
        Platform::Other
    };

    pub fn as_str(self) -> &'static str {
        match self {
            Platform::Linux => "Linux",
            Platform::Windows => "Windows",
            Platform::Other => "another system",
        }
    }
}

/// Whether Services work while no agent runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// State in the kernel: it stays in force when the process ends.
    OutlivesProcess,
    /// Listeners and the like: they end with the process.
    EndsWithProcess,
}

/// What `minSyncPeriod` limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pace {
    /// The cost of a change is the size of the change: the period applies to each Service separately.
    #[default]
    EachService,
    /// A change has a fixed cost, however small it is: changes are collected and applied together.
    Whole,
}

/// The fields with the two periods that every mode has.
#[derive(Debug, Clone, Copy)]
pub struct PeriodFields {
    pub sync: &'static Field,
    pub min_sync: &'static Field,
}

/// How often to verify at least, and how often to apply changes at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Periods {
    pub sync: Duration,
    pub min_sync: Duration,
}

/// A metric of one mode, by the name that the original gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    pub name: &'static str,
    pub help: &'static str,
    pub counts: Counted,
}

/// What such a metric counts: the agent's own work, or what the dataplane reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// Histogram: a sync of everything.
    FullSyncSeconds,
    /// Histogram: a sync of what changed.
    PartialSyncSeconds,
    SyncFailures,
    FullSyncFailures,
    PartialSyncFailures,
    TidyFailures,
    /// Gauges by family and group of [`CountsRules`](crate::CountsRules). `label` is the name of the label for the
    /// group.
    Rules {
        label: &'static str,
    },
    RulesWritten {
        label: &'static str,
    },
    /// A counter of [`CountsPackets`](crate::CountsPackets), by its key.
    Packets(&'static str),
    /// A counter of [`CountsRefusals`](crate::CountsRefusals), by its key.
    Refusals(&'static str),
    /// Histogram: a search for stale connections.
    SweepSeconds,
    SweptConnections,
}

/// What a dataplane is opened with.
#[derive(Debug, Clone, Copy)]
pub struct Opening<'a> {
    /// The families that this host has.
    pub families: &'a [Family],
    pub settings: &'a Settings,
}

/// What a ruleset is rendered from.
#[derive(Debug, Clone, Copy)]
pub struct Rendering<'a> {
    pub intent: &'a Intent,
    pub settings: &'a Settings,
    /// The addresses of the host, as far as they are known.
    pub host_addresses: &'a [IpAddr],
}
