//! Linux: procfs, signalfd, systemd, capabilities, rtnetlink, inotify.

pub mod addresses;
pub mod claim;
pub mod conntrack;
pub mod event_log;
pub mod files;
pub mod host;
pub mod interface;
pub mod memory;
pub mod notify;
pub mod privileges;
pub mod process;
#[cfg(feature = "profiling")]
pub mod profile;
pub mod service;
pub mod signals;
pub mod sockets;
pub mod streams;
