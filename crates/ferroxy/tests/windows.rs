//! The agent as a Windows program, under wine, with libraries that forward to a service in memory (`ferroxy-hcn-fake`).
//!
//! `scripts/cross windows` builds it and names it in the environment. What HNS itself does cannot be seen this way.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the functions that tests share are tests too; clippy does not know"
)]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use std::{fs, thread};

use ferroxy_hcn::testing::{Fake, Server, serve};
use ferroxy_hcn::{Guid, Kind, Version};
use ferroxy_lab::PATIENCE;
use serde_json::Value;
use tempfile::TempDir;

const REASON: &str = "FERROXY_EXE and WINE name the program and what runs it: use `make test-windows`";

/// A node: HNS, a folder of manifests, and the agent.
struct Node {
    fake: Fake,
    network: Guid,
    server: Server,
    manifests: TempDir,
    agent: Option<Child>,
}

impl Node {
    fn new(version: Version) -> Node {
        let fake = Fake::of(version);
        let network = fake.add_network("cbr0", "L2Bridge");
        fake.add_pod(network, "a1", &["10.244.1.5"]);
        let server = serve(&fake).unwrap();
        let manifests = TempDir::new().unwrap();
        Node { fake, network, server, manifests, agent: None }
    }

    fn write(&self, objects: &str) {
        let beside = self.manifests.path().join("objects.new");
        fs::write(&beside, objects).unwrap();
        fs::rename(beside, self.manifests.path().join("objects.yaml")).unwrap();
    }

    /// Wine knows this machine's files as drive Z.
    fn start(&mut self) {
        let log = fs::File::create(self.log()).unwrap();
        let manifests = format!("Z:{}", self.manifests.path().display());
        let agent = Command::new(std::env::var("WINE").expect(REASON))
            .arg(std::env::var("FERROXY_EXE").expect(REASON))
            .args([
                "run",
                "--hostname-override=ka",
                "--network-name=CBR0",
                "--iptables-sync-period=2s",
                "-v=2",
            ])
            .arg(format!("--manifests={manifests}"))
            .arg(format!("--healthz-bind-address=127.0.0.1:{}", free_port()))
            .arg(format!("--metrics-bind-address=127.0.0.1:{}", free_port()))
            .env("FERROXY_FAKE_HNS", self.server.address().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.agent = Some(agent.unwrap());
    }

    fn log(&self) -> std::path::PathBuf {
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("windows-{}.log", self.server.address().port()))
    }

    fn stop(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            agent.kill().unwrap();
            agent.wait().unwrap();
        }
    }

    /// Virtual addresses with the number of their endpoints.
    fn balancers(&self) -> BTreeSet<(String, usize)> {
        let service = self.fake.service();
        let describe = |document: &Value| {
            let vip = document["FrontendVIPs"][0].as_str().unwrap_or("*").to_owned();
            (vip, document["HostComputeEndpoints"].as_array().map_or(0, Vec::len))
        };
        service.documents(Kind::LoadBalancer).map(|(_, document)| describe(document)).collect()
    }

    fn wait_for(&self, what: &str, is_true: impl Fn(&Node) -> bool) {
        let began = Instant::now();
        while !is_true(self) {
            let log = || fs::read_to_string(self.log()).unwrap_or_default();
            assert!(began.elapsed() < PATIENCE, "{what}: {:?}\n{}", self.balancers(), log());
            thread::sleep(std::time::Duration::from_millis(50));
        }
    }

    /// Two verifications later, everything that is in the works is done.
    fn wait_for_quiet(&self) {
        let looks = || self.fake.service().counted.get("HcnEnumerateLoadBalancers").copied().unwrap_or(0);
        let until = looks() + 2;
        self.wait_for("it verifies", |_| looks() >= until);
    }

    fn has(&self, expected: &[(&str, usize)]) -> bool {
        self.balancers() == expected.iter().map(|(vip, count)| ((*vip).to_owned(), *count)).collect()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop();
    }
}

fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

const THIS_NODE: &str = "apiVersion: v1\nkind: Node\nmetadata: {name: ka}\nstatus:\n  addresses:\n  \
                         - {type: InternalIP, address: 172.18.0.2}\n";

