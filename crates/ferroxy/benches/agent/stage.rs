//! The cluster a proxy is measured in: clients, node and endpoints, an API server, each on a cable of its own, and their
//! objects. One Service is real, the last in every order. It has as many endpoints as the other Services have, whose
//! endpoints are only addresses.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Instant;

use ferroxy_lab::api::Login;
use ferroxy_lab::api::cluster::{Cluster, cluster_ip, node_name};
use ferroxy_lab::{Namespace, Network, PodServer, prefixes};
use ferroxy_netlink::route::Route;
use ipnet::IpNet;
use serde_json::{Value, json};

use super::Result;
use super::api::{Api, Spent};
use super::files::Files;
use super::options::Options;
use super::size::Size;

/// For all binaries at one size: the API server, and a node with its neighbours for each of them.
pub struct Stage {
    network: Network,
    api: Api,
    cluster: Cluster,
    _pods: Vec<PodServer>,
    /// Last, because the API server must have ended before they go.
    files: Files,
}

/// The client pods. One server pod answers at as many addresses as the Service has endpoints. The node routes all of them,
/// so that the way through a Service is not longer than the direct one.
const CLIENTS: [Ipv4Addr; 5] = [
    Ipv4Addr::new(10, 244, 1, 2),
    Ipv4Addr::new(10, 244, 3, 2),
    Ipv4Addr::new(10, 244, 4, 2),
    Ipv4Addr::new(10, 244, 5, 2),
    Ipv4Addr::new(10, 244, 6, 2),
];
/// All ports. One client makes some 6,000 connections to the same address before it uses a port again (the kernel takes about
/// every tenth port).
const CLIENT_PORTS: &str = "1024 65535";
const FIRST_ENDPOINT: Ipv4Addr = Ipv4Addr::new(10, 244, 2, 2);
const MOST_REAL_ENDPOINTS: usize = 250;
const ENDPOINT_PORT: u16 = 8080;
/// Differs from the endpoint port of the Service. If it were the same, a direct connection and one through the Service from
/// the same client port would have the same tuple at the endpoint. The kernel, which remembers a tuple for seconds, would have
/// to find another port for the second connection.
const DIRECT_PORT: u16 = 9090;
const SERVICE_PORT: u16 = 80;
/// Contains all pods.
pub const POD_RANGE: &str = "10.244.0.0/16";
/// The number of the proxy's node in the cluster. Objects place endpoints of other Services on this node, too.
const NODE: usize = 1;
/// The API server's namespace.
const API_HOST: &str = "api";
const API_ADDRESS: Ipv4Addr = Ipv4Addr::new(172, 18, 255, 1);

/// Moved endpoints get addresses from here on, each its own.
const MOVED: Ipv4Addr = Ipv4Addr::new(10, 192, 0, 1);

/// One endpoint of one Service in a new place.
#[derive(Debug, Clone)]
pub struct Change {
    pub service: usize,
    /// A new address, which no other change and no other object has.
    pub address: Ipv4Addr,
    /// The slice after it.
    slice: String,
}

impl Stage {
    /// `nodes` are the names of the binaries to measure, each on a node of its own.
    pub fn new(size: Size, nodes: &[&str], options: &Options) -> Result<Stage> {
        let files = Files::new(options.folder.join("files"))?;
        let mut network = Network::new()?;
        network.add_client(API_HOST, &prefixes(["172.18.255.1/16"])?)?;
        let mut pods = Vec::new();
        for (index, node) in nodes.iter().enumerate() {
            let address = format!("172.18.254.{}/16", index + 1);
            pods.push(add_node(&mut network, node, &address, real_endpoints(size.endpoints))?);
        }
        let api = network
            .namespace(API_HOST)?
            .run(|| Api::start(options.assets.as_deref(), files.path(), API_ADDRESS))??;
        let stage = Stage { network, api, cluster: size.cluster(), _pods: pods, files };
        stage.load()?;
        Ok(stage)
    }

    pub fn node(&self, binary: &str) -> Result<&Namespace> {
        Ok(self.network.namespace(binary)?)
    }

    /// One of the clients.
    pub fn client(&self, binary: &str) -> Result<&Namespace> {
        Ok(self.network.namespace(&client_name(binary, 0))?)
    }

    pub fn clients(&self, binary: &str) -> Result<Vec<&Namespace>> {
        let name = |number| Ok(self.network.namespace(&client_name(binary, number))?);
        (0..CLIENTS.len()).map(name).collect()
    }

    pub fn folder(&self) -> &Path {
        self.files.path()
    }

    pub fn node_name(&self) -> String {
        node_name(NODE)
    }

    pub fn kubeconfig(&self) -> Result<PathBuf> {
        Ok(self.api.host().kubeconfig(self.folder(), Login::Token)?)
    }

    /// The address of the real Service.
    pub fn service(&self) -> SocketAddr {
        (cluster_ip(self.last()), SERVICE_PORT).into()
    }

