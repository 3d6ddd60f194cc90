//! The kernel's side, on Linux: maps, programs, links and pins, each a type that owns a file descriptor.
//!
//! `call.rs` has the system call and all `unsafe` code. Loading programs needs CAP_BPF and CAP_NET_ADMIN.

mod call;
mod cgroup;
mod cookie;
mod error;
mod link;
mod map;
mod pin;
mod program;
mod types;

pub use cgroup::Cgroup;
pub use cookie::namespace_cookie;
pub use error::Error;
pub use link::{Link, LinkInfo};
pub use map::{Map, MapKind, MapShape};
pub use pin::{Pinned, is_bpf_filesystem};
pub use program::{Attach, Program, ProgramInfo};
pub use rustix::io::Errno;
pub use types::SocketValueType;
