//! A node for tests: a host and a pod, each in a network namespace and a cgroup, in which every address answers.

use std::io::Read;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use ferroxy_core::intent::LocalDetector;
use ferroxy_core::{Endpoint, Intent, ServiceIntent, ServiceName};
use ferroxy_dataplane::testing::{Kernel, Memory};
use ferroxy_dataplane::{Dataplane, SocketReport};
use ferroxy_lab::{BpfFilesystem, Capability, Cgroups, Namespace, require};
use ferroxy_sockets::{Accelerated, Clients, Options};

pub struct Node {
    pub cgroups: Cgroups,
    pub pins: BpfFilesystem,
    pub host: Namespace,
    pub pod: Namespace,
    /// In a namespace of its own, and not in the cgroup of the pods.
    pub container: Namespace,
    pub kernel: Kernel,
}

/// Ports on which everything answers, in all namespaces.
pub const PORTS: [u16; 8] = [53, 80, 81, 8080, 30_080, 30_081, 32_000, 9];

impl Node {
    /// `None` if this machine lacks a capability: the test must return.
    pub fn new() -> Option<Node> {
        if !require(&[Capability::NetworkNamespaces, Capability::SocketPrograms]) {
            return None;
        }
        let (cgroups, pins) = (Cgroups::new().unwrap(), BpfFilesystem::mount().unwrap());
        let member = |name: &str, cgroup: &str| {
            let mut namespace = Namespace::new(name).unwrap();
            namespace.run(answer_everywhere).unwrap();
            namespace.set_cgroup(cgroups.create(cgroup).unwrap());
            namespace
        };
        let host = member("host", "node/system");
        let pod = member("pod", "node/kubepods/pod1");
        let container = member("container", "node/docker/c1");
        Some(Node { cgroups, pins, host, pod, container, kernel: Kernel::default() })
    }

    pub fn options(&self) -> Options {
        Options {
            clients: Clients::ALL,
            cgroup: Some(self.cgroups.root().join("node")),
            pins: self.pins(),
            ..Options::default()
        }
    }

    pub fn pins(&self) -> PathBuf {
        self.pins.path().join("ferroxy")
    }

    pub fn open(&self, options: Options) -> Accelerated {
        Accelerated::new(Box::new(Memory::new(&self.kernel)), options)
    }

    /// Starts a dataplane, as the agent of this host does.
    pub fn start(&self, intent: &Intent, options: Options) -> Accelerated {
        let mut dataplane = self.open(options);
        self.on_host(|| dataplane.start(intent).unwrap());
        dataplane
    }

    pub fn on_host<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.host.run(work).unwrap()
    }
}

/// All addresses are local, and these ports listen, with a thread for each.
fn answer_everywhere() {
    for family in ["-4", "-6"] {
        let route = ["route", "add", "local", "default", "dev", "lo"];
        let done = Command::new("ip").arg(family).args(route).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    }
    for port in PORTS {
        let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                drop(stream);
            }
        });
    }
}

/// Where a new connection ends: the peer that the kernel connected to.
pub fn peer(namespace: &Namespace, target: &str) -> SocketAddr {
    let target: SocketAddr = target.parse().unwrap();
    namespace.run(move || peer_here(target)).unwrap()
}

pub fn peer_here(target: SocketAddr) -> SocketAddr {
    let mut stream = TcpStream::connect(target).unwrap();
    let peer = stream.peer_addr().unwrap();
    // The other side closes first: no port of ours stays in TIME_WAIT.
    drop(stream.read(&mut [0]));
    SocketAddr::new(peer.ip().to_canonical(), peer.port())
}

/// `default/s<number>` with port 80 of `10.96.0.<number>` and these endpoints, which are port 8080 of `10.244.0.<n>`.
pub fn service(number: u16, endpoints: impl IntoIterator<Item = u8>) -> (ServiceName, Arc<ServiceIntent>) {
    let (name, plain) = ferroxy_core::testing::service(number, 0..1);
    let mut service = ServiceIntent::clone(&plain);
    let endpoint = |n| Endpoint { ip: IpAddr::from([10, 244, 0, n]), port: 8080, is_local: false };
    service.ports[0].cluster = endpoints.into_iter().map(endpoint).collect();
    if service.ports[0].cluster.is_empty() {
        service.ports[0].frontends[0].route = ferroxy_core::Route::Reject;
    }
    (name, Arc::new(service))
}

/// These Services on a node that recognises pods.
pub fn intent(services: impl IntoIterator<Item = (ServiceName, Arc<ServiceIntent>)>) -> Intent {
    let mut intent = Intent { services: services.into_iter().collect(), ..Intent::default() };
    intent.node.v4.local_detector = Some(LocalDetector::SourceIn("10.244.0.0/16".parse().unwrap()));
    intent.node.v6.local_detector = Some(LocalDetector::SourceIn("fd00:10:244::/56".parse().unwrap()));
    intent
}

pub fn report(dataplane: &Accelerated) -> SocketReport {
    dataplane.translates_sockets().unwrap().read()
}
