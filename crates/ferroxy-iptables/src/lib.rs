//! The iptables dataplane: rule for rule what kube-proxy writes.
//!
//! Pure: [`render`] an Intent to a [`State`], [`diff`] two States to a [`Plan`], [`interpret`] a packet, and the
//! [`Ledger`](ledger::Ledger), which plans a change of some Services at the cost of those Services. A State is the
//! text people know: [`text`] reads what `iptables-save` prints, and a Plan prints as input of `iptables-restore`.
//! Chains that are always there are in `program.rs`, those of a Service in `render.rs`. Fallible: [`observe`](observe::observe)
//! what the kernel has, [`apply`](apply::apply) a Plan, with the host's `iptables-save` and `iptables-restore` that `tool/`
//! runs. [`Dataplane`] keeps the two halves in step, Service by Service.

#![forbid(unsafe_code)]

pub mod apply;
pub mod counters;
pub mod dataplane;
pub mod diff;
pub mod interpret;
pub mod ledger;
pub mod matching;
pub mod name;
pub mod observe;
pub mod plan;
pub mod program;
pub mod render;
pub mod rule;
pub mod settings;
pub mod state;
pub mod text;
pub mod tool;

pub use dataplane::Dataplane;
pub use diff::diff;
pub use interpret::{interpret, trace};
pub use plan::{Op, Plan};
pub use program::Settings;
pub use render::render;
pub use state::{State, TableName};
