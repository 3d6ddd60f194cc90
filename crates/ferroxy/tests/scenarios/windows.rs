//! Windows nodes in memory. For kernelspace mode: an L2Bridge network, and the pods that this node has at any time in a scenario. For
//! winuserspace mode: an interface with addresses.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use ferroxy_core::Family;
use ferroxy_core::resolve;
use ferroxy_dataplane::{Dataplane, Settings};
use ferroxy_hcn::testing::Fake;
use ferroxy_hcn::{Guid, Kind, Version};
use ferroxy_kernelspace::dataplane::MacOf;
use ferroxy_kernelspace::{Kernelspace, Mac, Options};
use ferroxy_winuserspace::Winuserspace;
use ferroxy_winuserspace::dataplane::interface::Interface;

use super::file::{Scenario, facts};

const NETWORK: &str = "cbr0";

pub struct Host {
    fake: Fake,
}

impl Host {
    pub fn of(scenario: &Scenario) -> Host {
        let fake = Fake::of(Version::NEWEST);
        let network = fake.add_network(NETWORK, "L2Bridge");
        fake.add_pod(network, NETWORK, &["10.244.1.2", "fd00:10:244:1::2"]);
        for ip in local_pods(scenario) {
            fake.add_pod(network, &format!("pod-{ip}"), &[&ip.to_string()]);
        }
        Host { fake }
    }

    pub fn open(&self) -> Box<dyn Dataplane> {
        let options = Options {
            network: Some(NETWORK.to_owned()),
            source_vip: None,
            enable_dsr: false,
            root_endpoint: None,
        };
        let mac_of = MacOf(Box::new(|_| Some(Mac([0x00, 0x15, 0x5d, 0x00, 0x00, 0x02]))));
        Box::new(Kernelspace::new(self.fake.hcn(), options, mac_of))
    }

    /// Another program deletes a load balancer.
    pub fn tamper(&self) {
        let mut service = self.fake.service();
        let first: Option<Guid> = service.documents(Kind::LoadBalancer).map(|(id, _)| id).next();
        first.into_iter().for_each(|id| service.remove(Kind::LoadBalancer, id));
    }
}

/// The pods of this node. A network plugin would create their HNS endpoints; here they exist from the beginning.
fn local_pods(scenario: &Scenario) -> BTreeSet<IpAddr> {
    let (mut facts, mut pods) = (facts(scenario), BTreeSet::new());
    for step in &scenario.steps {
        step.events().into_iter().for_each(|event| drop(facts.apply(event)));
        let (intent, _) = resolve::all(&facts);
        let ports = intent.services.values().flat_map(|service| &service.ports);
        let endpoints = ports.flat_map(|port| port.cluster.iter().chain(&port.local));
        pods.extend(endpoints.filter(|it| it.is_local).map(|it| it.ip));
    }
    pods
}

/// The addresses of an interface, and the file in which the program records its own addresses.
pub struct Addresses {
    present: Arc<Mutex<BTreeSet<IpAddr>>>,
    folder: tempfile::TempDir,
}

impl Default for Addresses {
    fn default() -> Addresses {
        Addresses { present: Arc::default(), folder: tempfile::tempdir().unwrap() }
    }
}

impl Addresses {
    pub fn open(&self) -> Box<dyn Dataplane> {
        let interface = Box::new(Memory(Arc::clone(&self.present)));
        let path = self.folder.path().join("addresses");
        Box::new(Winuserspace::open(&Family::ALL, &Settings::default(), interface, &path).unwrap())
    }

    /// Another program removes an address.
    pub fn tamper(&self) {
        self.present.lock().unwrap().pop_first();
    }
}

#[derive(Debug)]
struct Memory(Arc<Mutex<BTreeSet<IpAddr>>>);

impl Interface for Memory {
    fn name(&self) -> &str {
        "Ethernet"
    }

    fn present(&mut self) -> io::Result<BTreeSet<IpAddr>> {
        Ok(self.0.lock().unwrap().clone())
    }

    fn add(&mut self, address: IpAddr) -> io::Result<bool> {
        Ok(self.0.lock().unwrap().insert(address))
    }

    fn remove(&mut self, addresses: &[IpAddr]) -> Vec<io::Result<()>> {
        let mut present = self.0.lock().unwrap();
        present.retain(|address| !addresses.contains(address));
        addresses.iter().map(|_| Ok(())).collect()
    }
}
