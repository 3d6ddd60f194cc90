//! Sockets that are connected to endpoints directly (`--accelerate-sockets`), with the real agent: the recorded corpus with a
//! cgroup for each pod, every fault under traffic, and what the commands and pages say about it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "the functions that tests share are tests too; clippy does not know"
)]

mod corpus;
mod faults;
mod neighbours;
mod pages;
#[path = "../support/mod.rs"]
mod support;

use std::ffi::OsString;
use std::path::PathBuf;

use ferroxy_lab::{BpfFilesystem, Capability, Cgroups, Namespace, Network, require};

#[test]
#[ignore = "an older kernel: make test-vm"]
fn the_corpus_over_nftables_on_an_older_kernel() {
    corpus::in_turn(ferroxy_lab::conformance::Mode::Nftables, "nftables");
}

#[test]
#[ignore = "needs IPVS: make test-vm"]
fn the_corpus_over_ipvs() {
    corpus::in_turn(ferroxy_lab::conformance::Mode::Ipvs, "ipvs");
}

/// The conformance network in cgroups, and a place for pins.
struct Stage {
    network: Network,
    cgroups: Cgroups,
    pins: BpfFilesystem,
}

impl Stage {
    /// `None` where this machine cannot do it: the test must return.
    fn new() -> Option<Stage> {
        if !require(&[Capability::SocketPrograms]) {
            return None;
        }
        let mut network = support::network()?;
        let (cgroups, pins) = (Cgroups::new().unwrap(), BpfFilesystem::mount().unwrap());
        network.enter_cgroups(&cgroups).unwrap();
        Some(Stage { network, cgroups, pins })
    }

    fn ka(&self) -> &Namespace {
        self.network.namespace("ka").unwrap()
    }

    fn pins(&self) -> PathBuf {
        self.pins.path().join("ferroxy")
    }

    /// The flags of an agent on this node, for these clients.
    fn flags(&self, clients: &str) -> Vec<OsString> {
        let cgroup = self.cgroups.root().join("ka");
        let flag = |name: &str, value: &std::path::Path| format!("--{name}={}", value.display()).into();
        vec![
            format!("--accelerate-sockets={clients}").into(),
            flag("sockets-cgroup", &cgroup),
            flag("sockets-pins", &self.pins()),
        ]
    }

    /// A file of the generation in force.
    fn map(&self, name: &str) -> PathBuf {
        let entries = std::fs::read_dir(self.pins()).unwrap().flatten().map(|entry| entry.path());
        entries.filter(|path| path.is_dir()).map(|path| path.join(name)).next().unwrap()
    }
}
