//! The kernelspace dataplane of Windows: load balancers of the Host Networking Service (HNS).
//!
//! Pure, and the same on every platform: [`render`] an Intent to a [`State`], [`diff`] two States to a [`Plan`],
//! [`interpret`] a packet, and the [`Ledger`](ledger::Ledger), which knows what is wanted. A State has remote endpoints by
//! address and load balancers by frontend; [`Surroundings`] is what it depends on besides the Intent.
//!
//! In `dataplane/`, `observe` reads HNS and `apply` applies a Plan, through `ferroxy-hcn`. A State has no ids of HNS objects:
//! they are looked up when a Plan is applied. [`Kernelspace`] is the dataplane, [`MODE`] describes it.

#![forbid(unsafe_code)]

pub mod dataplane;
pub mod diff;
pub mod interpret;
pub mod ledger;
mod mode;
pub mod options;
pub mod plan;
pub mod render;
mod ruleset;
pub mod settings;
pub mod shortcomings;
pub mod state;
pub mod surroundings;
pub mod text;

pub use dataplane::Kernelspace;
pub use diff::diff;
pub use interpret::{interpret, trace};
pub use mode::MODE;
pub use options::Options;
pub use plan::{Op, Plan};
pub use render::render;
pub use state::{Balancer, Endpoint, Frontend, Mac, Role, State};
pub use surroundings::{Overlay, Surroundings};
