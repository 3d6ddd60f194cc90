//! The ipvs dataplane: virtual servers in the kernel, sets and a few constant iptables rules around them.
//!
//! Pure: [`render`] an Intent to a [`State`], [`diff`] two States to a [`Plan`], [`interpret`] a packet, the
//! [`Ledger`](ledger::Ledger), which plans a change of some Services at the cost of those Services, and
//! [`Drains`](drain::Drains), which knows when an endpoint that left may be forgotten. The rules are the same
//! whatever Services exist (`program.rs`); everything about Services is virtual servers, members of sets (`set.rs`) and
//! addresses of the device `kube-ipvs0`. [`Dataplane`](dataplane::Dataplane) keeps the kernel at what it is told, over netlink (and
//! the host's iptables tools, for the rules).

#![forbid(unsafe_code)]

pub mod apply;
pub mod dataplane;
pub mod diff;
pub mod doors;
pub mod drain;
pub mod expected;
pub mod interpret;
pub mod ledger;
pub mod observe;
pub mod ownership;
pub mod plan;
pub mod program;
pub mod render;
pub mod set;
pub mod settings;
pub mod state;
pub mod sysctl;
pub mod text;

pub use diff::diff;
pub use doors::Error;
pub use interpret::{interpret, trace};
pub use plan::{Op, Plan};
pub use render::{Settings, render};
pub use set::{Member, Set, SetName};
pub use state::{Address, State, VirtualServer};
