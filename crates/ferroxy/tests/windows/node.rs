//! A Windows node: HNS, an API server, and the agent, which can be stopped and started. Objects are made here, too.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use ferroxy_hcn::testing::{Fake, Server, serve};
use ferroxy_hcn::{Guid, Kind, Version};
use ferroxy_lab::PATIENCE;
use ferroxy_lab::api::{self, Access, Login};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

pub const NEWEST: Version = Version::new(15, 5);

const REASON: &str = "FERROXY_EXE and WINE name the program and what runs it: use `make test-windows`";

pub struct Node {
    pub fake: Fake,
    pub api: api::Server,
    pub network: Guid,
    /// Further flags of the agent and of commands.
    pub flags: Vec<String>,
    pub sync_period: &'static str,
    healthz: u16,
    metrics: u16,
    server: Server,
    folder: TempDir,
    agent: Option<Child>,
}

impl Node {
    /// With an L2Bridge network.
    pub fn new(version: Version) -> Node {
        let mut node = Node::without_network(version);
        node.add_network();
        node
    }

    pub fn without_network(version: Version) -> Node {
        let fake = Fake::of(version);
        let server = serve(&fake).unwrap();
        // As in a cluster: with TLS and a token.
        let options = api::Options { tls: true, access: Access::Token, ..api::Options::default() };
        let api = api::Server::start(options).unwrap();
        api.put(&node("ka", Ipv4Addr::new(172, 18, 0, 2).into())).unwrap();
        let folder = TempDir::new().unwrap();
        api.kubeconfig(folder.path(), Login::Token).unwrap();
        Node {
            fake,
            api,
            network: Guid::ZERO,
            flags: vec!["--network-name=CBR0".into()],
            sync_period: "2s",
            healthz: free_port(),
            metrics: free_port(),
            server,
            folder,
            agent: None,
        }
    }

    pub fn add_network(&mut self) {
        self.network = self.fake.add_network("cbr0", "L2Bridge");
        self.fake.add_pod(self.network, "a1", &["10.244.1.5"]);
    }

    pub fn put(&self, service: &Service) {
        for object in service.objects() {
            self.api.put(&object).unwrap();
        }
    }

    pub fn delete(&self, number: u16) {
        let name = format!("s{number}");
        self.api.delete(api::Kind::Service, "default", &name).unwrap();
        self.api.delete(api::Kind::EndpointSlice, "default", &format!("{name}-1")).unwrap();
    }

    fn program(&self, command: &str) -> Command {
        let mut program = Command::new(std::env::var("WINE").expect(REASON));
        program
            .arg(std::env::var("FERROXY_EXE").expect(REASON))
            .arg(command)
            .env("FERROXY_FAKE_HNS", self.server.address().to_string())
            .stdin(Stdio::null());
        program
    }

    /// The flags of commands that read the cluster.
    fn input(&self) -> Vec<String> {
        let kubeconfig = self.folder.path().join("kubeconfig");
        // In wine, drive Z has this machine's files.
        let mut input =
            vec!["--hostname-override=ka".into(), format!("--kubeconfig=Z:{}", kubeconfig.display())];
        input.extend(self.flags.iter().cloned());
        input
    }

    pub fn start(&mut self) {
        let log = fs::File::create(self.log()).unwrap();
        let agent = self
            .program("run")
            .args(self.input())
            .args(["-v=2".to_owned(), format!("--iptables-sync-period={}", self.sync_period)])
            .arg(format!("--healthz-bind-address=127.0.0.1:{}", self.healthz))
            .arg(format!("--metrics-bind-address=127.0.0.1:{}", self.metrics))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.agent = Some(agent.unwrap());
    }

