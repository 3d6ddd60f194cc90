//! The iptables dataplane: rule for rule what kube-proxy writes.

pub mod tool;
