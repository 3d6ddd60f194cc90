//! The kernel's netlink protocols: nf_tables, ipset, IPVS, conntrack, nfacct, rtnetlink, and the legacy iptables socket options.
//! Contains no Kubernetes logic and keeps no state.
//!
//! [`codec`] turns attributes into bytes and back, and each protocol has a module with its types, encoders and decoders. This
//! code builds and is tested on any platform and byte order. The code that talks to a kernel (`socket`, and the `Connection`
//! and monitor types of each protocol) exists on Linux only.

#![deny(unsafe_code)]
#![cfg_attr(
    not(target_os = "linux"),
    allow(dead_code, reason = "the connections, which exist on Linux only, call the encoders and decoders")
)]

mod ack;
pub mod codec;
pub mod conntrack;
#[cfg(any(test, not(target_os = "linux")))]
mod errno;
pub mod error;
pub mod ipset;
pub mod ipvs;
pub mod nfacct;
pub mod nftables;
mod numbers;
pub mod requests;
pub mod route;
#[cfg(target_os = "linux")]
pub mod socket;
#[cfg(target_os = "linux")]
mod sockopt;
pub mod xtables;

pub use error::Error;
