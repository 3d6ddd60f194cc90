//! The configuration of the translation at sockets.

use std::path::PathBuf;

use crate::entry::Clients;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    pub clients: Clients,
    /// `getpeername(2)` answers with the frontend.
    pub names_peers: bool,
    /// The top of the node's cgroups; detected if it is not given.
    pub cgroup: Option<PathBuf>,
    /// The cgroup of all pods; detected below the top if it is not given.
    pub pods_cgroup: Option<PathBuf>,
    /// Where maps, programs and links are pinned, on a bpffs.
    pub pins: PathBuf,
    /// How many elements a map may have; Services beyond it are left to packets.
    pub most_elements: u32,
}

/// Where maps, programs and links are pinned if nothing else is configured.
pub const PINS: &str = "/sys/fs/bpf/ferroxy";

/// How many elements a map may have if nothing else is configured.
pub const MOST_ELEMENTS: u32 = 1 << 22;

impl Default for Options {
    fn default() -> Options {
        Options {
            clients: Clients::NONE,
            names_peers: false,
            cgroup: None,
            pods_cgroup: None,
            pins: PINS.into(),
            most_elements: MOST_ELEMENTS,
        }
    }
}