    /// The addresses of its endpoints.
    pub fn endpoints(&self) -> Vec<SocketAddr> {
        self.at_each_endpoint(ENDPOINT_PORT)
    }

    /// The same pod, at a port that no Service uses.
    pub fn direct(&self) -> Vec<SocketAddr> {
        self.at_each_endpoint(DIRECT_PORT)
    }

    fn at_each_endpoint(&self, port: u16) -> Vec<SocketAddr> {
        real_endpoints(self.cluster.endpoints).map(|address| (address, port).into()).collect()
    }

    /// The costs of the API server so far.
    pub fn spent_by_server(&self) -> Result<Spent> {
        self.api.spent(self.network.namespace(API_HOST)?)
    }

    /// The change with this number: the same number always gives the same change. Services take turns, so that two changes in a
    /// row never belong to the same Service (except in the smallest clusters). It is always the same endpoint of a Service that moves.
    pub fn change(&self, number: usize) -> Change {
        // Not the last Service, whose endpoints are real.
        let service = number % self.last().max(1);
        let endpoint = service % self.cluster.endpoints;
        let place = service * self.cluster.endpoints + endpoint;
        // `moved` adds the endpoint's place to this argument, so the sum differs for each number.
        let all = self.cluster.services * self.cluster.endpoints;
        let slice = self.cluster.moved(service, endpoint, all + number - place);
        let address = Ipv4Addr::from_bits(MOVED.to_bits() + (all + number) as u32);
        Change { service, address, slice }
    }

    /// Sends the change to the API server and returns the time of its answer. Our own server has no answer to wait for: there
    /// it is the time before the change, so that sending the event is part of the measurement.
    pub fn make(&self, change: &Change) -> Result<Instant> {
        self.api.change(&change.slice)
    }

    fn last(&self) -> usize {
        self.cluster.services - 1
    }

    fn load(&self) -> Result<()> {
        let others = Cluster { services: self.last(), ..self.cluster }.objects();
        let real = [self.cluster.service(self.last()), self.real_slice()?];
        self.api.load(others.chain(real))
    }

    fn real_slice(&self) -> Result<String> {
        let slices = Cluster { endpoints: 1, ..self.cluster }.slices(self.last());
        let mut slice: Value = serde_json::from_str(slices.first().ok_or("a Service without endpoints")?)?;
        let model = slice["endpoints"][0].take();
        let endpoint = |address| {
            let mut endpoint = model.clone();
            endpoint["addresses"] = json!([address]);
            endpoint["nodeName"] = json!(node_name(NODE));
            endpoint
        };
        slice["endpoints"] = real_endpoints(self.cluster.endpoints).map(endpoint).collect();
        Ok(slice.to_string())
    }
}

fn real_endpoints(count: usize) -> impl Iterator<Item = Ipv4Addr> {
    (FIRST_ENDPOINT.to_bits()..).take(count.min(MOST_REAL_ENDPOINTS)).map(Ipv4Addr::from_bits)
}

/// A node with the name of the binary that will run there, with its own clients and its own pod of endpoints.
fn add_node(
    network: &mut Network,
    name: &str,
    address: &str,
    endpoints: impl Iterator<Item = Ipv4Addr>,
) -> Result<PodServer> {
    let pod = format!("{name}-pod");
    network.add_client(name, &prefixes([address])?)?;
    network.namespace(name)?.set_sysctl("net/ipv4/ip_forward", "1")?;
    for (number, address) in CLIENTS.into_iter().enumerate() {
        let client = client_name(name, number);
        add_neighbour(network, name, (&client, &format!("client{number}")), &[address])?;
        network.namespace(&client)?.set_sysctl("net/ipv4/ip_local_port_range", CLIENT_PORTS)?;
    }
    add_neighbour(network, name, (&pod, "endpoint"), &endpoints.collect::<Vec<_>>())?;
    Ok(PodServer::start(network.namespace(&pod)?)?)
}

/// Adds a pod on its own cable to the node. The node has the address before the first address of the pod.
fn add_neighbour(
    network: &mut Network,
    node: &str,
    (name, link): (&str, &str),
    addresses: &[Ipv4Addr],
) -> Result<()> {
    let first = addresses.first().ok_or("a host needs an address")?;
    let gateway = Ipv4Addr::from_bits(first.to_bits() - 1);
    let on_cable = |address: &Ipv4Addr| Ok(IpNet::new((*address).into(), 24)?);
    let far = addresses.iter().map(on_cable).collect::<Result<Vec<IpNet>>>()?;
    network.add_direct_client(name, &far, node, link, &[on_cable(&gateway)?])?;
    let everywhere = Route {
        destination: Ipv4Addr::UNSPECIFIED.into(),
        prefix_length: 0,
        gateway: Some(gateway.into()),
        link: None,
    };
    network.namespace(name)?.connection()?.add_route(everywhere)?;
    Ok(())
}

fn client_name(binary: &str, number: usize) -> String {
    format!("{binary}-client{number}")
}
