//! The ipvs dataplane: virtual servers in the kernel, sets and a few constant iptables rules around them.
//!
//! Pure: [`render`] an Intent to a [`State`], [`diff`] two States to a [`Plan`], [`interpret`] a packet, the
//! [`Ledger`](ledger::Ledger), which plans a change of some Services at the cost of those Services, and
//! [`Drains`](drain::Drains), which decides when a draining endpoint is removed. The rules do not depend on Services
//! (`program.rs`); a Service consists of virtual servers, members of sets (`set.rs`) and addresses of the device `kube-ipvs0`.
//!
//! Linux only: in `dataplane/`, `observe` reads the kernel and `apply` applies a Plan, over netlink and, for the rules,
//! through the doors of ferroxy-iptables. [`Ipvs`] is the dataplane, [`MODE`] describes it.

#![forbid(unsafe_code)]

#[cfg(target_os = "linux")]
pub mod dataplane;
pub mod diff;
#[cfg(target_os = "linux")]
pub mod doors;
pub mod drain;
#[cfg(target_os = "linux")]
mod expected;
pub mod interpret;
pub mod ledger;
mod mode;
pub mod options;
pub mod ownership;
pub mod plan;
pub mod program;
pub mod render;
mod ruleset;
pub mod scheduler;
pub mod set;
pub mod settings;
pub mod state;
#[cfg(target_os = "linux")]
pub mod sysctl;
pub mod text;
mod unchanged;
#[cfg(target_os = "linux")]
mod watch;

#[cfg(target_os = "linux")]
pub use dataplane::Ipvs;
pub use diff::diff;
#[cfg(target_os = "linux")]
pub use doors::Error;
pub use interpret::{interpret, trace};
pub use mode::MODE;
pub use options::Options;
pub use plan::{Op, Plan};
pub use render::{Parameters, render};
pub use set::{Member, Set, SetName};
pub use state::{Address, State, VirtualServer};
