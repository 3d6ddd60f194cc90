//! The recorded host as a service in memory, its final state as lines, and Intents from manifests.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    dead_code,
    reason = "the functions that tests share are tests too, and each file uses some of them"
)]

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use ferroxy_core::{Event, Facts, Intent, Policy, resolve};
use ferroxy_dataplane::Settings;
use ferroxy_hcn::testing::Fake;
use ferroxy_hcn::{Guid, Kind, Version};
use ferroxy_kernelspace::dataplane::MacOf;
use ferroxy_kernelspace::{Kernelspace, MODE, Mac, Options};
use serde_json::{Value, json};

pub const NODE_IP: &str = "172.18.0.2";
pub const HOST_MAC: Mac = Mac([0x00, 0x15, 0x5d, 0x00, 0x00, 0x02]);

/// A host as the recordings began with.
pub struct Host {
    pub fake: Fake,
    pub network: Guid,
    pub options: Options,
    /// Of the interface with the node's address; `None`: no interface has it.
    pub mac: Option<Mac>,
    seeded: BTreeSet<Guid>,
}

impl Host {
    pub fn new(is_overlay: bool, version: Version) -> Host {
        let fake = Fake::of(version);
        let network = add_network(&fake, is_overlay);
        let options = Options {
            network: Some(if is_overlay { "vxlan0" } else { "cbr0" }.to_owned()),
            source_vip: is_overlay.then(|| "10.244.1.9".to_owned()),
            enable_dsr: false,
            root_endpoint: None,
        };
        let mut host = Host { fake, network, options, mac: Some(HOST_MAC), seeded: BTreeSet::new() };
        host.seed(is_overlay);
        host
    }

    fn seed(&mut self, is_overlay: bool) {
        for (name, last) in [("a1", 5), ("a2", 6), ("cbr0", 2)] {
            let v4 = format!("10.244.1.{last}");
            let v6 = format!("fd00:10:244:1::{last}");
            let addresses = if is_overlay { vec![&*v4] } else { vec![&*v4, &*v6] };
            self.seeded.insert(self.fake.add_pod(self.network, name, &addresses));
        }
    }

    pub fn add_pod(&mut self, name: &str, addresses: &[&str]) -> Guid {
        let id = self.fake.add_pod(self.network, name, addresses);
        self.seeded.insert(id);
        id
    }

    /// The network plugin recreates the network: what was in it is gone.
    pub fn renew_network(&mut self, is_overlay: bool) {
        {
            let mut service = self.fake.service();
            for kind in Kind::ALL {
                let ids: Vec<Guid> = service.documents(kind).map(|(id, _)| id).collect();
                ids.into_iter().for_each(|id| service.remove(kind, id));
            }
        }
        self.network = add_network(&self.fake, is_overlay);
        self.seed(is_overlay);
    }

    pub fn open(&self) -> Kernelspace {
        let mac = self.mac;
        let mac_of = move |_| mac;
        Kernelspace::new(self.fake.hcn(), self.options.clone(), MacOf(Box::new(mac_of)))
    }

    /// Like `open`, with a deadline for calls.
    pub fn open_within(&self, deadline: std::time::Duration) -> Kernelspace {
        let mac = self.mac;
        let api = ferroxy_hcn::Patience::with(Box::new(self.fake.clone()), deadline).unwrap();
        let hcn = ferroxy_hcn::Hcn::new(Box::new(api));
        Kernelspace::new(hcn, self.options.clone(), MacOf(Box::new(move |_| mac)))
    }

