//! The winuserspace dataplane of Windows: the proxy (`ferroxy-proxy`) listens on the addresses of Services, which it puts on an
//! interface. No packet rules: a client is known by its source address only.
//!
//! Pure, and the same on every platform: [`render`] an Intent to a [`State`], [`diff`] two States to a [`Plan`], [`interpret`] a
//! packet, and the [`Ledger`](ledger::Ledger), which knows what is wanted.
//!
//! In `dataplane/`, `observe` reads which addresses the host has, `apply` applies a Plan, and `journal` remembers which addresses
//! are ours. [`Winuserspace`] is the dataplane, [`MODE`] describes it.

#![forbid(unsafe_code)]

pub mod dataplane;
pub mod diff;
pub mod interpret;
pub mod ledger;
mod mode;
pub mod plan;
pub mod render;
mod ruleset;
pub mod settings;
pub mod state;
pub mod text;

pub use dataplane::Winuserspace;
pub use diff::diff;
pub use interpret::{interpret, trace};
pub use mode::MODE;
pub use plan::{Op, Plan};
pub use render::render;
pub use settings::Settings;
pub use state::State;
