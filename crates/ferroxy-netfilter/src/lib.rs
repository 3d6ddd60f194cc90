//! What the netfilter dataplanes (nftables, iptables, ipvs) share. Programs no Service itself.
//!
//! ```text
//! tables       the nftables tables of Ferroxy and of kube-proxy: their names, and how to recognise them
//! metrics      the metrics that several modes have
//! leftovers    removes what kube-proxy, or Ferroxy in another mode, left in this kernel
//! successor    whether kube-proxy serves in place of Ferroxy
//! connections  deletes stale connections through connection tracking
//! watch        follows nf_tables notifications
//! failure      turns an error of ferroxy-netlink into the contract's Failure
//! ```
//! [`tables`] and [`metrics`] build for any platform. The rest needs a Linux kernel, and exists on Linux only.

#![forbid(unsafe_code)]

#[cfg(target_os = "linux")]
pub mod connections;
#[cfg(target_os = "linux")]
pub mod failure;
#[cfg(target_os = "linux")]
pub mod leftovers;
pub mod metrics;
#[cfg(target_os = "linux")]
pub mod successor;
pub mod tables;
#[cfg(target_os = "linux")]
pub mod watch;