    /// A line for each object that was not there before.
    pub fn lines(&self) -> BTreeSet<String> {
        let service = self.fake.service();
        let endpoints = service.documents(Kind::Endpoint).filter(|(id, _)| !self.seeded.contains(id));
        let endpoints = endpoints.map(|(_, document)| {
            let policies = document["Policies"].as_array().cloned().unwrap_or_default();
            let policies = policies.iter().map(|it| json!({ it["Type"].as_str().unwrap(): it["Settings"] }));
            endpoint_line(&json!({
                "ip": document["IpConfigurations"][0]["IpAddress"],
                "flags": document["Flags"].as_u64().unwrap_or(0),
                "mac": document["MacAddress"],
                "policies": policies.collect::<Vec<_>>(),
            }))
        });
        let known = service.endpoints();
        let balancers = service.documents(Kind::LoadBalancer).map(|(_, document)| {
            let is_v6 = document["Flags"].as_u64().unwrap_or(0) & 2 != 0;
            let address = |id: &Value| {
                let id: Guid = id.as_str().unwrap().parse().unwrap();
                let ips: Vec<IpAddr> = known.get(&id).map(|it| it.addresses().collect()).unwrap_or_default();
                ips.iter().find(|ip| ip.is_ipv6() == is_v6).map_or("gone".to_owned(), ToString::to_string)
            };
            let mut endpoints: Vec<String> =
                document["HostComputeEndpoints"].as_array().into_iter().flatten().map(address).collect();
            endpoints.sort();
            let mappings = document["PortMappings"].as_array().cloned().unwrap_or_default();
            let number = |it: &Value, name: &str| it[name].as_u64().unwrap_or(0);
            let mappings = mappings.iter().map(|it| {
                json!({ "protocol": number(it, "Protocol"), "external": number(it, "ExternalPort"),
                    "internal": number(it, "InternalPort"), "distribution": number(it, "DistributionType"),
                    "flags": number(it, "Flags") })
            });
            balancer_line(&json!({
                "vips": document["FrontendVIPs"].as_array().cloned().unwrap_or_default(),
                "mappings": mappings.collect::<Vec<_>>(),
                "flags": number(document, "Flags"),
                "sourceVip": document["SourceVIP"].as_str().unwrap_or_default(),
                "endpoints": endpoints,
            }))
        });
        endpoints.chain(balancers).collect()
    }
}

fn add_network(fake: &Fake, is_overlay: bool) -> Guid {
    match is_overlay {
        true => {
            let network = fake.add_overlay("vxlan0", &[("10.244.2.0/24", "172.18.0.3")]);
            fake.add_subnet(network, "10.244.1.0/24");
            network
        }
        false => fake.add_network("cbr0", "L2Bridge"),
    }
}

/// As the recordings describe an endpoint.
pub fn endpoint_line(it: &Value) -> String {
    let policies = it["policies"].as_array().unwrap();
    let text = |it: &Value| it.as_str().unwrap_or_default().to_owned();
    format!(
        "endpoint {} flags {} mac {}{}",
        text(&it["ip"]),
        it["flags"],
        text(&it["mac"]),
        policies.iter().map(|policy| format!(" {policy}")).collect::<String>()
    )
}

/// As the recordings describe a load balancer.
pub fn balancer_line(it: &Value) -> String {
    let list = |it: &Value| {
        let texts = it.as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned());
        texts.collect::<Vec<_>>().join(" ")
    };
    let mapping = |it: &Value| {
        format!(
            "protocol {} port {} to {} distribution {} flags {}",
            it["protocol"], it["external"], it["internal"], it["distribution"], it["flags"]
        )
    };
    let mappings: Vec<String> = it["mappings"].as_array().unwrap().iter().map(mapping).collect();
    format!(
        "balancer [{}] {} flags {} source [{}] endpoints [{}]",
        list(&it["vips"]),
        mappings.join("; "),
        it["flags"],
        it["sourceVip"].as_str().unwrap_or_default(),
        list(&it["endpoints"])
    )
}

pub fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub fn policy() -> Policy {
    let mut policy = Policy { node_name: "ka".into(), ..Policy::default() };
    (MODE.shape)(&Settings::default(), &mut policy);
    policy
}

/// The Intent of manifests, as this mode resolves them.
pub fn intent(texts: &[&str]) -> Intent {
    let mut facts = Facts::new(policy());
    facts.apply(Event::HostAddresses([NODE_IP.parse().unwrap()].into()));
    for text in texts {
        let (objects, diagnostics) = ferroxy_source::read_str("objects", text);
        assert_eq!(diagnostics, []);
        for object in objects {
            facts.apply(object.event().clone());
        }
    }
    resolve::all(&facts).0
}
