//! The userspace dataplane: a proxy on this host (`ferroxy-proxy`), and the rules that lead clients to it.
//!
//! ```text
//! Intent ──fragment──▶ pools, frontends ──▶ engine          the proxy: sockets, picks, dials
//!        └─for_rules─▶ Intent of nftables mode ──▶ kernel    its endpoints are the proxy's listeners
//! ```
//! Therefore the rules of nftables mode refuse, drop, check source ranges and distinguish classes of clients; the engine
//! chooses and reaches endpoints. `fragment.rs` decides which does what.
//!
//! Everything is pure and builds for any platform, except for `dataplane`. [`MODE`] describes the dataplane to the agent.

#![forbid(unsafe_code)]

#[cfg(target_os = "linux")]
pub mod dataplane;
pub mod diff;
pub mod fragment;
pub mod interpret;
pub mod ledger;
pub mod metrics;
mod mode;
pub mod plan;
pub mod portals;
pub mod ports;
pub mod render;
mod ruleset;
pub mod settings;
pub mod state;
pub mod text;

#[cfg(target_os = "linux")]
pub use dataplane::Userspace;
pub use diff::diff;
pub use interpret::{interpret, trace};
pub use mode::MODE;
pub use plan::{Op, Plan};
pub use render::render;
pub use settings::Settings;
pub use state::State;