/// A Service with these endpoints on another node.
fn service(number: u16, endpoints: &[u16]) -> String {
    let [high, low] = number.to_be_bytes();
    let mut text = format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: s{number}, namespace: default}}\nspec:\n  \
         clusterIP: 10.96.{high}.{low}\n  clusterIPs: [10.96.{high}.{low}]\n  \
         ports: [{{port: 80, protocol: TCP, targetPort: 80}}]\n---\napiVersion: discovery.k8s.io/v1\n\
         kind: EndpointSlice\nmetadata:\n  name: s{number}-1\n  namespace: default\n  \
         labels: {{kubernetes.io/service-name: s{number}}}\naddressType: IPv4\n\
         ports: [{{name: '', port: 80, protocol: TCP}}]\nendpoints:\n"
    );
    for endpoint in endpoints {
        let [high, low] = endpoint.to_be_bytes();
        writeln!(text, "- {{addresses: [10.200.{high}.{low}], nodeName: kb, conditions: {{ready: true}}}}")
            .unwrap();
    }
    text
}

fn objects(services: &[(u16, &[u16])]) -> String {
    services.iter().fold(THIS_NODE.to_owned(), |all, (number, endpoints)| all + &service(*number, endpoints))
}

#[test]
#[ignore = "needs wine: make test-windows"]
fn the_agent_lives_through_what_happens_on_a_node() {
    let mut node = Node::new(Version::new(15, 5));
    node.write(&objects(&[(1, &[1, 2]), (2, &[3])]));
    node.start();
    node.wait_for("the first sync", |node| node.has(&[("10.96.0.1", 2), ("10.96.0.2", 1)]));

    node.write(&objects(&[(1, &[1, 2, 4]), (3, &[3])]));
    node.wait_for("a change", |node| node.has(&[("10.96.0.1", 3), ("10.96.0.3", 1)]));
    node.wait_for_quiet();

    node.stop();
    let changes = node.fake.service().changes();
    node.start();
    node.wait_for_quiet();
    assert_eq!(node.fake.service().changes(), changes, "a restart changes nothing");

    let lost = node.fake.service().documents(Kind::LoadBalancer).next().unwrap().0;
    node.fake.service().remove(Kind::LoadBalancer, lost);
    node.wait_for("what others delete", |node| node.has(&[("10.96.0.1", 3), ("10.96.0.3", 1)]));

    node.fake.stop();
    node.write(&objects(&[(1, &[1]), (3, &[3])]));
    let asked = || node.fake.service().counted.values().sum::<u64>();
    let before = asked();
    node.wait_for("it asks while HNS is away", |_| asked() > before + 3);
    assert!(node.has(&[("10.96.0.1", 3), ("10.96.0.3", 1)]), "nothing is dropped");
    node.fake.resume();
    node.wait_for("HNS is back", |node| node.has(&[("10.96.0.1", 1), ("10.96.0.3", 1)]));
    node.wait_for_quiet();

    {
        let mut service = node.fake.service();
        for kind in Kind::ALL {
            let ids: Vec<Guid> = service.documents(kind).map(|(id, _)| id).collect();
            ids.into_iter().for_each(|id| service.remove(kind, id));
        }
    }
    let renewed = node.fake.add_network("cbr0", "L2Bridge");
    assert_ne!(renewed, node.network);
    node.wait_for("the network is recreated", |node| node.has(&[("10.96.0.1", 1), ("10.96.0.3", 1)]));
}

#[test]
#[ignore = "needs wine: make test-windows"]
fn two_thousand_services_cost_a_call_for_each_object_and_a_change_a_few() {
    let mut node = Node::new(Version::new(15, 5));
    let endpoints: Vec<Vec<u16>> = (0..2000).map(|number| (5 * number..5 * number + 5).collect()).collect();
    let all = |first: &[u16]| {
        let rest = (2..).zip(&endpoints[1..]).map(|(number, it)| (number, &it[..]));
        objects(&[(1, first)].into_iter().chain(rest).collect::<Vec<_>>())
    };
    node.write(&all(&endpoints[0]));
    node.start();
    node.wait_for("the first sync", |node| node.balancers().len() == 2000);
    let created = |node: &Node, what: &str| node.fake.service().counted[what];
    assert_eq!(created(&node, "HcnCreateLoadBalancer"), 2000);
    assert_eq!(created(&node, "HcnCreateEndpoint"), 10_000);
    node.wait_for_quiet();
    let changes = node.fake.service().changes();
    node.write(&all(&[0, 1, 2, 3, 60_000]));
    let lists = "10.200.234.96";
    let is_there = |node: &Node| {
        let service = node.fake.service();
        service.endpoints().values().any(|it| it.addresses().any(|ip| ip.to_string() == lists))
    };
    node.wait_for("the change", is_there);
    node.wait_for_quiet();
    let cost = node.fake.service().changes() - changes;
    assert!(cost <= 3, "{cost} calls: an endpoint comes, one goes, the load balancer changes");
}
