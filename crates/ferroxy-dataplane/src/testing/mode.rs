//! A mode that exists only in tests, with a setting and a flag of its own. It shows what adding a dataplane requires.

use std::fmt;
use std::time::Duration;

use ferroxy_core::policy::NodePortAddress;
use ferroxy_core::{Diagnostic, Family, Intent, Packet, ServiceIntent, oracle};
use serde_json::{Value, json};

use super::memory::{Kernel, Memory};
use crate::{
    Field, Flag, Kind, Lifetime, Mode, Pace, PeriodFields, Platform, Privileges, Ruleset, Step, Trace, Zero,
};

pub static MEMORY: Mode = Mode {
    name: "memory",
    help: "Keep Services in memory (tests only)",
    platforms: &[Platform::Linux, Platform::Windows, Platform::Other],
    families: &Family::ALL,
    lifetime: Lifetime::OutlivesProcess,
    pace: Pace::EachService,
    fields: &[GREETING, SYNC_PERIOD, MIN_SYNC_PERIOD],
    periods: PeriodFields { sync: &SYNC_PERIOD, min_sync: &MIN_SYNC_PERIOD },
    gate: None,
    privileges: Privileges { own: &[], programs: &[] },
    needs: "nothing",
    devices: &[],
    shares_names: false,
    counts_traffic: false,
    metrics: &[],
    shape: |_, policy| {
        if policy.node_port_addresses.is_empty() {
            policy.node_port_addresses = vec![NodePortAddress::Primary];
        }
    },
    available: || Ok(()),
    open: |_| Ok(Box::new(Memory::new(&Kernel::default()))),
    render: |rendering| {
        Box::new(Rendered { greeting: rendering.settings.text(&GREETING), intent: rendering.intent.clone() })
    },
};

pub static GREETING: Field = Field {
    name: "memory.greeting",
    kind: Kind::Text { default: "hello" },
    flag: Some(Flag { name: "memory-greeting", help: "First line of the ruleset", value_name: "TEXT" }),
    is_live: true,
    is_of_the_original: true,
};

static SYNC_PERIOD: Field = Field {
    name: "memory.syncPeriod",
    kind: Kind::Duration { default: Duration::from_secs(30), default_in_file: None, zero: Zero::Refused },
    flag: None,
    is_live: true,
    is_of_the_original: true,
};

static MIN_SYNC_PERIOD: Field = Field {
    name: "memory.minSyncPeriod",
    kind: Kind::Duration { default: Duration::from_secs(1), default_in_file: None, zero: Zero::Allowed },
    flag: None,
    is_live: true,
    is_of_the_original: true,
};

/// The Intent itself; the oracle interprets it.
#[derive(Debug)]
struct Rendered {
    greeting: String,
    intent: Intent,
}

impl fmt::Display for Rendered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.greeting)?;
        self.intent.services.keys().try_for_each(|name| writeln!(f, "{name}"))
    }
}

impl Ruleset for Rendered {
    fn trace(&self, packet: &Packet) -> Trace {
        let step = Step {
            place: "oracle".into(),
            rule: "the Intent".into(),
            effect: "decides".into(),
            is_sticky: false,
        };
        Trace { verdict: oracle(&self.intent, packet), steps: vec![step] }
    }

    fn traits_of(&self, _: &ServiceIntent, found: Option<&[Diagnostic]>) -> Vec<(&'static str, String)> {
        found.unwrap_or_default().iter().map(|it| ("limit", it.reason.clone())).collect()
    }

    fn to_json(&self) -> Value {
        json!({ "services": self.intent.services.keys().map(ToString::to_string).collect::<Vec<_>>() })
    }
}
