//! A fleet from its start to its end: all agents are started at once, settle, and then endpoints move one at a time until
//! every agent's kernel has each move.

use std::net::Ipv4Addr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use ferroxy_lab::api::Login;
use ferroxy_lab::api::cluster::{Cluster, node_name};
use ferroxy_lab::{Network, prefixes};

use super::api::{Api, Spent};
use super::files::Files;
use super::kernel::Listener;
use super::options::Options;
use super::proxy::Proxy;
use super::{Result, progress};

/// A number of agents of one binary, and their costs.
#[derive(Debug, Clone)]
pub struct Fleet {
    pub binary: &'static str,
    pub agents: usize,
    /// Costs of the API server, from the first start until all agents were idle.
    pub start: Spent,
    /// Resident memory of the API server after that.
    pub server_memory: u64,
    /// Costs of the API server for all changes.
    pub changes: Spent,
    /// From the API server's answer to a change until each agent's kernel had it.
    pub delays: Vec<Duration>,
}

const API_HOST: &str = "api";
const API_ADDRESS: Ipv4Addr = Ipv4Addr::new(172, 18, 255, 1);
/// Moved endpoints get addresses from here on, each its own.
const MOVED: Ipv4Addr = Ipv4Addr::new(10, 192, 0, 1);
const POD_RANGE: &str = "10.244.0.0/16";
/// Agents are idle if all of them together use less than a twentieth of a processor for this long.
const IDLE: Duration = Duration::from_secs(2);
/// Longer than kube-proxy keeps changes back after a sync (a second), so that each is met by a proxy at rest.
const REST: Duration = Duration::from_millis(1_200);
const PATIENCE: Duration = Duration::from_secs(120);

pub fn all(options: &Options) -> Result<Vec<Fleet>> {
    let mut fleets = Vec::new();
    for &agents in &options.agents {
        for (binary, program) in options.binaries() {
            progress(&format!("{agents} x {binary}: making the cluster"));
            let field = Field::new(options, agents)?;
            fleets.push(field.measure(options, binary, program)?);
        }
    }
    Ok(fleets)
}

/// One API server and a node for each agent.
struct Field {
    network: Network,
    api: Api,
    cluster: Cluster,
    agents: usize,
    /// Last, because the API server must have ended before they go.
    files: Files,
}

impl Field {
    fn new(options: &Options, agents: usize) -> Result<Field> {
        let files = Files::new(options.folder.clone())?;
        let mut network = Network::new()?;
        network.add_client(API_HOST, &prefixes(["172.18.255.1/16"])?)?;
        for agent in 0..agents {
            let address = format!("172.18.254.{}/16", agent + 1);
            network.add_client(&node(agent), &prefixes([address.as_str()])?)?;
        }
        let host = network.namespace(API_HOST)?;
        let api = host.run(|| Api::start(options.assets.as_deref(), files.path(), API_ADDRESS))??;
        let cluster = options.size.cluster();
        api.load(cluster.objects())?;
        Ok(Field { network, api, cluster, agents, files })
    }

    fn measure(&self, options: &Options, binary: &'static str, program: &Path) -> Result<Fleet> {
        let patience = Duration::from_secs(options.patience.into());
        progress(&format!("{} x {binary}: starting", self.agents));
        let before = self.spent()?;
        let mut proxies = self.start(program)?;
        settle(&mut proxies, patience)?;
        let (start, server_memory) = (self.spent()?.since(before), self.api.memory()?);
        progress(&format!("{} x {binary}: changing one endpoint at a time", self.agents));
        let before = self.spent()?;
        let delays = self.change(options.changes, &mut proxies)?;
        let changes = self.spent()?.since(before);
        for proxy in proxies {
            proxy.stop()?;
        }
        Ok(Fleet { binary, agents: self.agents, start, server_memory, changes, delays })
    }

    fn start(&self, program: &Path) -> Result<Vec<Proxy>> {
        let kubeconfig = self.api.host().kubeconfig(self.files.path(), Login::Token)?;
        let start = |agent: usize| {
            let arguments = [
                format!("--kubeconfig={}", kubeconfig.display()),
                format!("--hostname-override={}", node_name(agent % self.cluster.nodes)),
                "--proxy-mode=nftables".to_owned(),
                format!("--cluster-cidr={POD_RANGE}"),
                "--conntrack-max-per-core=0".to_owned(),
                "--conntrack-tcp-timeout-established=0s".to_owned(),
                "--conntrack-tcp-timeout-close-wait=0s".to_owned(),
            ];
            let log = self.files.path().join(format!("{}.log", node(agent)));
            Proxy::start(program, &arguments, self.network.namespace(&node(agent))?, log)
        };
        (0..self.agents).map(start).collect()
    }

    /// The delays from each answer until each kernel had the change.
    fn change(&self, count: u32, proxies: &mut [Proxy]) -> Result<Vec<Duration>> {
        let open = |agent| Listener::open(self.network.namespace(&node(agent))?);
        let listeners = (0..self.agents).map(open).collect::<Result<Vec<Listener>>>()?;
        let mut delays = Vec::new();
        for number in 0..count as usize {
            let (address, slice) = self.moved(number);
            let made = self.api.change(&slice)?;
            for listener in &listeners {
                let arrived =
                    listener.wait_for(address, PATIENCE).ok_or("a change never reached a kernel")?;
                delays.push(arrived.saturating_duration_since(made));
            }
            thread::sleep(REST);
            proxies.iter_mut().try_for_each(Proxy::check)?;
        }
        Ok(delays)
    }

    /// The first endpoint of a Service in a new place: no two changes have the same address.
    fn moved(&self, number: usize) -> (Ipv4Addr, String) {
        let service = number % self.cluster.services;
        // `moved` adds the endpoint's place to this argument.
        let all = self.cluster.services * self.cluster.endpoints;
        let slice = self.cluster.moved(service, 0, all + number - service * self.cluster.endpoints);
        (Ipv4Addr::from_bits(MOVED.to_bits() + (all + number) as u32), slice)
    }

    fn spent(&self) -> Result<Spent> {
        self.api.spent(self.network.namespace(API_HOST)?)
    }
}

fn node(agent: usize) -> String {
    format!("node{agent}")
}

/// Waits until all proxies together have been idle for a while.
fn settle(proxies: &mut [Proxy], patience: Duration) -> Result<()> {
    let deadline = Instant::now() + patience;
    let used = |proxies: &[Proxy]| proxies.iter().map(Proxy::cpu).sum::<Result<Duration>>();
    while Instant::now() < deadline {
        let before = used(proxies)?;
        thread::sleep(IDLE);
        proxies.iter_mut().try_for_each(Proxy::check)?;
        if used(proxies)?.saturating_sub(before) < IDLE / 20 {
            return Ok(());
        }
    }
    Err(format!("the agents were never idle within {patience:?}").into())
}
