//! The contract between the agent and every dataplane, on every platform.
//!
//! A [`Mode`] is a static value that describes a dataplane: its name, its settings, how to open it and how to render an
//! Intent. [`Mode::open`] gives a [`Dataplane`]: the small set of calls that every dataplane has, and optional
//! [`capability`] traits for the rest. [`Mode::render`] gives a [`Ruleset`]: the pure half, which needs no privileges and
//! no particular operating system.
//!
//! ```text
//! Mode ──open──▶ Dataplane ──start, change, change_node──▶ Outcome | Failure
//!   │                └─ verifies, tidies, drains, watches, takes over, counts traffic, sweeps connections …
//!   └──render──▶ Ruleset ──trace(packet)──▶ Trace
//! ```
//! The crate contains no code for a kernel and no agent. A dataplane crate depends on it, the binary lists the modes.
#![forbid(unsafe_code)]

mod acknowledged;
pub mod capability;
mod dataplane;
mod failure;
mod mode;
mod outcome;
pub mod place;
mod ruleset;
mod settings;
#[cfg(feature = "testing")]
pub mod testing;

pub use acknowledged::Acknowledged;
pub use capability::{
    Changed, ClientReport, CountsPackets, CountsRefusals, CountsRules, CountsTraffic, Drains, Ejects,
    HandsOver, Persists, SignsOfLife, SocketReport, SweepsConnections, TakesOver, Tidies, TranslatesSockets,
    Verifies, Watches,
};
pub use dataplane::Dataplane;
pub use failure::{Failure, FailureKind};
pub use ferroxy_platform::{Privilege, Privileges};
pub use mode::{Counted, Lifetime, Metric, Mode, Opening, Pace, PeriodFields, Periods, Platform, Rendering};
pub use outcome::{Change, ChoiceOfEndpoints, Outcome, Preview, Programmed, Receipt, Refusal, Repair};
pub use ruleset::{Ruleset, Step, Trace};
pub use settings::{Field, Flag, Kind, Settings, Value, Zero, ports};
