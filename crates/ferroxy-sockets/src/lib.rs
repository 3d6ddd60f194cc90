//! Connections that never meet NAT: where a client on this node connects to a Service over TCP, a BPF program chooses the
//! endpoint when the socket connects, and packets go there directly. Wraps any dataplane that serves packets.
//!
//! ```text
//! Intent ──render──▶ State (maps)     ◀──observe── kernel       interpret: the programs themselves, executed over a State
//!                      │                              ▲
//!                     diff ──▶ Plan ──────apply───────┘         ledger: what the maps have, and Plans for changes of it
//! ```
//! It fails open. The packets' dataplane below serves everything, so a missing entry, a full map, an odd socket or an absent
//! program leaves the connection to packet rules: every subset of a State is right. Everything is pure and builds for any platform,
//! except for [`dataplane`], which exists on Linux only.

#![forbid(unsafe_code)]

mod adopt;
pub mod capacity;
#[cfg(target_os = "linux")]
pub mod dataplane;
pub mod diff;
pub mod entry;
pub mod flow;
pub mod interpret;
pub mod ledger;
pub mod options;
pub mod plan;
pub mod program;
pub mod release;
pub mod render;
mod ruleset;
pub mod state;
pub mod terms;
mod wrap;

#[cfg(target_os = "linux")]
pub use dataplane::Accelerated;
pub use diff::diff;
pub use entry::Clients;
pub use ledger::Ledger;
pub use options::Options;
pub use plan::{Op, Plan};
pub use render::render;
pub use ruleset::AcceleratedRuleset;
pub use state::State;
pub use terms::{Salt, Terms};
pub use wrap::{accelerate, accelerate_ruleset, remove_pins};
