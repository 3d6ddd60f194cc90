//! The nftables dataplane: a constant program, and Services as elements of a few shared sets.
//!
//! Pure: [`render`] an Intent to a [`State`], [`diff`] two States to a [`Plan`], [`interpret`] a packet. Fallible:
//! [`observe`] what the kernel has, [`apply`] a Plan. [`Dataplane`] keeps the two halves in step, Service by
//! Service. What the rules mean is drawn in `program.rs`; how one is spelled is in `rule.rs`.

#![forbid(unsafe_code)]

pub mod apply;
pub mod chain;
pub mod dataplane;
pub mod diff;
pub mod element;
pub mod interpret;
pub mod ledger;
pub mod observe;
pub mod place;
pub mod plan;
pub mod predecessor;
pub mod program;
pub mod render;
pub mod rule;
pub mod settings;
pub mod state;
pub mod text;
pub mod traffic;

pub use dataplane::Dataplane;
pub use diff::diff;
pub use interpret::{interpret, trace};
pub use plan::{Op, Plan};
pub use render::render;
pub use state::State;

/// The name of our table in `ip` and `ip6`. Everything we own in nf_tables is inside it.
pub const TABLE: &str = "ferroxy";