    /// A command that ends by itself: its output as text.
    pub fn run(&self, command: &str, arguments: &[&str]) -> (bool, String) {
        let input = if command == "cleanup" { Vec::new() } else { self.input() };
        let Output { status, stdout, stderr } =
            self.program(command).args(arguments).args(input).output().unwrap();
        let text = String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr);
        (status.success(), text.replace('\r', ""))
    }

    fn log(&self) -> PathBuf {
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("windows-{}.log", self.server.address().port()))
    }

    pub fn logged(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }

    pub fn stop(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            agent.kill().unwrap();
            agent.wait().unwrap();
        }
    }

    /// Stops the agent as Ctrl-C does: wine turns SIGINT into Ctrl-C.
    pub fn interrupt(&mut self) -> ExitStatus {
        kill_process(Pid::from_child(self.agent.as_ref().unwrap()), Signal::INT).unwrap();
        self.wait_for_end()
    }

    /// The exit status of the agent, which ends by itself.
    pub fn wait_for_end(&mut self) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.agent.as_mut().unwrap().try_wait().unwrap() {
                self.agent = None;
                return status;
            }
            assert!(began.elapsed() < PATIENCE, "it does not end\n{}", self.logged());
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Files and sockets that the agent has open, as this machine counts them.
    pub fn open_files(&self) -> usize {
        let process = self.agent.as_ref().unwrap().id();
        fs::read_dir(format!("/proc/{process}/fd")).unwrap().count()
    }

    /// Memory of its own that is in RAM. (Wine's figure for a working set includes files that are mapped.)
    pub fn resident_kilobytes(&self) -> usize {
        let process = self.agent.as_ref().unwrap().id();
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse().unwrap()
    }

    /// Status and body of an HTTP answer, if there is one yet.
    pub fn get(&self, port: u16, path: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let status = answer.split(' ').nth(1)?.parse().ok()?;
        Some((status, answer.split_once("\r\n\r\n")?.1.to_owned()))
    }

    pub fn healthz(&self) -> Option<(u16, String)> {
        self.get(self.healthz, "/healthz")
    }

    pub fn metrics(&self) -> String {
        self.get(self.metrics, "/metrics").map(|(_, text)| text).unwrap_or_default()
    }

    /// A metric without labels.
    pub fn figure(&self, name: &str) -> usize {
        let metrics = self.metrics();
        let mut values = metrics.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        values.next().and_then(|it| it.parse().ok()).unwrap_or_else(|| panic!("{name} in {metrics}"))
    }

    /// Virtual addresses with the number of their endpoints.
    pub fn balancers(&self) -> BTreeSet<(String, usize)> {
        let service = self.fake.service();
        let describe = |document: &Value| {
            let vip = document["FrontendVIPs"][0].as_str().unwrap_or("*").to_owned();
            (vip, document["HostComputeEndpoints"].as_array().map_or(0, Vec::len))
        };
        service.documents(Kind::LoadBalancer).map(|(_, document)| describe(document)).collect()
    }

    pub fn has(&self, expected: &[(&str, usize)]) -> bool {
        self.balancers() == expected.iter().map(|(vip, count)| ((*vip).to_owned(), *count)).collect()
    }

    pub fn has_endpoint(&self, ip: &str) -> bool {
        let service = self.fake.service();
        service.endpoints().values().any(|it| it.addresses().any(|address| address.to_string() == ip))
    }

    /// Calls of HNS, without those that only close a handle.
    pub fn calls(&self) -> u64 {
        let service = self.fake.service();
        service
            .counted
            .iter()
            .filter(|(function, _)| !function.starts_with("HcnClose"))
            .map(|(_, count)| count)
            .sum()
    }

    pub fn wait_for(&self, what: &str, is_true: impl Fn(&Node) -> bool) {
        let began = Instant::now();
        while !is_true(self) {
            let seen = self.balancers();
            let seen: Vec<_> = seen.iter().take(20).collect();
            assert!(began.elapsed() < PATIENCE, "{what}: {seen:?}\n{}", self.logged());
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits for two more verifications: by then, all work in progress is done.
    pub fn wait_for_quiet(&self) {
        let looks = || self.fake.service().counted.get("HcnEnumerateLoadBalancers").copied().unwrap_or(0);
        let until = looks() + 2;
        self.wait_for("it verifies", |_| looks() >= until);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop();
    }
}

fn free_port() -> u16 {
    free_port_at(Ipv4Addr::LOCALHOST.into())
}

pub fn free_port_at(ip: IpAddr) -> u16 {
    TcpListener::bind((ip, 0)).unwrap().local_addr().unwrap().port()
}

/// An address of an interface that is not the loopback.
pub fn own_address() -> Option<IpAddr> {
    let listed =
        Command::new("ip").args(["-4", "-o", "addr", "show", "up", "scope", "global"]).output().ok()?;
    let text = String::from_utf8(listed.stdout).ok()?;
    text.split_whitespace().skip_while(|word| *word != "inet").nth(1)?.split('/').next()?.parse().ok()
}

pub fn node(name: &str, ip: IpAddr) -> Value {
    json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name },
        "status": { "addresses": [{ "type": "InternalIP", "address": ip.to_string() }] } })
}

/// A Service with endpoints on another node.
#[derive(Debug, Default, Clone)]
pub struct Service {
    pub number: u16,
    pub endpoints: Vec<u16>,
    /// The health-check port of a load-balancer Service with policy Local, whose one endpoint is the pod of this node.
    pub health_check: Option<u16>,
}

pub fn service(number: u16, endpoints: &[u16]) -> Service {
    Service { number, endpoints: endpoints.to_vec(), health_check: None }
}

impl Service {
    pub fn objects(&self) -> [Value; 2] {
        let Service { number, .. } = self;
        let ([high, low], name) = (number.to_be_bytes(), format!("s{number}"));
        let ip = format!("10.96.{high}.{low}");
        let mut service = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "name": name, "namespace": "default" },
            "spec": {
                "type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip], "ipFamilies": ["IPv4"],
                "ports": [{ "port": 80, "protocol": "TCP", "targetPort": 80 }],
            },
        });
        let remote = |endpoint: &u16| {
            let [high, low] = endpoint.to_be_bytes();
            json!({ "addresses": [format!("10.200.{high}.{low}")], "nodeName": "kb", "conditions": { "ready": true } })
        };
        let mut endpoints: Vec<Value> = self.endpoints.iter().map(remote).collect();
        if let Some(port) = self.health_check {
            service["spec"]["type"] = json!("LoadBalancer");
            service["spec"]["externalTrafficPolicy"] = json!("Local");
            service["spec"]["healthCheckNodePort"] = json!(port);
            service["spec"]["ports"][0]["nodePort"] = json!(30080);
            service["status"] = json!({ "loadBalancer": { "ingress": [{ "ip": "203.0.113.10" }] } });
            endpoints.push(
                json!({ "addresses": ["10.244.1.5"], "nodeName": "ka", "conditions": { "ready": true } }),
            );
        }
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": { "name": format!("{name}-1"), "namespace": "default",
                "labels": { "kubernetes.io/service-name": name } },
            "addressType": "IPv4",
            "ports": [{ "name": "", "port": 80, "protocol": "TCP" }],
            "endpoints": endpoints,
        });
        [service, slice]
    }
}
