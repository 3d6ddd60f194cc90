//! The kernel's doors, over one netlink socket and one codec. Knows nothing of Kubernetes, keeps no state of its own.
//!
//! [`codec`] turns attributes into bytes and back, [`socket`] carries them, and each protocol has a module of its own.

pub mod codec;
pub mod conntrack;
pub mod error;
pub mod ipset;
pub mod ipvs;
pub mod nfacct;
pub mod nftables;
pub mod requests;
pub mod route;
pub mod socket;
pub mod xtables;

pub use error::Error;
