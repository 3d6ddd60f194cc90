//! The iptables dataplane: rule for rule what kube-proxy writes.
//!
//! Pure: [`render`] an Intent to a [`State`], [`diff`] two States to a [`Plan`], [`interpret`] a packet, and the
//! [`Ledger`](ledger::Ledger), which plans a change of some Services at the cost of those Services. A State is the
//! text people know: [`text`] reads what `iptables-save` prints, and a Plan prints as input of `iptables-restore`.
//! Chains that are always there are in `program.rs`, those of a Service in `render.rs`. `tool/` runs
//! the host's `iptables-save` and `iptables-restore`.

pub mod diff;
pub mod interpret;
pub mod ledger;
pub mod name;
pub mod plan;
pub mod program;
pub mod render;
pub mod rule;
pub mod state;
pub mod text;
pub mod tool;

pub use diff::diff;
pub use interpret::{interpret, trace};
pub use plan::{Op, Plan};
pub use program::Settings;
pub use render::render;
pub use state::{State, TableName};
