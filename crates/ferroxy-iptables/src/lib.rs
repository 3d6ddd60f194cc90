//! The iptables dataplane: rule for rule what kube-proxy writes.
//!
//! Pure: [`render`] an Intent to a [`State`], [`diff`] two States to a [`Plan`], [`interpret`] a packet, and the
//! [`Ledger`](ledger::Ledger), which plans a change of some Services at the cost of those Services. A State is text that
//! people know: [`text`] reads the output of `iptables-save`, and a Plan prints as input of `iptables-restore`.
//! `program.rs` has the constant chains, `render.rs` those of a Service.
//!
//! [`xt`] has a rule as a value and converts it between its text and the kernel's formats.
//!
//! Linux only: a [`Door`](door::Door) reads the rules of one family and applies a Plan to them, over netlink or with the host's
//! `iptables-save` and `iptables-restore`, which `tool/` runs. [`Iptables`] is the dataplane, [`MODE`] describes it.

#![forbid(unsafe_code)]

mod comparison;
#[cfg(target_os = "linux")]
pub mod counters;
#[cfg(target_os = "linux")]
pub mod dataplane;
pub mod diff;
#[cfg(target_os = "linux")]
pub mod door;
pub mod interpret;
pub mod ledger;
pub mod matching;
mod mode;
pub mod name;
pub mod plan;
pub mod program;
pub mod render;
pub mod rule;
mod ruleset;
pub mod settings;
pub mod state;
pub mod text;
#[cfg(target_os = "linux")]
pub mod tool;
#[cfg(target_os = "linux")]
pub mod watch;
pub mod xt;

#[cfg(target_os = "linux")]
pub use dataplane::Iptables;
pub use diff::diff;
pub use interpret::{interpret, trace};
pub use mode::MODE;
pub use plan::{Op, Plan};
pub use program::Parameters;
pub use render::render;
pub use state::{State, TableName};
