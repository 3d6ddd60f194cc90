//! The nftables dataplane: a constant program, and Services as elements of a few shared sets.
//!
//! ```text
//! Intent ──render──▶ State ◀──observe── kernel       interpret: the path of a packet through a State
//!                      │                  ▲
//!                     diff ──▶ Plan ──apply┘         ledger: what the kernel acknowledged, and Plans for changes of it
//! ```
//! Everything is pure and builds for any platform, except for [`dataplane`]: it talks to the kernel, and exists on Linux only.
//! `program.rs` explains the rules, `rule.rs` writes them. [`MODE`] describes the dataplane to the agent and the commands.

#![forbid(unsafe_code)]

pub mod chain;
#[cfg(target_os = "linux")]
pub mod dataplane;
pub mod decode;
pub mod diff;
pub mod element;
pub mod encode;
pub mod interpret;
pub mod ledger;
pub mod localhost;
mod mode;
pub mod part;
pub mod place;
pub mod plan;
pub mod program;
pub mod render;
pub mod rule;
mod ruleset;
pub mod settings;
mod shared;
pub mod state;
pub mod text;
pub mod unchanged;
mod users;

#[cfg(target_os = "linux")]
pub use dataplane::Nftables;
pub use diff::diff;
/// The name of our table in `ip` and `ip6`. Everything that we own in nf_tables is inside it.
pub use ferroxy_netfilter::tables::OWN as TABLE;
pub use interpret::{interpret, trace};
pub use mode::MODE;
pub use plan::{Op, Plan};
pub use render::render;
pub use settings::Settings;
pub use state::State;
