//! The API server of a benchmark, ours or a real one, and its costs: CPU time, memory, and bytes it sends.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use ferroxy_lab::Namespace;
use ferroxy_lab::api::{Access, ApiHost, Assets, ControlPlane, Options, Server};
use serde_json::Value;

use super::proxy::{cpu_of, memory_of};
use super::{Result, progress};

pub enum Api {
    Test(Server),
    Real(Box<ControlPlane>),
}

/// The costs since the API server was started.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spent {
    /// For our own server, its thread; for a real one, the process kube-apiserver without etcd.
    pub cpu: Duration,
    /// All bytes that left its network interface: answers, TLS, and the headers of TCP and IP.
    pub bytes: u64,
}

/// The server's interface in its namespace.
const LINK: &str = "eth0:";

impl Api {
    /// Starts the server in the network namespace of the calling thread.
    pub fn start(assets: Option<&Path>, folder: &Path, address: Ipv4Addr) -> Result<Api> {
        match assets {
            None => {
                let address = (address, 6443).into();
                let options = Options { address, tls: true, access: Access::Token, ..Options::default() };
                Ok(Api::Test(Server::start(options)?))
            }
            Some(assets) => {
                progress("starting etcd and kube-apiserver");
                let (assets, folder) = (Assets::of(assets)?, folder.join("control-plane"));
                fs::create_dir(&folder)?;
                Ok(Api::Real(Box::new(ControlPlane::start(&assets, &folder, address)?)))
            }
        }
    }

    pub fn host(&self) -> &dyn ApiHost {
        match self {
            Api::Test(server) => server,
            Api::Real(server) => &**server,
        }
    }

    pub fn load(&self, objects: impl Iterator<Item = String>) -> Result<()> {
        match self {
            Api::Test(server) => drop(server.put_all(objects)?),
            Api::Real(server) => load_one_by_one(server, objects)?,
        }
        Ok(())
    }

    /// Sends an object and returns the time of the answer. Our own server has no answer to wait for: there it is the time
    /// before the change, so that sending the event is part of the measurement.
    pub fn change(&self, object: &str) -> Result<Instant> {
        match self {
            Api::Test(server) => {
                let made = Instant::now();
                server.put_raw(object.as_bytes())?;
                Ok(made)
            }
            Api::Real(real) => {
                real.put(&serde_json::from_str(object)?)?;
                Ok(Instant::now())
            }
        }
    }

    /// The costs so far. `host` is the server's namespace.
    pub fn spent(&self, host: &Namespace) -> Result<Spent> {
        let cpu = match self {
            Api::Test(server) => server.cpu()?,
            Api::Real(real) => cpu_of(real.server_process())?,
        };
        let links = host.run(|| fs::read_to_string("/proc/thread-self/net/dev"))??;
        let bytes = sent(&links, LINK).ok_or("the API server has no network interface")?;
        Ok(Spent { cpu, bytes })
    }

    /// Resident memory of the process that serves. For our own server, that is the whole benchmark.
    #[allow(dead_code, reason = "for bench-fleet, which uses this file too")]
    pub fn memory(&self) -> Result<u64> {
        Ok(match self {
            Api::Test(_) => memory_of(std::process::id())?.resident,
            Api::Real(real) => memory_of(real.server_process())?.resident,
        })
    }
}

impl Spent {
    pub fn since(self, before: Spent) -> Spent {
        Spent { cpu: self.cpu.saturating_sub(before.cpu), bytes: self.bytes.saturating_sub(before.bytes) }
    }
}

fn load_one_by_one(server: &ControlPlane, objects: impl Iterator<Item = String>) -> Result<()> {
    for (number, object) in objects.enumerate() {
        let object: Value = serde_json::from_str(&object)?;
        // A real server has made its own range of Services, which cannot be replaced.
        if object["kind"] != "ServiceCIDR" {
            ApiHost::put(server, &object)?;
        }
        if number > 0 && number % 5_000 == 0 {
            progress(&format!("the API server has {number} objects"));
        }
    }
    Ok(())
}

/// Bytes that an interface has sent: the ninth number of its line in /proc/net/dev.
fn sent(links: &str, link: &str) -> Option<u64> {
    let line = links.lines().find_map(|line| line.trim_start().strip_prefix(link))?;
    line.split_whitespace().nth(8)?.parse().ok()
}
