//! The platform layer: everything the binary asks of the operating system apart from programming packets.
//!
//! One small interface, in the modules below: plain functions and small structs. Each platform implements it in a folder
//! of its own:
//!
//! | folder     | what it is                                                                       |
//! |------------|----------------------------------------------------------------------------------|
//! | `linux/`   | procfs, signalfd, systemd, capabilities, rtnetlink, inotify                      |
//! | `windows/` | console events, process and adapter figures; the rest comes from `any/`          |
//! | `any/`     | stand-ins built on the standard library; the rest is unsupported                 |
//!
//! The `cfg`s below choose the folder; no other file of the crate has one for a platform. A platform that lacks something
//! returns [`std::io::ErrorKind::Unsupported`] or an empty figure, so that callers need no `cfg` either.
//!
//! This crate does not know Kubernetes, proxy modes or the configuration, and it writes no log: callers get errors as
//! values and decide what to log.

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
pub mod sandbox;
pub mod service;
pub mod signals;
pub mod sockets;
pub mod streams;

pub use claim::Claim;
pub use privileges::{Privilege, Privileges};
pub use signals::StopReason;

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
use linux as system;

#[cfg(windows)]
mod windows;
#[cfg(windows)]
use windows as system;

#[cfg(not(any(target_os = "linux", windows)))]
use any as system;
// Tests build the stand-ins on Linux as well, so that they keep working.
#[cfg(any(test, not(target_os = "linux")))]
#[cfg_attr(any(target_os = "linux", windows), allow(dead_code, reason = "the platform has its own"))]
mod any;
