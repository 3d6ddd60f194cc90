//! A Windows node in memory: an L2Bridge network, and the pods of this node that a scenario has at any time.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ferroxy_core::resolve;
use ferroxy_dataplane::Dataplane;
use ferroxy_hcn::testing::Fake;
use ferroxy_hcn::{Guid, Kind, Version};
use ferroxy_kernelspace::dataplane::MacOf;
use ferroxy_kernelspace::{Kernelspace, Mac, Options};

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

/// The network plugin makes endpoints of pods; they are there from the beginning.
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
