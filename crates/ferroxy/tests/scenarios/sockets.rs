//! Cgroups and a place for pins, for scenarios with accelerated sockets.

use std::fs;
use std::path::PathBuf;

use ferroxy_dataplane::{Dataplane, Mode};
use ferroxy_lab::{BpfFilesystem, Cgroups};
use ferroxy_sockets::{Clients, Options, accelerate};

use super::agent;

pub struct Place {
    cgroups: Cgroups,
    pins: BpfFilesystem,
}

impl Place {
    pub fn new() -> Place {
        let (cgroups, pins) = (Cgroups::new().unwrap(), BpfFilesystem::mount().unwrap());
        cgroups.create("node/kubepods").unwrap();
        Place { cgroups, pins }
    }

    /// The cgroup of processes on the host.
    pub fn host(&self) -> PathBuf {
        self.cgroups.create("node/system").unwrap()
    }

    pub fn open(&self, mode: &Mode) -> Box<dyn Dataplane> {
        let options = Options {
            clients: Clients::ALL,
            cgroup: Some(self.cgroups.root().join("node")),
            pins: self.pins(),
            ..Options::default()
        };
        accelerate(agent::open(mode), &options)
    }

    /// Another program removes everything that is pinned.
    pub fn tamper(&self) {
        drop(fs::remove_dir_all(self.pins()));
    }

    fn pins(&self) -> PathBuf {
        self.pins.path().join("ferroxy")
    }
}
